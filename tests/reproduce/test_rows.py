"""When a number agrees, and what happens with names."""

import itertools
import json

import pytest

import antiphase as ap
from antiphase._reproduce import claimed, drawn, find, known, page, printed, read_page, reproduce, timed, write_page
from tests.report.cases import command

# What issue and papers name: every table and figure that needs no image or text data.
WANTED = {
    "multi-epoch-mf": ["table-1", "table-3", "table-6", "figure-4", "figure-5", "figure-6", "figure-14"],
    "bandmf-amplified": ["table-2", "table-3", "table-4", "table-5", "figure-5", "figure-8", "figure-9", "figure-11"],
    "scaling-bandmf": [
        "example-b1",
        "figure-2a",
        "figure-2b",
        "figure-2c",
        "figure-2d",
        "figure-3a",
        "figure-3b",
        "figure-4",
        "figure-7",
    ],
    "blt-dp-ftrl": ["table-1", "table-2", "table-3", "table-4", "figure-1", "figure-12"]
    + [f"figure-{i}" for i in range(3, 11)],
    "near-exact-amplification": [
        "figure-2",
        "figure-3a",
        "figure-3b",
        "figure-24",
        "figure-5",
        "figure-26",
        "figure-28",
        "figure-29",
    ],
}


@pytest.mark.parametrize(
    ("paper", "ours", "agrees"),
    [
        ("0.52", 0.5249, True),
        ("0.52", 0.5251, False),
        ("5.8e6", 5.849e6, True),
        ("5.8e6", 5.86e6, False),
        ("2.23e-2", 0.02228, True),
        ("-0.031", -0.0307, True),
        ("0.000", -1e-9, True),
        ("110", 110.4, True),
    ],
)
def test_a_number_agrees_where_it_rounds_to_the_printed_digits(paper, ours, agrees):
    row = printed("x", paper, ours, "because")
    assert row.agrees is agrees
    assert row.note == ("" if agrees else "because")
    assert row.paper == paper


def test_differences_and_digits():
    row = printed("x", "2.00", 2.1)
    assert row.difference == pytest.approx(0.05)
    assert row.ours == "2.100"
    assert printed("x", "6.5e5", 654321.0).ours == "6.54e5"
    assert drawn("x", "1").agrees is None
    assert timed("x", "faster", "9 times").agrees is None
    assert claimed("x", "larger", "larger", True, "why not").note == ""


@pytest.mark.parametrize("quicker", [True, False])
def test_times_are_shown_and_never_compared(monkeypatch, quicker):
    """A clock by which each measurement takes ten times as long as the one before, or a tenth of it."""
    measurements = itertools.count()

    def clock():
        number = next(measurements)
        return 10.0 ** (-number if quicker else number) if number % 2 else 0.0

    monkeypatch.setattr("antiphase._reproduce.blt_tables.perf_counter", clock)
    result = reproduce("blt-dp-ftrl-table-4")
    assert (result.agreeing, result.compared) == (2, 2)
    ratios = [row for row in result.rows if row.ours.endswith("times")]
    assert [row.agrees for row in ratios] == [None, None]
    assert all(row.paper == "far faster" for row in ratios)


def test_every_table_and_figure_has_its_name():
    assert list(known()) == sorted(known(), key=lambda name: [name.startswith(p) for p in WANTED].index(True))
    assert {f"{paper}-{part}" for paper, parts in WANTED.items() for part in parts} <= set(known())


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ap.InvalidArgument, match="bandmf-amplified-table-3"):
        find("bandmf-amplified-table-33")
    result = command("reproduce", "blt-dp-ftrl-table-2", "nonsense")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "blt-dp-ftrl-table-2" in result.stderr


def test_no_name_lists_them_all():
    data = json.loads(command("reproduce", "--json").stdout)
    assert [entry["name"] for entry in data] == list(known())
    assert all(name in command("reproduce").stdout for name in known())


def test_the_page_has_every_row_and_picture(tmp_path):
    result = reproduce("blt-dp-ftrl-figure-8")
    path = tmp_path / "docs" / "reproduction.md"
    path.parent.mkdir()
    write_page([result], path)
    text = path.read_text()
    for row in result.rows:
        assert f"| {row.what} | {row.paper} | {row.ours} |" in text
    for i in (1, 2):
        assert f"(images/blt-dp-ftrl-figure-8-{i}.svg)" in text
        assert (path.parent / "images" / f"blt-dp-ftrl-figure-8-{i}.svg").read_text().startswith("<svg")
    assert "\n".join(page(read_page(text))) + "\n" == text


def test_a_section_is_written_into_a_page_that_is_there(tmp_path):
    path = tmp_path / "reproduction.md"
    first, second = reproduce("blt-dp-ftrl-figure-8"), reproduce("scaling-bandmf-example-b1")
    write_page([first, second], path)
    both = path.read_text()
    write_page([first], path)
    assert path.read_text() == both
    path.unlink()
    write_page([first], path)
    write_page([second], path)
    assert path.read_text() == both
    assert (both.count("\n## "), both.count("\n### ")) == (2, 2)
    assert f"| **all** | **{first.agreeing + 24}** | **{first.compared + 24}** |" in both


def test_the_command_prints_rows_and_count():
    result = command("reproduce", "scaling-bandmf-example-b1", "--json")
    data = json.loads(result.stdout)[0]
    assert (data["agreeing"], data["compared"], len(data["rows"])) == (24, 24, 24)
    assert "24 of 24 agree" in command("reproduce", "scaling-bandmf-example-b1").stdout
