"""Estimators of delta: a weight for each sample, with mean delta and a bound that no weight exceeds.

In both directions the weight of a sample is

    W = exp(ratio) D(epsilon + shift),        ratio <= log_factor + slope * shift,

where D is the Gaussian mechanism with the squared distance rho, and ratio and shift do not depend on epsilon. Hence
0 <= W <= c = exp(log_factor) sup_y exp(slope y) D(epsilon + y), and delta = E W <= c as well.

Rounding: weights are computed for an epsilon smaller by `loss_error`, and c is enlarged by exp(`allowance`); see
`rounding.py`. Then delta <= c (E share + `bias`) for shares of c as they come out.
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

PIECE = 1 << 18
LARGEST_LOG = 700.0
SLOPES = [0.01 * 1.1**i for i in range(145)]  # to 9,100


@dataclass(frozen=True)
class Draws:
    """The two numbers kept per sample."""

    ratios: Array
    shifts: Array


class Estimator(ABC):
    """A way to draw samples, with the three numbers that bound their weights, and three that bound rounding errors."""

    rho: float
    slope: float
    log_factor: float
    loss_error: float
    ratio_error: float
    bias: float

    @property
    @abstractmethod
    def width(self) -> int:
        """How many numbers each sample holds while it is drawn."""

    @property
    def piece(self) -> int:
        """How many samples to draw at once: few enough to stay in a processor's cache."""
        return max(1, PIECE // self.width)

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` independent samples."""


def log_bound(estimator: Estimator, epsilon: float) -> float:
    """log c."""
    return estimator.log_factor + log_envelope(estimator.slope, estimator.rho) - estimator.slope * epsilon


def allowance(estimator: Estimator) -> float:
    """Return by how much the computed logarithms of a weight and of c may be too small."""
    return estimator.ratio_error + float(divergence_error(estimator.rho))


def ceiling(estimator: Estimator, epsilon: float) -> float:
    """c, rounded up: delta is at most c. At least UNDERFLOW."""
    log_c = log_bound(estimator, epsilon - estimator.loss_error) + allowance(estimator)
    return max(math.exp(min(log_c, LARGEST_LOG)), UNDERFLOW)


def best_slope(bound: Callable[[float], float]) -> float:
    """Return the slope of a grid with the smallest bound, which is convex; a grid reuses the envelopes."""
    low, high = 0, len(SLOPES) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(SLOPES[middle]) <= bound(SLOPES[middle + 1]) else (middle + 1, high)
    return SLOPES[low]


def log_weights(estimator: Estimator, draws: Draws, epsilon: float) -> Array:
    """Return log W. A weight above its bound is a defect and raises."""
    room = estimator.log_factor + estimator.slope * draws.shifts - draws.ratios
    if not (room >= 0.0).all():
        raise AntiphaseError(
            f"A weight exceeds its proved bound by a factor of exp({-room.min()}).",
            hint="this is a defect of the library: please report it with the Gram matrix and the noise",
        )
    return draws.ratios + log_divergence(epsilon + draws.shifts, estimator.rho)
