"""The HTML page: whole, self-contained, and free of markup that came from a user or a file."""

import re
import tomllib
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import antiphase as ap
from antiphase._escape import reorders
from antiphase._report import gather, html, read
from antiphase._report.chart import Chart, draw, series
from antiphase._report.heat_map import HeatMap, draw_heat_map
from antiphase._report.html_page import environment
from antiphase._report.reading import ReportSource
from tests.report.cases import made_run, searched_plan

ROOT = Path(__file__).parents[2]
# Ends an attribute, an element, a title and a style; opens elements; is an entity, a template and a control sequence.
ATTACK = "\"'></title></style><script>alert(1)</script><img src=x onerror=y>&lt;{{ 7 * 191 }}{% endif %}\x1b[31m\u202e"
SHOWN = ATTACK.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")


class Page(HTMLParser):
    """Reads a page as a browser would: elements, attributes, text, and whether its elements close."""

    VOID = ("meta", "link", "br", "line", "image")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    @property
    def references(self) -> list[str]:
        return [value for name, value in self.attributes if name in ("href", "src", "action") and value]


@pytest.fixture(scope="module")
def of_plan():
    return gather(ReportSource(replace(searched_plan(), notes=("a note of the planner",))))


@pytest.fixture(scope="module")
def of_run(tmp_path_factory):
    """A run of a searched plan, so that it has candidates, remarks and a publication."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    made_run(directory, searched_plan(), 10)
    return replace(gather(read(directory)), advice=("advice",), left_out=("left out",))


@pytest.mark.parametrize("which", ["of_plan", "of_run"])
def test_the_page_is_whole_and_needs_nothing_else(which, request):
    text = html(request.getfixturevalue(which))
    page = Page(text)
    assert page.open == []
    assert {"script", "iframe", "img"} & set(page.tags) == set()
    assert all(r.startswith(("#", "data:")) for r in page.references)
    anchors = {r[1:] for r in page.references if r.startswith("#")}
    assert len(anchors) >= 6
    assert all(f'id="{name}"' in text for name in anchors)
    assert "default-src 'none'" in text
    assert "url(" not in text
    assert "@import" not in text


def places(value, path=()):
    """The place of every text inside a report: attribute names and indices that lead to it."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, ap.strategies.Strategy):
        return
    elif isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from places(item, (*path, i))
    elif is_dataclass(value):
        for field in fields(value):
            yield from places(getattr(value, field.name), (*path, field.name))


def changed(value, path, text):
    """A copy in which `path` leads to `text`, without the checks that a constructor makes."""
    if not path:
        return text
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {**value, first: changed(value[first], rest, text)}
    if isinstance(value, tuple):
        return (*value[:first], changed(value[first], rest, text), *value[first + 1 :])
    copy = object.__new__(type(value))
    for field in fields(value):
        object.__setattr__(copy, field.name, getattr(value, field.name))
    object.__setattr__(copy, first, changed(getattr(value, first), rest, text))
    return copy


def one_of_each(content):
    """One place for each field: of a list with many items, the first and the last."""
    found = {}
    for path in places(content):
        found.setdefault(tuple("#" if isinstance(p, int) else p for p in path), []).append(path)
    return [path for paths in found.values() for path in {paths[0], paths[-1]}]


