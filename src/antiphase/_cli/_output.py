"""Where output goes: data to stdout, talk to stderr, so that a pipe carries only data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

T = TypeVar("T")
WIDTH_OF_A_PIPE = 120  # a file or pipe has no width of its own


def talk(text: str) -> None:
    """A line for the person at the terminal."""
    typer.echo(text, err=True)


def print_json(data: Any) -> None:
    """`data` for a program to read; NaN and infinity, which JSON does not have, raise."""
    typer.echo(json.dumps(data, indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table for a person to read: the first column to the left, the others to the right."""
    looks: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(title=title, title_justify="left", **looks)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE).print(table)


def with_progress(items: Sequence[T], description: str) -> Iterator[T]:
    """The items, with a bar that shows how far the work is and leaves nothing behind."""
    console = Console(stderr=True)
    return iter(track(items, description, console=console, transient=True, disable=not console.is_terminal))
