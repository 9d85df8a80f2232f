"""Writes the reproductions as a Markdown page of the documentation, with charts and heat maps as SVG files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphase._durable import write_output
from antiphase._report import Chart, draw, draw_heat_map, file_style
from antiphase._reproduce.catalogue import known
from antiphase._reproduce.reproduction import PAPERS, Picture, Result

Entry = tuple[str, str]  # (row of the summary table, section)
PAPER_HEADING = "\n## "

INTRODUCTION = """# Reproduction

`antiphase reproduce` computes those tables and figures of five papers that need no image or text data. A number agrees
if our number rounds to the printed digits. A claim agrees if our measurements support it. If a row does not agree, its
note says why. Where a paper draws a curve without printing numbers, we draw our curve and check what the paper says
about it. Times depend on the machine, so we show them and never compare them. n is the number of steps, k the number of
epochs or participations, and b the separation.

`antiphase reproduce NAME` shows one table or figure. To save time, it leaves out slow rows or uses fewer steps. With
`--full`, it computes everything, which can take minutes. `antiphase reproduce all --full --output docs/reproduction.md`
writes this page. With a NAME instead of `all`, it updates one section. In the first table, the size is "full" if
everything was computed, and "quick" otherwise.
"""


def write_page(results: Sequence[Result], path: Path) -> None:
    """Write the page to `path`, and its pictures to the folder `images` next to it.

    Sections of an existing page that are not in `results` are kept.
    """
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for result in results:
        for i, picture in enumerate(result.pictures):
            write_output(images / picture_name(result, i), (svg(picture, f"p{i}") + "\n").encode())
    kept = read_page(path.read_text("utf-8")) if path.is_file() else {}
    made = {result.reproduction.name: (row(result), "\n".join(_section(result))) for result in results}
    write_output(path, ("\n".join(page({**kept, **made})) + "\n").encode())


def read_page(text: str) -> dict[str, Entry]:
    """Return, for every reproduction on a page, its row of the summary table and its section."""
    rows = {line[3 : line.index("]")]: line for line in text.splitlines() if line.startswith("| [")}
    sections = {}
    for section in text.split("\n### ")[1:]:
        name, _, rest = section.partition("\n")
        sections[name] = f"\n### {name}\n{rest.partition(PAPER_HEADING)[0].rstrip()}"
    return {name: (rows[name], sections[name]) for name in sections if name in rows}


def svg(picture: Picture, name: str) -> str:
    """Return the picture as a standalone SVG file."""
    return draw(picture, name, file_style()) if isinstance(picture, Chart) else draw_heat_map(picture, name, 280)


def picture_name(result: Result, index: int) -> str:
    """Return the file name of a picture."""
    return f"{result.reproduction.name}-{index + 1}.svg"


def row(result: Result) -> str:
    """Return the row for the summary table at the top of the page."""
    name, size = result.reproduction.name, "full" if result.full else "quick"
    return f"| [{name}](#{name}) | {result.agreeing} | {result.compared} | {size} | {result.seconds:.0f} |"


def page(entries: dict[str, Entry]) -> Iterator[str]:
    """Yield the parts of the page. `entries` maps the name of each reproduction to its row and section."""
    found = {name: entries[name] for name in known() if name in entries}
    yield INTRODUCTION
    yield "| name | agree | of | size | seconds |"
    yield "|---|--:|--:|---|--:|"
    yield from (line for line, _ in found.values())
    counts = [line.split("|")[2:4] for line, _ in found.values()]
    yield f"| **all** | **{sum(int(a) for a, _ in counts)}** | **{sum(int(b) for _, b in counts)}** | | |"
    for key, paper in PAPERS.items():
        own = [section for name, (_, section) in found.items() if name.startswith(key)]
        if own:
            yield f"{PAPER_HEADING}{paper}"
            yield from own


def _section(result: Result) -> Iterator[str]:
    found = result.reproduction
    yield f"\n### {found.name}"
    yield f"\n{found.title}. {(found.run.__doc__ or '').strip()}"
    yield f"\n{result.agreeing} of {result.compared} agree.\n"
    yield "| | paper | here | difference | agrees | note |"
    yield "|---|---|---|--:|---|---|"
    for row in result.rows:
        difference = "" if row.difference is None else f"{100 * row.difference:+.2f} %"
        agrees = {True: "yes", False: "**no**", None: ""}[row.agrees]
        yield f"| {row.what} | {row.paper} | {row.ours} | {difference} | {agrees} | {row.note} |"
    for i, picture in enumerate(result.pictures):
        yield f"\n![{picture.title}](images/{picture_name(result, i)})"
