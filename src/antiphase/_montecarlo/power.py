"""Removal, first estimator: samples tilted by an integer power of the likelihood ratio.

exp(alpha Y) N(0, I) is a mixture over index tuples (i_1, ..., i_alpha) of N(sum_k m_{i_k}, I) with weights
b^-alpha exp(sum_{k<l} K_{i_k i_l}), here for the rests of the modes. Draw the indices one after the other, each with
probability proportional to e_j = exp((K n)_j), where n are the counts so far. Tuples then have exactly these weights,
up to the product of the mean_j e_j. Such a mean is convex in n, so over all n with k indices it is largest if all k
indices are equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._montecarlo.estimator import Draws, Estimator
from antiphase._montecarlo.gaussian import MARGIN
from antiphase._montecarlo.rounding import UNIT, modes_error
from antiphase._montecarlo.split import Split

Indices = NDArray[np.int32]
LARGEST_EXPONENT = 600.0


@dataclass(frozen=True)
class Power(Estimator):
    """Estimator of delta of mean_i N(m_i, I) against N(0, I).

    Args:
        split: the modes.
        alpha: the power, at least 1; 1 samples the first distribution without a tilt.
    """

    split: Split
    alpha: int

    @property
    def rho(self) -> float:  # type: ignore[override]
        """Squared length of the common part of the modes."""
        return self.split.rho

    @property
    def slope(self) -> float:  # type: ignore[override]
        """alpha - 1."""
        return self.alpha - 1.0

    @cached_property
    def log_factor(self) -> float:  # type: ignore[override]
        """The sum over k < alpha of log max_i mean_j exp(k K_ij)."""
        return log_factor(self.split, self.alpha)

    @property
    def loss_error(self) -> float:  # type: ignore[override]
        """Error of <rest_j, x> - |rest_j|^2 / 2."""
        return modes_error(self.split.bins, self.split.largest, self.alpha)

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Error of alpha means of exponentials and of the loss, which counts alpha - 1 times."""
        return 2.0 * self.alpha * self.loss_error

    @property
    def bias(self) -> float:  # type: ignore[override]
        """Rounding of the boundaries between indices: a few units each."""
        return 8.0 * UNIT * self.split.bins * (self.alpha + 2.0)

    @cached_property
    def _factors(self) -> Array:
        return np.exp(self.split.rest)

    @property
    def width(self) -> int:
        """Number of bins, b."""
        return self.split.bins

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw indices in turn, then noise around the sum of their modes."""
        return self.draw_modes(rng, count)[0]

    def draw_modes(self, rng: np.random.Generator, count: int) -> tuple[Draws, Array]:
        """Draw as `draw` does; also return the log-likelihood ratio of every mode."""
        from antiphase._kernels import draw_powers

        indices, log_ratios = np.empty((count, self.alpha), dtype=np.int32), np.zeros(count)
        if self.alpha == 1:
            indices[:, 0] = rng.integers(self.split.bins, size=count)
        else:
            draw_powers(self._factors, rng.random((count, self.alpha)), indices, log_ratios)
        losses, modes = noisy_losses(self.split, indices, rng)
        return Draws(log_ratios - self.slope * losses, -losses), modes


def log_factor(split: Split, alpha: int) -> float:
    """Return the sum over k < alpha of log max_i mean_j exp(k K_ij); infinite if exponentials would overflow."""
    known = split.known_factors
    while len(known) < alpha:
        k = len(known)
        if (k + 1) * split.rest.max() > LARGEST_EXPONENT:
            return math.inf
        known.append(known[-1] + math.log(np.exp(k * split.rest).mean(axis=1).max()))
    return known[alpha - 1] + MARGIN


def noisy_losses(split: Split, indices: Indices, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return log mean_j exp(r_j), and r: r_j = <rest_j, x> - |rest_j|^2 / 2, where x = noise + rests of the indices."""
    from antiphase._kernels import bins_log_means

    noise = rng.standard_normal((len(indices), split.root.shape[1])) @ split.root.T
    out = np.empty(len(indices))
    bins_log_means(noise, split.rest, indices, split.half, out)
    return out, noise
