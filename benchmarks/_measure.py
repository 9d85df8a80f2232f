"""Functions that all benchmarks share: timing, growth exponents, tables and problem sizes.

`python -m benchmarks.NAME --tiny` runs a benchmark in seconds, with tiny problem sizes and without jax_privacy. The
tests use it to check that the benchmark still runs. The times measured in this way are meaningless.
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
    os.environ[VARIABLE] = "1"  # passes the flag on to subprocesses
TINY = os.environ.get(VARIABLE) == "1"


def sized(full: T, tiny: T) -> T:
    """Return `tiny` if the benchmark runs with --tiny, otherwise `full`."""
    return tiny if TINY else full


class NoPeer(dict[str, float]):
    """The result of `peer` if jax_privacy is not run: an empty dict that returns NaN for every key."""

    def __missing__(self, name: str) -> float:
        return math.nan


def seconds(function: Callable[[], Any], repeats: int = 5) -> float:
    """Return the median time of a call in seconds. A first call, which includes compilation, is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def growth_exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the exponent p of the least-squares fit time ~ size^p."""
    return statistics.linear_regression([math.log(x) for x in sizes], [math.log(t) for t in times]).slope


def peer(script: str, *arguments: str) -> Any:
    """Run a script of benchmarks/_peer with the Python interpreter that has jax_privacy, and return its JSON output.

    The environment variable PEER is the path of this interpreter. With --tiny, the script is not run.
    """
    if TINY:
        return NoPeer()
    python = os.environ.get("PEER", ".venv-peer/bin/python")
    path = Path(__file__).parent / "_peer" / f"{script}.py"
    return json.loads(subprocess.run([python, path, *arguments], check=True, capture_output=True, text=True).stdout)


def environment(cache: str) -> dict[str, str]:
    """Return environment variables for a subprocess that uses `cache` as its Numba cache.

    With --tiny, the subprocess uses the existing cache.
    """
    return {**os.environ, **sized({"NUMBA_CACHE_DIR": cache}, {})}


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with right-aligned columns."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def readable(time_in_seconds: float) -> str:
    """Return a time as text, in milliseconds if it is below one second."""
    return f"{time_in_seconds * 1e3:.3g} ms" if time_in_seconds < 1 else f"{time_in_seconds:.3g} s"