@pytest.mark.parametrize("which", ["of_plan", "of_run"])
def test_no_text_of_a_report_becomes_markup(which, request):
    """An attack in any one field leaves the elements of the page as they are, and is shown as it was written."""
    content = request.getfixturevalue(which)
    clean = Page(html(content))
    shown = set()
    for path in one_of_each(content):
        text = html(changed(content, path, ATTACK))
        page = Page(text)
        assert page.tags == clean.tags, path
        assert [name for name, _ in page.attributes] == [name for name, _ in clean.attributes], path
        assert page.open == [], path
        assert "\x1b" not in text, path
        assert not reorders(text), path
        assert str(7 * 191) not in page.text, path
        if SHOWN in page.text:
            shown.add(path[:1] if path[0] != "source" else tuple(p for p in path[1:] if isinstance(p, str)))
    expected = {
        ("headline",),
        ("statement",),
        ("advice",),
        ("charts",),
        ("heat_maps",),
        ("changes",),
        ("left_out",),
        ("plan", "problem", "unit"),
        ("plan", "mechanism", "adjacency"),
        ("plan", "guarantee", "kind"),
        ("plan", "candidates", "name"),
        ("plan", "candidates", "kind"),
    }
    if which == "of_plan":
        expected |= {("plan", "guarantee", "method")}
    else:
        expected |= {
            ("remarks",),
            ("run", "planned", "kind"),
            ("run", "guarantee", "kind"),
            ("run", "guarantee", "method"),
            ("run", "publications", "label"),
        }
    assert shown == expected  # the attack did reach the page


def test_an_attack_in_a_plan_file_and_a_label_is_shown_as_text(tmp_path):
    """What reaches the page through real files: unit, candidates, notes and the label of a publication."""
    attack = ATTACK.replace("\u202e", "")  # units and labels with it are refused
    found = searched_plan()
    row = replace(found.candidates[0], family="unknown", size=None, variant="", name=attack)
    problem = replace(found.problem, unit=attack)
    plan = replace(found, problem=problem, candidates=(row, *found.candidates[1:]), notes=(attack,))
    plan.save(tmp_path / "plan.json")
    made_run(tmp_path / "run", plan, 10, label=attack.replace("\x1b", ""))
    for path in (tmp_path / "plan.json", tmp_path / "run"):
        page = Page(html(gather(read(path))))
        assert {"script", "img"} & set(page.tags) == set()
        assert not [name for name, _ in page.attributes if name.startswith("on")]
        assert page.text.count("<script>alert(1)</script>") >= 3
        assert page.open == []


def test_charts_and_matrices_escape_their_texts():
    line = series(ATTACK, [1.0, 2.0], [1.0, 2.0])
    chart = Chart(ATTACK, ATTACK, ATTACK, (line, replace(line, faint=True)), marks=((1.5, ATTACK),))
    plain = Chart("t", "x", "y", (replace(line, name="n"), replace(line, name="n", faint=True)), marks=((1.5, "m"),))
    heat = HeatMap(ATTACK, line.x[None])
    for attacked, clean in (
        (draw(chart, "c"), draw(plain, "c")),
        (draw_heat_map(heat, "h"), draw_heat_map(replace(heat, title="t"), "h")),
    ):
        assert Page(attacked).tags == Page(clean).tags
        assert SHOWN in Page(attacked).text
        assert "\x1b" not in attacked
        assert not reorders(attacked)


def test_templates_escape_by_default_and_refuse_missing_values():
    from jinja2 import UndefinedError

    assert environment().from_string("{{ x }}").render(x="<b>\u202e") == "&lt;b&gt;\\u202e"
    with pytest.raises(UndefinedError, match="'missing' is undefined"):
        environment().from_string("{{ missing }}").render()


def test_no_template_turns_escaping_off():
    texts = [path.read_text() for path in (ROOT / "src" / "antiphase").glob("*/templates/*.jinja")]
    assert len(texts) == 5
    assert not [text for text in texts if re.search(r"\|\s*safe|autoescape|Markup", text)]


def test_a_wheel_has_the_templates():
    """Setuptools packs what package-data names, and no other file that is not Python."""
    source = ROOT / "src"
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path for name, globs in data.items() for glob in globs for path in (source / name.replace(".", "/")).glob(glob)
    }
    others = {path for path in source.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    wanted = {path for path in others if not re.search(r"__pycache__|egg-info", str(path))}
    assert {path.name for path in wanted} >= {"report.html.jinja", "report.css", "py.typed"}
    assert packed == wanted
