"""Noise and error of banded mechanisms with cyclic Poisson sampling, shared by several tables and figures.

For b bands, cyclic Poisson sampling divides the examples into b groups, which take turns. With n steps and k epochs,
each group is sampled ceil(n / b) times at rate min(1, b k / n). If the columns of C have norm 1, the required noise is
the same as for DP-SGD with ceil(n / b) steps and this sampling rate (McKenna 2024, Prop. 2.1).
"""

from __future__ import annotations

from functools import cache

import antiphase as ap
from antiphase.strategies import Identity, Strategy

MAX_BANDED_WORK = 1 << 27  # largest steps x bands^2 for which `strategy` optimises a banded C
MAX_NORMALIZED_WORK = 1 << 24  # largest steps x bands^2 for which `strategy` optimises a column-normalised Toeplitz C


@cache
def noise(epsilon: float, delta: float, steps: int, epochs: float, bands: int) -> float:
    """Return the noise standard deviation that the budget requires if the columns of C have norm 1."""
    rounds, rate = -(-steps // bands), min(1.0, bands * epochs / steps)
    participation = ap.EveryStep() if rate == 1.0 else ap.Poisson(rate)
    return ap.calibrate(Identity(rounds), participation, ap.Budget(epsilon, delta)).mechanism.noise_std


@cache
def strategy(steps: int, bands: int, exact: bool) -> Strategy:
    """Return the best banded C with columns of norm 1 if `exact`, otherwise the best column-normalised Toeplitz C.

    Column-normalised means that the columns of a Toeplitz matrix are scaled to norm 1. With too many bands, these
    optimisations take too long. The result is then a simpler C, whose error is less than 2 % larger: the best
    column-normalised Toeplitz C if `exact`, otherwise the best Toeplitz C without normalisation.
    """
    if bands == 1:
        return Identity(steps)
    single = ap.SingleParticipation()
    if exact and bands == steps:
        return ap.optimize("dense", steps=steps, participation=single).strategy
    if exact and steps * bands**2 <= MAX_BANDED_WORK:
        return ap.optimize("banded", steps=steps, participation=single, bands=bands, max_iterations=200).strategy
    scaled = exact or steps * bands**2 <= MAX_NORMALIZED_WORK
    return ap.optimize("toeplitz", steps=steps, participation=single, bands=bands, column_normalized=scaled).strategy


@cache
def error(steps: int, bands: int, exact: bool) -> float:
    """Return the rms error of prefix sums for the C that `strategy` returns, scaled to a largest column norm of 1."""
    return ap.loss(strategy(steps, bands, exact), ap.PrefixSum(), ap.SingleParticipation())


def powers(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`."""
    return [1 << i for i in range(most.bit_length())]
