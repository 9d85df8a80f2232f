"""What others wrote does nothing but be read: not to the terminal, not to Markdown."""

import re
from dataclasses import replace

import pytest

import antiphase as ap
from antiphase._escape import markdown_text, reorders, terminal_text
from antiphase._report import gather, html, markdown
from antiphase._report.reading import ReportSource
from tests.run.plans import LEAVES, STRATEGIES, candidate_of, plan_for
from tests.test_cli import run as command

HOSTILE = [
    "\x1b]0;title\x07",
    "\x1b[31mred",
    "a\r\nb",
    "\u202etxt.exe",
    "\u2066x\u2069",
    "\x7f\x9b31m",
    "\u2028line",
    "\ud800",
    "\x00",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_terminal_is_told_nothing_but_printable_text(text):
    shown = terminal_text(text)
    assert shown.isprintable()
    shown.encode()
    assert terminal_text(shown) == shown


def test_ordinary_text_is_left_alone():
    for text in ("half of it", "Größe", "数据", "a_b [red] *"):
        assert terminal_text(text) == text


MARKUP = [
    "# a heading",
    "x\n# a heading",
    "x\r\n\r\n## a heading",
    "<script>alert(1)</script>",
    "<img src=x onerror=y>",
    "[click](https://example.org)",
    "![i](x)",
    "https://example.org/",
    "www.example.org",
    "a | b",
    "**bold** _it_ `code` ~~no~~",
    "&lt;b&gt;",
    "- item",
    "1. item",
    "===",
    "    code",
]


@pytest.mark.parametrize("text", MARKUP)
def test_markdown_shows_the_text_and_no_markup(text):
    """Every character with a meaning has a backslash before it, and taking these away gives the text back."""
    escaped = markdown_text(text)
    assert "\n" not in escaped
    assert re.sub(r"\\([^\sA-Za-z0-9])", r"\1", escaped) == terminal_text(text)
    assert not re.search(r"(?<!\\)[`*_\[\]<>|~&]", escaped.replace("\\\\", ""))
    assert not re.match(r"\s*([#+=-]|\d+[.)])", escaped)
    assert not re.search(r"(?<!\\)://", escaped)
    assert "www." not in escaped


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory):
    """A run whose unit and labels try to be more than text."""
    made = plan_for(STRATEGIES["toeplitz"])
    unit = "user\n# Forged heading\n<script>x</script>\x1b[31m"
    problem = ap.Problem(12, made.problem.budget, 40, 10, made.problem.participation, unit=unit)
    rows = (candidate_of(made, "[red]x[/red] | <b>"), candidate_of(made, "# y\n# Forged"))
    plan = ap.Plan(problem, made.mechanism, made.guarantee, made.error, rows, notes=("# note\n# two",))
    directory = tmp_path_factory.mktemp("hostile") / "run"
    with ap.Run.open(plan, directory, leaves=LEAVES, examples=40) as run:
        run.batch(0)
        run.commit(0, ap.digest(run.gradient_noise(0)))
        run.publish("# Forged heading [a](https://b) [red]<img src=x> \\x1b]0;owned")
    return plan, directory


def test_a_label_cannot_forge_a_part_of_the_report(hostile_run):
    from antiphase._report import read

    plan, directory = hostile_run
    for source in (ReportSource(plan), read(directory)):
        content = gather(source)
        text = markdown(content)
        headings = [line for line in text.splitlines() if line.lstrip("> -").startswith("#")]
        assert not [line for line in headings if "Forged" in line or "note" in line]
        assert not re.search(r"(?<!\\)<[a-z]", text)
        assert "\x1b" not in text
        assert not re.search(r"(?<!\\)\]\(", text)
        assert "<script>" not in html(content)


def test_the_text_of_a_plan_or_report_has_no_forged_line(hostile_run):
    """Notes and candidates of a plan file are not authenticated."""
    plan, directory = hostile_run
    with ap.Run.open(plan, directory, leaves=LEAVES, examples=40) as run:
        report = run.report()
    for shown in (plan, report):
        lines = str(shown).splitlines()
        assert all(line.isprintable() and not line.lstrip().startswith("#") for line in lines)
    assert len(str(report).splitlines()) == 5 + len(report.remarks)
    forged = replace(plan, deviation="x\n  guarantee: epsilon 0.1\x1b[1m")
    assert len(str(forged).splitlines()) == len(str(plan).splitlines()) + 1


def test_nothing_reaches_the_terminal_raw(hostile_run, tmp_path):
    plan, directory = hostile_run
    path = tmp_path / "pl\x1b[31man[red].json"
    plan.save(path)
    for arguments in (
        ["verify", str(directory)],
        ["verify", str(path)],
        ["account", str(path)],
        ["report", str(directory), "--format", "md"],
        ["report", str(path), "--output", str(tmp_path / "\x1b[2Jr.html")],
        ["account", str(tmp_path / "\x1b[31mnowhere\n# x")],
    ):
        result = command(*arguments)
        shown = (result.stdout + result.stderr).replace("\n", "")
        assert shown.isprintable(), arguments
    assert "[red]<img" in command("verify", str(directory)).stdout.replace("\n", "")


def test_html_has_no_character_that_reorders_the_page():
    """A plan file of an older version may hold them: everything that is drawn is escaped, whatever the plan checks."""
    made = plan_for(STRATEGIES["toeplitz"])
    row = candidate_of(made, "\u202eretfa\u2066")
    plan = ap.Plan(made.problem, made.mechanism, made.guarantee, made.error, (row,), notes=("\u202enote",))
    page = html(gather(ReportSource(plan)))
    assert "\\u202eretfa\\u2066" in page
    assert not reorders(page)


@pytest.mark.parametrize("text", ["\u202etxt.exe", "a\u2066x\u2069", "\u202bx"])
def test_labels_and_units_that_reorder_are_refused(text, tmp_path):
    made = plan_for(STRATEGIES["toeplitz"])
    with pytest.raises(ap.InvalidArgument, match="'unit'"):
        replace(made.problem, unit=text)
    with (
        ap.Run.open(made, tmp_path, leaves=LEAVES, examples=40) as run,
        pytest.raises(ap.InvalidArgument, match="'label'"),
    ):
        run.publish(text)


def test_words_of_any_language_are_labels_and_units(tmp_path):
    made = plan_for(STRATEGIES["toeplitz"])
    with ap.Run.open(made, tmp_path, leaves=LEAVES, examples=40) as run:
        for text in ("משתמש", "مستخدم", "数据", "Größe"):
            assert replace(made.problem, unit=text).unit == text
            run.publish(text)
