"""Where output goes: data to stdout, talk to stderr, so that a pipe carries only data.

All text passes `terminal_text` here, and none of it is read as markup.
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

WIDTH_OF_A_PIPE = 120  # a file or pipe has no width of its own


def talk(*lines: str) -> None:
    """Lines for the person at the terminal."""
    typer.echo("\n".join(terminal_text(line) for line in lines), err=True)


def print_json(data: Any) -> None:
    """`data` for a program to read; NaN and infinity, which JSON does not have, raise."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for a person to read: the first column to the left, the others to the right."""
    looks: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(title=_plain(title), title_justify="left", **looks)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    _show(table)


def print_facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> None:
    """Names and values, one per line; long values are folded under themselves, and so are values of several lines."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        lines = [value] if isinstance(value, str) else value
        table.add_row(_plain(name), "\n".join(map(_plain, lines)))
    _show(table)


def _plain(text: str) -> str:
    """The text for a cell, where rich would otherwise read markup such as [red]."""
    return escape(terminal_text(text))


def _show(table: Table) -> None:
    """The table as it fits, without blanks at the ends of lines, which wrap and paste badly."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE, highlight=False)
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar that is told what is being done and the share that is done; it leaves nothing behind."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)

        def tell(description: str, share: float) -> None:
            bar.update(task, description=f"{terminal_text(description):<32.32}", completed=share)

        yield tell
