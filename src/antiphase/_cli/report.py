"""`antiphase report`: the privacy report of a plan or a run, on one page."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import antiphase as ap
from antiphase._cli.output import print_message, progress_bar
from antiphase._durable import check_output, write_output

if TYPE_CHECKING:
    from antiphase._report import Content


class Format(StrEnum):
    """Output format of a report."""

    html = "html"
    md = "md"
    json = "json"


def report(
    path: Annotated[Path, typer.Argument(help="Plan file or run directory.")],
    output_format: Annotated[Format, typer.Option("--format", help="HTML page, Markdown or JSON.")] = Format.html,
    output: Annotated[Path | None, typer.Option(help="File to write to; for html, report.html if left out.")] = None,
    secret: Annotated[Path | None, typer.Option(help="Secret file of a run that does not store its own.")] = None,
) -> None:
    """Write the privacy statement of a plan or a run, with charts, for readers who did not run the training.

    PATH is a plan file or a run directory. The ledger of a run is checked first; unless it is complete and
    authentic, nothing is written.

    Example: antiphase report plan.json --output report.html
    """
    from antiphase._report import gather, read

    if output is None and output_format is Format.html:
        output = Path("report.html")
    if output is not None:
        check_output(output)
    source = read(path, None if secret is None else ap.Secret.load(secret))
    with progress_bar() as progress:
        content = gather(source, progress)
    text = _writer(output_format)(content)
    if output is None:
        typer.echo(text, nl=False)
        return
    data = text.encode()
    write_output(output, data)
    print_message(f"wrote {output} ({len(data) / 1e6:.2f} MB)")


def _writer(output_format: Format) -> Callable[[Content], str]:
    from antiphase._report import html, json_data, markdown

    def as_json(content: Content) -> str:
        return json.dumps(json_data(content), indent=2, allow_nan=False) + "\n"

    return {Format.html: html, Format.md: markdown, Format.json: as_json}[output_format]
