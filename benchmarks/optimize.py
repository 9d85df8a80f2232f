"""Time that the optimisers of several families take, compared with jax_privacy.

For both libraries, every case runs in its own process, with an empty cache for compiled code. So compilation is
counted, and peak memory is that of the case. The computation of value and gradient is timed for the first call and for
later calls. All other cases time one call of the optimiser until it returns the solution. Imports are not counted.

python -m benchmarks.optimize [name ...]
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._measure import environment, peer, print_table, readable, seconds, sized

# Proved lower bounds on the loss by number of steps. They come from longer searches, with 700 and 120 iterations.
LOWER_BOUNDS = {65_536: 45.606088, 1 << 20: 181.064384}
# Number of steps -> goal: gap to the lower bound, time and memory.
BANDED = sized({65_536: "1e-4 in 60 s", 1 << 20: "1e-3 in 600 s, 3,000 MB"}, {64: ""})


def banded_gradient(n: int, bands: int) -> dict[str, float]:
    from antiphase import PrefixSum
    from antiphase._optimize import BandedError
    from antiphase.strategies import Toeplitz

    columns = Toeplitz(Toeplitz.square_root(n, bands).coefficients, n, column_normalized=True).columns()
    error, gradient = BandedError(PrefixSum(), n, bands), np.empty_like(columns)
    start = time.perf_counter()
    value = error(columns, 1.0, gradient)
    first = time.perf_counter() - start
    tracemalloc.start()
    error(columns, 1.0, gradient)
    held = columns.nbytes + gradient.nbytes + error.covariance.nbytes + error.inverse.nbytes
    arrays = held + tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    again = seconds(lambda: error(columns, 1.0, gradient))
    return {"first": first, "seconds": again, "value": np.exp(2.0 * value), "arrays": arrays / 2**20}


def curvatures_case(family: str, n: int, bands: int) -> dict[str, float]:
    """Time the optimiser for the rms error and for the last iterate with 25 curvatures.

    The first call, which compiles, is not timed.
    """
    from antiphase import Curvatures, FixedEpochs, Momentum, schedules
    from antiphase._optimize import optimize

    given: dict[str, Any] = {"steps": n, "participation": FixedEpochs(n // 100 or 1, min(n, 100)), "bands": bands}
    out: dict[str, float] = {}
    for rates in ("constant", "schedule"):
        workload = Momentum(0.9, None if rates == "constant" else schedules.linear(n))
        for name, objective in (("rms", "rms"), ("curvatures", Curvatures.log_uniform(1e-3, 1.0))):
            optimize(family, workload=workload, objective=objective, max_iterations=1, **given)
            start = time.perf_counter()
            found = optimize(family, workload=workload, objective=objective, **given)
            out[f"{rates} {name}"], out[f"{rates} {name} count"] = time.perf_counter() - start, found.iterations
    return out


def solve(family: str, n: int, bands: int) -> dict[str, float]:
    from antiphase import SingleParticipation
    from antiphase._optimize import optimize

    start = time.perf_counter()
    found = optimize(family, steps=n, participation=SingleParticipation(), bands=bands)
    bound = found.loss if found.lower_bound is None else found.lower_bound
    gap = 1.0 - bound / found.loss
    return {"seconds": time.perf_counter() - start, "value": found.loss, "gap": gap, "iterations": found.iterations}


def run(case: str, *arguments: int) -> dict[str, float]:
    """Run a case in a subprocess, and return its result."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.optimize", "--case", case, *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(cache))
    return json.loads(done.stdout)


def child(case: str, arguments: list[int]) -> None:
    if case == "banded-gradient":
        result = banded_gradient(*arguments)
    elif case.startswith("curvatures-"):
        result = curvatures_case(case.removeprefix("curvatures-"), *arguments)
    else:
        result = solve(case, *arguments)
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))


