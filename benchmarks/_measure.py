"""Times, growth, tables and sizes: what every benchmark needs.

`python -m benchmarks.NAME --tiny` runs a benchmark in seconds, at sizes whose times say nothing and without
jax_privacy: the tests do so, to see that it still runs.
"""

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
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")
FLAG, VARIABLE = "--tiny", "ANTIPHASE_BENCHMARK_TINY"
if FLAG in sys.argv:
    sys.argv.remove(FLAG)
    os.environ[VARIABLE] = "1"  # for the processes that benchmarks start
TINY = os.environ.get(VARIABLE) == "1"


def sized(full: T, tiny: T) -> T:
    """A size, a list of cases or a file of a benchmark: the second one under --tiny."""
    return tiny if TINY else full


class NoPeer(dict[str, float]):
    """What jax_privacy says where it is not run: nothing to iterate over, and every number is NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


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
    """What a script in `_peer` prints as JSON, run by the interpreter that has jax_privacy; not run under --tiny."""
    if TINY:
        return NoPeer()
    python = os.environ.get("PEER", ".venv-peer/bin/python")
    path = Path(__file__).parent / "_peer" / f"{script}.py"
    return json.loads(subprocess.run([python, path, *arguments], check=True, capture_output=True, text=True).stdout)


def environment(cache: str) -> dict[str, str]:
    """For a process that is to compile everything itself; under --tiny it takes what is compiled already."""
    return {**os.environ, **sized({"NUMBA_CACHE_DIR": cache}, {})}


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
