"""`antiphase reproduce`: compute tables and figures of published papers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase._cli.output import print_json, print_message, print_table, progress_bar
from antiphase._durable import check_output

if TYPE_CHECKING:
    from antiphase._reproduce import Result


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of tables and figures, or 'all'. If omitted, all are listed.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Compute everything, which can take minutes. Without it, slow rows are left out or use fewer steps.",
        ),
    ] = False,
    output: Annotated[Path | None, typer.Option(help="File for a Markdown page with pictures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compute tables or figures of published papers and compare them with the printed values.

    NAMES are the names of tables and figures, or 'all'. If omitted, all names are listed.

    Example: antiphase reproduce bandmf-amplified-table-3
    """
    from antiphase import _reproduce

    known = _reproduce.known()
    if not names:
        _list(known, as_json)
        return
    wanted = list(known) if names == ["all"] else names
    for name in wanted:
        _reproduce.find(name)  # raises for an unknown name before any work is done
    if output is not None and output.parent.exists():  # a missing directory is created later
        check_output(output)
    results = []
    with progress_bar() as progress:
        for i, name in enumerate(wanted):
            progress(name, i / len(wanted))
            results.append(_reproduce.reproduce(name, full))
    if output is not None:
        from antiphase._reproduce import write_page

        write_page(results, output)
        print_message(f"wrote {output}")
    if as_json:
        print_json([_plain(result) for result in results])
    elif output is None:
        for result in results:
            _print(result)


def _list(known: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "title": found.title, "paper": found.paper} for name, found in known.items()])
        return
    rows = ([name, found.title] for name, found in known.items())
    print_table("Tables and figures that can be reproduced", ["name", "shows"], rows, numbers=False)


def _plain(result: Result) -> dict[str, Any]:
    return {
        "name": result.reproduction.name,
        "agreeing": result.agreeing,
        "compared": result.compared,
        "full": result.full,
        "seconds": result.seconds,
        "rows": [asdict(row) for row in result.rows],
    }


def _print(result: Result) -> None:
    print_table(
        f"{result.reproduction.name}: {result.reproduction.title}",
        ["", "paper", "here", "difference", "note"],
        (
            [
                row.what,
                row.paper,
                row.ours,
                "" if row.difference is None else f"{100 * row.difference:+.2f} %",
                row.note if row.agrees is not False else f"differs: {row.note}",
            ]
            for row in result.rows
        ),
    )
    typer.echo(f"{result.agreeing} of {result.compared} agree; {result.seconds:.1f} s\n")
