"""`antiphase report`: write the privacy report of a plan or a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
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
    path: Annotated[Path, typer.Argument(help="Plan file, run directory, or directory of a federated server.")],
    output_format: Annotated[Format, typer.Option("--format", help="HTML page, Markdown or JSON.")] = Format.html,
    output: Annotated[
        Path | None, typer.Option(help="File to write to; by default report.html for HTML, otherwise stdout.")
    ] = None,
    secret: Annotated[Path | None, typer.Option(help="Secret file of a run that does not store its own.")] = None,
    devices_per_user: Annotated[
        int | None,
        typer.Option(min=1, help="For a federated run: also state epsilon for users with this many devices."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="For a federated run: leave out counts of replies, which have no noise.")
    ] = False,
    audit: Annotated[
        Path | None, typer.Option(help="Audit of this plan or run, as written by antiphase audit --output.")
    ] = None,
) -> None:
    """Write the privacy statement of a plan or a run, with charts, for readers who did not run the training.

    PATH is a plan file, a run directory, or the directory of a federated server. The ledgers of a run are checked
    first. If one is missing, truncated or edited, nothing is written. The run may still be in progress. For a federated
    run, lines at the end of a ledger that are not authentic are stated in the report instead.

    Example: antiphase report plan.json --output report.html
    """
    from antiphase._report import gather, read, read_audit

    if output is None and output_format is Format.html:
        output = Path("report.html")
    if output is not None:
        check_output(output)
    own = None if secret is None else ap.Secret.load(secret)
    source = read(path, own, devices_per_user=devices_per_user, with_counts=not public)
    if audit is not None:
        source = replace(source, audit=read_audit(audit.read_bytes(), source.plan))
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
