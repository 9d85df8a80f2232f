"""The report as Markdown, for a pull request or a printer."""

from __future__ import annotations

from collections.abc import Iterator

from antiphase._escape import markdown_text
from antiphase._report.content import Content
from antiphase._report.tables import Table, candidates, changes, chart_table, comparison


def markdown(content: Content) -> str:
    """The page."""
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield "# Privacy report" if content.source.run else "# Privacy plan"
    yield f"\n**{markdown_text(content.headline)}**\n"
    yield from (f"> {markdown_text(text)}\n" for text in content.remarks)
    yield "## Privacy statement\n"
    yield from (f"- **{markdown_text(term)}**: {markdown_text(text)}" for term, text in content.statement)
    if content.source.run is not None:
        yield "\n## What ran and what was planned\n"
        yield from _table(comparison(content))
    if content.source.plan.candidates:
        yield "\n## Candidates\n"
        yield from (f"- {markdown_text(text)}\n" for text in content.advice)
        yield from _table(candidates(content.source.plan))
    yield "\n## If something were different\n"
    yield from _table(changes(content))
    for chart in content.charts.values():
        yield f"\n## {markdown_text(chart.title)}\n"
        yield from _table(chart_table(chart))
    yield from (f"\n{markdown_text(text)}" for text in content.left_out)


def _table(table: Table) -> Iterator[str]:
    yield f"{markdown_text(table.caption)}:\n"
    yield f"| {' | '.join(map(markdown_text, table.columns))} |"
    yield f"|{'---|' * len(table.columns)}"
    yield from (f"| {' | '.join(map(markdown_text, row))} |" for row in table.rows)
