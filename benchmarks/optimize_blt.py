"""Time and loss of the BLT optimiser, compared with jax_privacy.

Both libraries choose the number of buffers. Each runs in its own process, with an empty cache for compiled code.
Imports are not counted. Our optimiser is also run with the number of buffers that jax_privacy chose.

python -m benchmarks.optimize_blt
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from benchmarks._measure import environment, peer, print_table, readable, sized

CASES = sized(
    [(2052, 342, 6, "max"), (2052, 342, 6, "rms"), (4000, 400, 5, "max"), (4000, 400, 5, "rms")], [(60, 20, 3, "max")]
)
LARGE = sized([(10**6, 10**6, 1, "max"), (10**8, 10**8, 1, "max"), (10**8, 10**6, 100, "rms")], [(100, 50, 2, "rms")])


def case(n: int, separation: int, count: int, objective: str, buffers: int) -> None:
    """Run one case in this process, and print the result as JSON. `buffers` = 0 lets the optimiser choose."""
    from antiphase import MinSeparation
    from antiphase._optimize import optimize

    options = {"buffers": buffers} if buffers else {}
    start = time.perf_counter()
    found = optimize("blt", steps=n, participation=MinSeparation(separation, count), objective=objective, **options)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "buffers": found.strategy.buffers, "loss": found.loss}))


def run(*arguments: int | str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.optimize_blt", "--case", *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(cache))
    return json.loads(done.stdout)


def compared() -> None:
    rows = []
    for n, separation, count, objective in CASES:
        ours = run(n, separation, count, objective, 0)
        theirs = peer("optimize_blt", str(n), str(separation), str(count), "mean" if objective == "rms" else "max")
        same = run(n, separation, count, objective, theirs["buffers"]) if theirs else ours
        rows.append(
            [
                f"{n}, {separation}, {count}, {objective}",
                f"{ours['buffers']} / {theirs['buffers']}",
                readable(ours["seconds"]),
                readable(theirs["seconds"]),
                f"{theirs['seconds'] / ours['seconds']:,.0f}",
                f"{ours['loss']:.7f}",
                f"{same['loss']:.7f}",
                f"{theirs['loss']:.7f}",
            ]
        )
    columns = [
        "steps, separation, count",
        "buffers",
        "antiphase",
        "jax_privacy",
        "times faster",
        "loss",
        "same buffers",
        "jax_privacy",
    ]
    print_table("BLT: to convergence, buffers chosen by the optimiser", columns, rows)
    print("goals: at least 100 times faster, and no larger loss\n")


def large() -> None:
    rows = []
    for n, separation, count, objective in LARGE:
        found = run(n, separation, count, objective, 0)
        size = f"{n:,}, {separation:,}, {count}, {objective}"
        rows.append([size, str(found["buffers"]), f"{found['loss']:.5f}", readable(found["seconds"])])
    print_table("BLT: many steps", ["steps, separation, count", "buffers", "loss", "time"], rows)


def curvatures_case(n: int, buffers: int) -> None:
    """Time the optimiser for the rms error and for the last iterate with 25 curvatures, and print JSON.

    The first call, which compiles, is not timed.
    """
    from antiphase import Curvatures, FixedEpochs, Momentum, PrefixSum, schedules
    from antiphase._optimize import optimize

    out = {}
    options = {"buffers": buffers} if buffers else {}
    promise = FixedEpochs(n // 20, 20)
    workloads = {"prefix sum": PrefixSum(), "momentum": Momentum(0.9), "schedule": Momentum(0.9, schedules.linear(n))}
    for name, workload in workloads.items():
        for kind, objective in (("rms", "rms"), ("curvatures", Curvatures.log_uniform(1e-3, 1.0))):
            given = {"steps": n, "participation": promise, "workload": workload, "objective": objective, **options}
            optimize("blt", max_iterations=1, **given)
            start = time.perf_counter()
            found = optimize("blt", **given)
            out[f"{name}, {kind}"] = (time.perf_counter() - start, found.strategy.buffers)
    print(json.dumps(out))


def curvatures() -> None:
    n, rows = sized(2000, 40), []
    for buffers in sized((0, 3), (1,)):
        with tempfile.TemporaryDirectory() as cache:
            command = [sys.executable, "-m", "benchmarks.optimize_blt", "--curvatures", str(n), str(buffers)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(cache))
        found = json.loads(done.stdout)
        for name in ("prefix sum", "momentum", "schedule"):
            (rms, few), (mixed, many) = found[f"{name}, rms"], found[f"{name}, curvatures"]
            rows.append([name, f"{few} / {many}", readable(rms), readable(mixed), f"{mixed / rms:.1f}"])
    columns = ["workload", "buffers", "rms", "25 curvatures", "ratio"]
    print_table(f"BLT: time for the last iterate with 25 curvatures and for the rms error, {n:,} steps", columns, rows)
    print("goal: at most 3 times as long\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--curvatures"]:
        curvatures_case(int(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["--case"]:
        n, separation, count = map(int, sys.argv[2:5])
        case(n, separation, count, sys.argv[5], int(sys.argv[6]))
    else:
        compared()
        large()
        curvatures()
