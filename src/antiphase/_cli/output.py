"""Output of the commands. Data goes to stdout and messages go to stderr, so that a pipe carries only data.

All text passes through `terminal_text`, and none of it is interpreted as markup.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from antiphase._escape import terminal_text

PIPE_WIDTH = 120  # width of tables in characters, if the output is not a terminal


def print_message(*lines: str) -> None:
    """Print lines to stderr."""
    typer.echo("\n".join(terminal_text(line) for line in lines), err=True)


def print_json(data: Any) -> None:
    """Print `data` as JSON. Raises `ValueError` for NaN and infinity, which JSON cannot represent."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> None:
    """Print a table.

    Args:
        title: title above the table.
        columns: names of the columns.
        rows: text of the cells.
        numbers: if true, all columns but the first are aligned on the right, for numbers.
    """
    looks: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(title=_plain(title), title_justify="left", **looks)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i and numbers else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    _show(table)


def print_facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> None:
    """Print names and values, one pair per row. Long values wrap within their column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        lines = [value] if isinstance(value, str) else value
        table.add_row(_plain(name), "\n".join(map(_plain, lines)))
    _show(table)


def _plain(text: str) -> str:
    """Escape the text of a cell, so that rich does not interpret markup such as [red]."""
    return escape(terminal_text(text))


def _show(table: Table) -> None:
    """Print a table without trailing spaces, which would cause extra line breaks in narrow terminals."""
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar. Yields a function (description, fraction of the work that is done) to update the bar."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def progress(description: str, share: float) -> None:
            bar.update(task, description=f"{terminal_text(description):<32.32}", completed=share)

        yield progress
