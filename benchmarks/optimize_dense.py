"""The dense optimum: time to a certified gap, beside jax_privacy.

Ours runs until loss and lower bound agree to 0.2 %, jax_privacy for 300 iterations. Both start from nothing in a
process of their own, with an empty cache for compiled code; imports are left out.

python -m benchmarks.optimize_dense
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time

from benchmarks._measure import environment, peer, print_table, readable, sized

STEPS, EPOCHS, ITERATIONS, GAP = sized(2052, 24), sized(6, 3), 300, 0.002


def case(n: int, epochs: int, tolerance: float) -> None:
    """In a process of its own."""
    from antiphase import FixedEpochs
    from antiphase._optimize import optimize

    start = time.perf_counter()
    found = optimize("dense", steps=n, participation=FixedEpochs(epochs, n // epochs), tolerance=tolerance)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "loss": found.loss, "bound": found.lower_bound, "count": found.iterations}))


def run(*arguments: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.optimize_dense", "--case", *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(cache))
    return json.loads(done.stdout)


def main() -> None:
    theirs = peer("optimize_dense", str(STEPS), str(EPOCHS), str(ITERATIONS))
    rows = []
    for tolerance in (GAP, 1e-4):
        ours = run(STEPS, EPOCHS, tolerance)
        rows.append(
            [
                f"antiphase, gap {tolerance:.2%}",
                f"{ours['count']}",
                readable(ours["seconds"]),
                f"{theirs['seconds'] / ours['seconds']:.1f}",
                f"{ours['loss']:.5f}",
                f"{ours['loss'] / ours['bound'] - 1:.3%}",
            ]
        )
    above = theirs["loss"] / ours["bound"] - 1
    rows.append(
        ["jax_privacy", f"{ITERATIONS}", readable(theirs["seconds"]), "", f"{theirs['loss']:.5f}", f"{above:.3%}"]
    )
    columns = ["", "iterations", "time", "times faster", "rms loss", "above the bound"]
    print_table(f"Dense, {STEPS} steps, {EPOCHS} epochs, prefix sum", columns, rows)
    print(f"goal: a certified gap of {GAP:.1%} in a third of the time of jax_privacy\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        case(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    else:
        main()
