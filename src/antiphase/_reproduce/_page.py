"""The reproductions as a page of the documentation, with their pictures as files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphase._report._chart import Chart
from antiphase._report._drawing import draw
from antiphase._report._heat import draw_heat
from antiphase._report._style import file_style
from antiphase._reproduce._registry import PAPERS, Picture, Result

INTRODUCTION = """# Reproduction

The tables and figures of five papers that need no image or text data, computed again by `antiphase reproduce`. A number
agrees where ours rounds to the printed digits; a claim agrees where what we measure bears it out. Every row that does
not agree says why. Where a paper draws a curve without numbers, ours is drawn, and its sentences about the curve are
compared. `antiphase reproduce NAME` shows one of them, with `--full` in its full size, which may take minutes;
`antiphase reproduce all --output docs/reproduction.md` writes this page.
"""


def write_page(results: Sequence[Result], path: Path) -> None:
    """Write the page, and the pictures into the folder `images` beside it."""
    images = path.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for result in results:
        for i, picture in enumerate(result.pictures):
            (images / picture_name(result, i)).write_text(svg(picture, f"p{i}") + "\n")
    path.write_text("\n".join(page(results)) + "\n")


def svg(picture: Picture, name: str) -> str:
    """The picture as a file that stands alone."""
    return draw(picture, name, file_style()) if isinstance(picture, Chart) else draw_heat(picture, name, 280)


def picture_name(result: Result, index: int) -> str:
    """The file of a picture."""
    return f"{result.reproduction.name}-{index + 1}.svg"


def page(results: Sequence[Result]) -> Iterator[str]:
    """The page, line by line."""
    yield INTRODUCTION
    yield "| name | agree | of | size | seconds |"
    yield "|---|--:|--:|---|--:|"
    for result in results:
        name = result.reproduction.name
        size = "full" if result.full else "quick"
        yield f"| [{name}](#{name}) | {result.agreeing} | {result.compared} | {size} | {result.seconds:.0f} |"
    agreeing, compared = sum(r.agreeing for r in results), sum(r.compared for r in results)
    yield f"| **all** | **{agreeing}** | **{compared}** | | |"
    for paper in PAPERS.values():
        own = [r for r in results if r.reproduction.paper == paper]
        if own:
            yield f"\n## {paper}"
        for result in own:
            yield from _section(result)


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
