"""Time to compute the error of banded strategies by number of steps, compared with jax_privacy's per_query_error.

Both libraries compute the error of every step in float64, for the same strategy matrix. This matrix is the square root
of the prefix-sum matrix, truncated to a number of bands, with columns scaled to norm 1. Times are for one call, without
compilation.
"""

from __future__ import annotations

import antiphase as ap
from antiphase.strategies import Banded, Toeplitz
from benchmarks._measure import growth_exponent, peer, print_table, readable, seconds, sized

SIZES = sized([2**i for i in range(10, 21)], [64, 128])
BANDS = sized((16, 64), (4,))
COMPARED = 4096


def strategy(steps: int, bands: int) -> Banded:
    coefficients = Toeplitz.square_root(steps, bands).coefficients
    return Banded(Toeplitz(coefficients, steps, column_normalized=True).columns())


def measure(bands: int) -> None:
    theirs = {row["steps"]: row for row in peer("error", str(bands), *map(str, SIZES))}
    ours, rows = [], []
    for n in SIZES:
        c = strategy(n, bands)
        ours.append(seconds(lambda c=c: ap.error(c, ap.PrefixSum()).per_step))
        rms = ap.error(c, ap.PrefixSum()).rms
        row = [f"{n:,}", f"{rms:.6f}", readable(ours[-1])]
        if n in theirs:
            other = theirs[n]
            row += [readable(other["seconds"]), f"{other['seconds'] / ours[-1]:,.0f}", f"{other['rms'] / rms - 1:+.0e}"]
        rows.append([*row, *[""] * (6 - len(row))])
    columns = ["steps", "rms error", "antiphase", "jax_privacy", "times faster", "difference"]
    print_table(f"Error of every step, banded, {bands} bands, prefix sum", columns, rows)
    print(f"growth exponent in the steps: {growth_exponent(SIZES, ours):.3f} (goal: at most 1.1)")
    if COMPARED in theirs:
        ratio = theirs[COMPARED]["seconds"] / ours[SIZES.index(COMPARED)]
        print(f"at {COMPARED:,} steps {ratio:,.0f} times faster than jax_privacy (goal: at least 100)\n")


if __name__ == "__main__":
    for bands in BANDS:
        measure(bands)
