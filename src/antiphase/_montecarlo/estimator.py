"""Importance-sampling estimators of delta. The weights of their samples have mean delta and a known upper bound.

For removal and for addition, the weight of a sample is

    W = exp(ratio) D(epsilon + shift),        ratio <= log_factor + slope * shift,

where D is the hockey-stick divergence of the Gaussian mechanism with squared distance rho (`gaussian.py`). In balls in
bins, the output is a mixture of Gaussians whose means are called modes, and rho is the squared length of the part that
all modes have in common (`split.py`). Otherwise, rho is 0. The ratio and the shift of a sample do not depend on
epsilon. It follows that

    0 <= W <= c = exp(log_factor) sup_y exp(slope * y) D(epsilon + y),        delta = E W <= c.

To allow for rounding errors, weights are computed at epsilon - `loss_error`, and c is multiplied by exp(`allowance`);
see `rounding.py`. The computed weights divided by c are called shares, and delta <= c (E share + `bias`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._montecarlo.gaussian import divergence_error, log_divergence, log_envelope
from antiphase._montecarlo.rounding import UNDERFLOW

PIECE = 1 << 18  # random numbers to draw at once
LARGEST_LOG = 700.0
SLOPES = [0.01 * 1.1**i for i in range(145)]  # candidates for `best_slope`, up to 9,100


@dataclass(frozen=True)
class Draws:
    """The ratio and the shift of each sample, which determine its weight at any epsilon."""

    ratios: Array
    shifts: Array


class Estimator(ABC):
    """Draws weighted samples whose mean weight is delta.

    The module docstring defines `rho`, `slope` and `log_factor`, which bound the weights. `loss_error`, `ratio_error`
    and `bias` bound rounding errors; see `rounding.py`.
    """

    rho: float
    slope: float
    log_factor: float
    loss_error: float
    ratio_error: float
    bias: float

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of values held in memory for each sample while it is drawn."""

    @property
    def piece(self) -> int:
        """Number of samples to draw at once, few enough to fit in a processor's cache."""
        return max(1, PIECE // self.width)

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` independent samples."""


def log_bound(estimator: Estimator, epsilon: float) -> float:
    """Return log c, the logarithm of the bound on the weights at epsilon."""
    return estimator.log_factor + log_envelope(estimator.slope, estimator.rho) - estimator.slope * epsilon


def allowance(estimator: Estimator) -> float:
    """Return an upper bound on how far the computed logarithms of a weight and of c can be below the exact values."""
    return estimator.ratio_error + float(divergence_error(estimator.rho))


def ceiling(estimator: Estimator, epsilon: float) -> float:
    """Return c, the bound on the weights and on delta, rounded up and at least UNDERFLOW."""
    log_c = log_bound(estimator, epsilon - estimator.loss_error) + allowance(estimator)
    return max(math.exp(min(log_c, LARGEST_LOG)), UNDERFLOW)


def best_slope(bound: Callable[[float], float]) -> float:
    """Return the slope, from a fixed grid of slopes, at which the convex function `bound` is smallest.

    The grid is fixed so that cached results of `log_envelope` can be reused.
    """
    low, high = 0, len(SLOPES) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(SLOPES[middle]) <= bound(SLOPES[middle + 1]) else (middle + 1, high)
    return SLOPES[low]


def log_weights(estimator: Estimator, draws: Draws, epsilon: float) -> Array:
    """Return log W for each draw. Raises `AntiphaseError` if a weight exceeds its bound (a bug)."""
    room = estimator.log_factor + estimator.slope * draws.shifts - draws.ratios
    if not (room >= 0.0).all():
        raise AntiphaseError(
            f"A weight exceeds its proved bound by a factor of exp({-room.min()}).",
            hint="this is a bug in antiphase; please report it with the strategy and the noise",
        )
    return draws.ratios + log_divergence(epsilon + draws.shifts, estimator.rho)
