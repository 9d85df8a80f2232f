"""Time that the planner takes to choose a mechanism, compared with jax_privacy's choice of the number of bands.

Our planner tries every family with every kind of batches. jax_privacy tries banded Toeplitz matrices under Poisson
sampling. Each planner runs in its own process, and imports are not counted. Our process is run twice. The second run,
which loads compiled code from the cache on disk, is timed.

python -m benchmarks.planner [name ...]
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks._measure import peer, print_table, readable, sized

BATCH_SIZE = sized(500, 50)


@dataclass(frozen=True)
class Case:
    steps: int
    examples: int
    goal: float
    dense: bool
    peer: bool


CASES = sized(
    {
        "thousands": Case(2000, 50_000, 20.0, dense=True, peer=True),
        "million": Case(1_000_000, 50_000_000, 120.0, dense=False, peer=False),
    },
    {"tens": Case(20, 500, math.nan, dense=True, peer=True)},
)


def child(name: str) -> None:
    """Run the planner in this process, and print the result as JSON."""
    from antiphase import Budget, Problem, plan
    from antiphase._planner.families import FAMILIES

    case = CASES[name]
    problem = Problem(steps=case.steps, budget=Budget(1.0, 1e-5), examples=case.examples, batch_size=BATCH_SIZE)
    families = [family for family in FAMILIES if case.dense or family != "dense"]
    start = time.perf_counter()
    found = plan(problem, families)
    seconds = time.perf_counter() - start
    slowest = max(found.candidates, key=lambda c: c.seconds)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "error": found.error,
                "best": found.candidates[0].name,
                "tried": len(found.candidates),
                "slowest": f"{slowest.name}, {readable(slowest.seconds)}",
            }
        )
    )


def run(name: str) -> dict[str, Any]:
    """Run a case in two subprocesses, one after the other, and return the second result. With --tiny, run it once."""
    command = [sys.executable, "-m", "benchmarks.planner", "--case", name]
    for _ in range(sized(2, 1)):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare(names: list[str]) -> None:
    rows = []
    for name in names:
        case, ours = CASES[name], run(name)
        row = [f"{case.steps:,}", ours["best"], str(ours["tried"]), ours["slowest"], f"{ours['error']:.2f}"]
        row += [readable(ours["seconds"]), f"{case.goal:g} s"]
        if case.peer:
            theirs = peer("planner", str(case.steps), str(case.examples), str(BATCH_SIZE))
            row += [readable(theirs["seconds"]), f"{theirs['bands']} bands", f"{theirs['error']:.2f}"]
        rows.append([*row, *[""] * (10 - len(row))])
    columns = [
        "steps",
        "best",
        "tried",
        "slowest",
        "error",
        "antiphase",
        "goal",
        "jax_privacy",
        "its best",
        "its error",
    ]
    print_table(f"Planning, epsilon 1 at delta 1e-5, batches of {BATCH_SIZE}", columns, rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        child(sys.argv[2])
    else:
        compare(sys.argv[1:] or list(CASES))
