"""Estimates delta for the addition of an example, with samples shifted away from a weighted mean of the modes.

The output of balls-in-bins is a mixture of one Gaussian for each bin i, whose mean is called mode i. Here m_i is the
rest of mode i: what remains after the part common to all modes is subtracted (`split.py`). For probabilities p_i and
s >= 0, draw x ~ N(-s m, I) with m = sum_i p_i m_i. If Y is the log-likelihood ratio of the mixture mean_i N(m_i, I)
against N(0, I) at x, the weight of the sample x is D(epsilon + Y) times exp(s <m, x> + s^2 |m|^2 / 2), with D as in
`estimator.py`. This weight is bounded, because Jensen's inequality gives
<m, x> <= Y + sum_i p_i |m_i|^2 / 2 + KL(p || uniform).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.estimator import Draws, Estimator
from antiphase._montecarlo.gaussian import MARGIN
from antiphase._montecarlo.rounding import modes_error
from antiphase._montecarlo.split import Split


@dataclass(frozen=True)
class Tilt(Estimator):
    """Estimator of delta for N(0, I) against mean_i N(m_i, I).

    Args:
        split: the modes, divided by noise_std (see `split.py`).
        slope: s >= 0; 0 samples N(0, I) without a shift.
        weights: probabilities p_i, one for each mode.
    """

    split: Split
    slope: float
    weights: Array

    bias = 0.0  # only Gaussian numbers are drawn, no indices or patterns

    @property
    def rho(self) -> float:  # type: ignore[override]
        """Squared length of the common part of the modes."""
        return self.split.rho

    @cached_property
    def log_factor(self) -> float:  # type: ignore[override]
        """s^2 |m|^2 / 2 + s (sum_i p_i |m_i|^2 / 2 + KL(p || uniform))."""
        return log_tilt_factor(self.split, self.slope, self.weights) + MARGIN

    @property
    def loss_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of <rest_j, x> - |rest_j|^2 / 2 for any sample x and bin j."""
        return modes_error(self.split.bins, self.split.largest, self.slope + 1.0)

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding errors of s <m, x> + s^2 |m|^2 / 2 and of `log_factor`."""
        return 2.0 * (self.slope + 1.0) * self.loss_error

    @property
    def width(self) -> int:
        """Number of bins, b."""
        return self.split.bins

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` samples of noise shifted by -s m."""
        return self.draw_modes(rng, count)[0]

    def draw_modes(self, rng: np.random.Generator, count: int) -> tuple[Draws, Array]:
        """Draw samples as `draw` does. Also return the log-likelihood ratio of every mode, shape (count, bins)."""
        from antiphase._kernels import bins_log_means

        mean = self.weights @ self.split.root
        x = rng.standard_normal((count, len(mean))) - self.slope * mean
        losses, none = np.empty(count), np.empty((count, 0), dtype=np.int32)
        modes = x @ self.split.root.T
        bins_log_means(modes, self.split.rest, none, self.split.half, losses)
        return Draws(self.slope * (x @ mean) + self.slope**2 * (mean @ mean) / 2.0, losses), modes


def log_tilt_factor(split: Split, slope: float, weights: Array) -> float:
    """Return an upper bound on s <m, x> + s^2 |m|^2 / 2 - s Y over all x, for s = slope (see the module docstring)."""
    positive = weights[weights > 0.0]
    divergence = float(positive @ np.log(positive)) + math.log(split.bins)
    return float(slope**2 * (weights @ split.rest @ weights) / 2.0 + slope * (weights @ split.half + divergence))


def best_weights(split: Split, slope: float) -> Array:
    """Return probabilities p_i of the modes that nearly minimize `log_tilt_factor`, which is convex in p.

    Uses mirror descent from equal probabilities.
    """
    equal = weights = np.full(split.bins, 1.0 / split.bins)
    rate = 1.0 / (1.0 + slope * float(np.abs(split.rest).sum(axis=1).max()))
    for _ in range(100):
        logs = (1.0 - rate) * np.log(weights) - rate * (split.half + slope * (split.rest @ weights))
        weights = np.exp(logs - logs.max())
        weights = np.maximum(weights / weights.sum(), 1e-300)
    weights /= weights.sum()
    return min(equal, weights, key=lambda p: log_tilt_factor(split, slope, p))
