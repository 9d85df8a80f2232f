"""Times, growth and tables: what every benchmark needs."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of a call, the first one (which compiles) left out."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def growth_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """p of the least-squares fit time ~ size^p."""
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(t) for t in times]).slope


def peer(script: str, *arguments: str) -> Any:
    """What a script in `_peer` prints as JSON, run by the interpreter that has jax_privacy."""
    python = os.environ.get("PEER", ".venv-peer/bin/python")
    path = Path(__file__).parent / "_peer" / f"{script}.py"
    return json.loads(subprocess.run([python, path, *arguments], check=True, capture_output=True, text=True).stdout)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with its numbers to the right."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def readable(time_in_seconds: float) -> str:
    """A time in the unit a person would choose."""
    return f"{time_in_seconds * 1e3:.3g} ms" if time_in_seconds < 1 else f"{time_in_seconds:.3g} s"