def gradients() -> None:
    rows = []
    for n in sized((4096, 8192), (64,)):
        ours, theirs = run("banded-gradient", n, 16), peer("optimize", "banded-gradient", str(n), "16")
        rows.append(
            [
                f"{n:,}",
                readable(ours["seconds"]),
                readable(theirs["seconds"]),
                f"{theirs['seconds'] / ours['seconds']:,.0f}",
                f"{readable(ours['first'])} / {readable(theirs['first'])}",
                f"{ours['arrays']:,.0f} / {theirs['arrays']:,.0f}",
                f"{ours['megabytes']:,.0f} / {theirs['megabytes']:,.0f}",
                f"{theirs['value'] / ours['value'] - 1:+.0e}",
            ]
        )
    columns = [
        "steps",
        "antiphase",
        "jax_privacy",
        "times faster",
        "first call",
        "arrays, MB",
        "process, MB",
        "difference",
    ]
    print_table("Banded, 16 bands: value and gradient", columns, rows)
    print("goals: at least 200 times faster, at most 1/50 of the peak memory")
    print("For any problem size, Python, NumPy and the compiler take about 190 MB of our process.\n")


def banded() -> None:
    rows = []
    for n, goal in BANDED.items():
        ours = run("banded", n, 16)
        above = ours["value"] / LOWER_BOUNDS.get(n, math.nan) - 1
        rows.append(
            [
                f"{n:,}",
                f"{ours['value']:.6f}",
                f"{above:+.1e}",
                f"{ours['gap']:.1e}",
                f"{ours['iterations']:.0f}",
                readable(ours["seconds"]),
                f"{ours['megabytes']:,.0f}",
                goal,
            ]
        )
    columns = [
        "steps",
        "rms loss",
        "above the bound of a longer search",
        "proved gap",
        "iterations",
        "time",
        "peak MB",
        "goal",
    ]
    print_table("Banded, 16 bands: to convergence", columns, rows)


def toeplitz() -> None:
    n, most = sized((1 << 20, 10**9), (64, 128))
    ours, theirs = run("toeplitz", n, 16), peer("optimize", "toeplitz", str(n), "16")
    rows = [
        [
            f"{n:,}",
            "16",
            f"{ours['value']:.6f} / {theirs['value']:.6f}",
            readable(ours["seconds"]),
            readable(theirs["seconds"]),
            f"{theirs['seconds'] / ours['seconds']:,.0f}",
            "10 times faster",
        ]
    ]
    many = run("toeplitz", most, 32)
    rows.append([f"{most:,}", "32", f"{many['value']:.4f}", readable(many["seconds"]), "", "", "5 s"])
    columns = ["steps", "bands", "rms loss", "antiphase", "jax_privacy", "times faster", "goal"]
    print_table("Toeplitz: to convergence", columns, rows)


def banded_inverse() -> None:
    rows = []
    for n in sized((2052, 1 << 20), (64,)):
        for bands in sized((2, 4, 16), (2,)):
            ours = run("banded-inverse", n, bands)
            rows.append([f"{n:,}", str(bands), f"{ours['value']:.4f}", readable(ours["seconds"])])
    print_table("Banded inverse: to convergence", ["steps", "bands", "rms loss", "time"], rows)


def curvatures() -> None:
    rows = []
    n = sized(2000, 40)
    for family, bands in sized(
        (("toeplitz", 16), ("toeplitz", 100), ("banded-inverse", 8), ("banded", 32)), (("toeplitz", 4),)
    ):
        ours = run(f"curvatures-{family}", n, bands)
        for rates in ("constant", "schedule"):
            rms, mixed = ours[f"{rates} rms"], ours[f"{rates} curvatures"]
            counts = f"{ours[f'{rates} rms count']:.0f} / {ours[f'{rates} curvatures count']:.0f}"
            rows.append([family, str(bands), rates, counts, readable(rms), readable(mixed), f"{mixed / rms:.1f}"])
    columns = ["family", "bands", "learning rate", "iterations", "rms", "25 curvatures", "ratio"]
    title = f"Time for the last iterate with 25 curvatures and for the rms error, {n:,} steps, momentum 0.9"
    print_table(title, columns, rows)


TABLES: dict[str, Callable[[], Any]] = {
    "gradients": gradients,
    "banded": banded,
    "toeplitz": toeplitz,
    "banded-inverse": banded_inverse,
    "curvatures": curvatures,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        child(sys.argv[2], [int(x) for x in sys.argv[3:]])
    else:
        for name in sys.argv[1:] or TABLES:
            TABLES[name]()
