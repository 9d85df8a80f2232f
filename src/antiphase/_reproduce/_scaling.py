"""Scaling up banded matrix factorization: Example B.1 and Figure 2."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import antiphase as ap
from antiphase._report._chart import Chart, series
from antiphase._reproduce._registry import Picture, reproduction
from antiphase._reproduce._row import Row, claimed, drawn, printed, timed

SINGLE = ap.SingleParticipation()
DIAGONALS = (
    ("0.740", "0.822", "0.876", "0.821", "0.855", "0.882", "0.892", "0.936", "1.000"),
    ("0.500", "0.492", "0.395", "0.462", "0.442", "0.403", "0.409", "0.353"),
    ("0.450", "0.286", "0.278", "0.335", "0.272", "0.243", "0.194"),
)


@reproduction("scaling-bandmf-example-b1", "The optimal 3-banded matrix for 9 steps, entry by entry")
def example_b1(full: bool) -> Iterator[Row]:
    """C with columns of norm 1."""
    C = ap.optimize("banded", steps=9, participation=SINGLE, bands=3).strategy.encoder()
    for lag, diagonal in enumerate(DIAGONALS):
        for j, value in enumerate(diagonal):
            yield printed(f"C[{j + lag + 1}, {j + 1}]", value, float(C[j + lag, j]), "the optimum is flat")


def _losses(n: int, bands: int) -> tuple[float, float, float]:
    """Rms loss of banded, Toeplitz and column-normalised Toeplitz."""
    if bands == 1:
        return (ap.loss(ap.strategies.Identity(n), ap.PrefixSum(), SINGLE),) * 3
    find = {"steps": n, "participation": SINGLE, "bands": bands}
    banded = ap.optimize("banded", **find, max_iterations=300).loss  # type: ignore[arg-type]
    plain = ap.optimize("toeplitz", **find).loss  # type: ignore[arg-type]
    return banded, plain, ap.optimize("toeplitz", **find, column_normalized=True).loss  # type: ignore[arg-type]


@reproduction("scaling-bandmf-figure-2a", "Toeplitz against banded strategies by number of bands, n = 1024", sizes=True)
def figure_2a(full: bool) -> Iterator[Row | Picture]:
    """Up to 512 bands in the full size, 64 in the quick one."""
    bands = [1 << i for i in range(10 if full else 7)]
    yield from _ratios([(1024, b) for b in bands], bands, "bands", "n = 1024")


@reproduction("scaling-bandmf-figure-2b", "Toeplitz against banded strategies by number of steps, 16 bands", sizes=True)
def figure_2b(full: bool) -> Iterator[Row | Picture]:
    """Up to 262,144 steps in the full size, 16,384 in the quick one."""
    steps = [1 << i for i in range(4, 19 if full else 15, 2)]
    yield from _ratios([(n, 16) for n in steps], steps, "steps", "16 bands")


def _ratios(cases: list[tuple[int, int]], at: list[int], label: str, where: str) -> Iterator[Row | Picture]:
    plain, normal = [], []
    for n, bands in cases:
        banded, toeplitz, normalized = _losses(n, bands)
        plain.append(toeplitz / banded)
        normal.append(normalized / banded)
        yield drawn(f"n = {n:,}, {bands} bands", f"Toeplitz {plain[-1]:.4f}, column-normalised {normal[-1]:.4f}")
    yield Chart(
        f"Rms error relative to the optimal banded strategy, {where}",
        label,
        "ratio",
        (series("Toeplitz", at, plain), series("column-normalised", at, normal)),
        log_x=True,
    )
    share = 100 * (max(plain) - 1)
    yield claimed("Toeplitz, suboptimality", "0 to 4 %", f"at most {share:.2f} %", -0.01 <= share <= 4.0, SMALL)
    share = 100 * (max(normal) - 1)
    yield claimed("column-normalised", "0 to 2 %", f"at most {share:.2f} %", -0.01 <= share <= 2.0)
    better = all(b <= a * (1 + 1e-6) for a, b in zip(plain, normal, strict=True))
    yield claimed("normalising columns", "always better", "better or equal" if better else "sometimes worse", better)
    if label == "steps":
        share = 100 * (plain[-1] - 1)
        yield claimed(f"Toeplitz at n = {at[-1]:,}", "less than 1 %", f"{share:.3f} %", share < 1.0)


SMALL = "the largest value is where bands and steps are about equal; the paper draws n = 1024 and the trend"


@reproduction("scaling-bandmf-figure-2c", "Seconds for one iteration by number of steps, 16 bands", sizes=True)
def figure_2c(full: bool) -> Iterator[Row | Picture]:
    """The paper's machine has a V100; ours is two cores: times are shown and not compared."""
    steps = [1 << i for i in range(10, 20 if full else 17, 2)]
    banded = [_seconds("banded", n, 16) for n in steps]
    toeplitz = [_seconds("toeplitz", n, 16) for n in steps]
    yield from _times(steps, banded, toeplitz, "steps", "16 bands")
    at = steps.index(65536)
    yield timed("banded, n = 65,536", "about 100 s", f"{banded[at]:.3f} s")
    yield timed("Toeplitz, n = 65,536", "a few seconds", f"{toeplitz[at]:.5f} s")


@reproduction("scaling-bandmf-figure-2d", "Seconds for one iteration by number of bands, n = 16,384", sizes=True)
def figure_2d(full: bool) -> Iterator[Row | Picture]:
    """Up to 256 bands in the full size."""
    bands = [1 << i for i in range(1, 9 if full else 6)]
    banded = [_seconds("banded", 16384, b) for b in bands]
    toeplitz = [_seconds("toeplitz", 16384, b) for b in bands]
    yield from _times(bands, banded, toeplitz, "bands", "n = 16,384")
    faster = all(a < b for a, b in zip(toeplitz, banded, strict=True))
    yield timed("Toeplitz against banded", "far more scalable", "faster everywhere" if faster else "not")


def _seconds(family: str, n: int, bands: int) -> float:
    """Mean time of an iteration of the optimiser, the first compiled before."""
    solution = ap.optimize(family, steps=n, participation=SINGLE, bands=bands, max_iterations=5)
    return solution.seconds / max(1, solution.iterations)


def _times(
    at: list[int], banded: list[float], toeplitz: list[float], label: str, where: str
) -> Iterator[Row | Picture]:
    for x, a, b in zip(at, banded, toeplitz, strict=True):
        yield drawn(f"{x:,} {label}", f"banded {a:.4g} s, Toeplitz {b:.4g} s")
    yield Chart(
        f"Seconds for one iteration, {where}",
        label,
        "seconds",
        (series("banded", at, banded), series("Toeplitz", at, toeplitz)),
        log_x=True,
        log_y=True,
    )
    slope = float(np.polyfit(np.log(at[-4:]), np.log(banded[-4:]), 1)[0])
    yield drawn(f"banded: time grows like {label} to the power", f"{slope:.2f}")
