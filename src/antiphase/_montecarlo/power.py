"""Estimates delta for the removal of an example, with samples reweighted by a power of the likelihood ratio.

This is one of two estimators for removal; the other one is in `cores.py`. The power is an integer, alpha >= 1.

The output of balls-in-bins is a mixture of one Gaussian for each of b bins. The mean of such a Gaussian is called a
mode. Here m_i is the rest of mode i: what remains after the part common to all modes is subtracted (`split.py`). K is
the Gram matrix of the rests, and Y is the log-likelihood ratio of the mixture mean_i N(m_i, I) against N(0, I).

The measure exp(alpha Y) N(0, I) is a mixture of N(sum_k m_{i_k}, I) over tuples of bins (i_1, ..., i_alpha), with
weights b^-alpha exp(sum_{k<l} K_{i_k i_l}). The indices i_k are drawn one after another. Index j is drawn with
probability proportional to e_j = exp((K n)_j), where n_i counts how often index i was drawn so far. The probability of
drawing a tuple is its weight divided by the product of mean_j e_j over all draws. Each factor mean_j e_j is convex in
n. Over all n with sum k, it is therefore largest if one index was drawn k times.
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
    """Estimator of delta for mean_i N(m_i, I) against N(0, I).

    Args:
        split: the modes, divided by noise_std (see `split.py`).
        alpha: the power of the likelihood ratio, at least 1. With alpha = 1, samples are drawn from the mixture itself.
    """

    split: Split
    alpha: int

    @property
    def rho(self) -> float:  # type: ignore[override]
        """Squared length of the common part of the modes."""
        return self.split.rho

    @property
    def slope(self) -> float:  # type: ignore[override]
        """The factor `slope` in the bound on the ratio (see `estimator.py`), alpha - 1."""
        return self.alpha - 1.0

    @cached_property
    def log_factor(self) -> float:  # type: ignore[override]
        """The sum over k < alpha of log max_i mean_j exp(k K_ij)."""
        return log_factor(self.split, self.alpha)

    @property
    def loss_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of <rest_j, x> - |rest_j|^2 / 2 for any sample x and bin j."""
        return modes_error(self.split.bins, self.split.largest, self.alpha)

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of the ratio, the sum of the logs of alpha means minus (alpha - 1) * loss."""
        return 2.0 * self.alpha * self.loss_error

    @property
    def bias(self) -> float:  # type: ignore[override]
        """Bound on how much rounding of the drawing probabilities changes the samples, in total variation distance."""
        return 8.0 * UNIT * self.split.bins * (self.alpha + 2.0)

    @cached_property
    def _factors(self) -> Array:
        return np.exp(self.split.rest)

    @property
    def width(self) -> int:
        """Number of bins, b."""
        return self.split.bins

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` samples: for each, alpha indices one after another, then noise around the sum of their m_i."""
        return self.draw_modes(rng, count)[0]

    def draw_modes(self, rng: np.random.Generator, count: int) -> tuple[Draws, Array]:
        """Draw samples as `draw` does. Also return the log-likelihood ratio of every mode, shape (count, bins)."""
        from antiphase._kernels import draw_powers

        indices, log_ratios = np.empty((count, self.alpha), dtype=np.int32), np.zeros(count)
        if self.alpha == 1:
            indices[:, 0] = rng.integers(self.split.bins, size=count)
        else:
            draw_powers(self._factors, rng.random((count, self.alpha)), indices, log_ratios)
        losses, modes = noisy_losses(self.split, indices, rng)
        return Draws(log_ratios - self.slope * losses, -losses), modes


def log_factor(split: Split, alpha: int) -> float:
    """Return the sum over k < alpha of log max_i mean_j exp(k K_ij), or infinity if exponentials would overflow."""
    known = split.known_factors
    while len(known) < alpha:
        k = len(known)
        if (k + 1) * split.rest.max() > LARGEST_EXPONENT:
            return math.inf
        known.append(known[-1] + math.log(np.exp(k * split.rest).mean(axis=1).max()))
    return known[alpha - 1] + MARGIN


def noisy_losses(split: Split, indices: Indices, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return log mean_j exp(r_j) for each sample, and the r_j themselves, shape (samples, bins).

    r_j = <rest_j, x> - |rest_j|^2 / 2, where x is noise plus the sum of the rests at the indices of the sample.
    """
    from antiphase._kernels import bins_log_means

    noise = rng.standard_normal((len(indices), split.root.shape[1])) @ split.root.T
    out = np.empty(len(indices))
    bins_log_means(noise, split.rest, indices, split.half, out)
    return out, noise
