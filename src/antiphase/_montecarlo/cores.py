"""Estimates delta for the removal of an example if the modes are nearly orthogonal.

The output of balls-in-bins is a mixture of one Gaussian for each of b bins. The mean of such a Gaussian is called a
mode. Here m_i is the rest of mode i: what remains after the part common to all modes is subtracted (`split.py`).

As in `power.py`, a sample is noise around the sum of the m_i over a tuple of bins (i_1, ..., i_alpha). The integer
alpha is the power of the likelihood ratio in `power.py`. Unlike there, this estimator draws the most frequent index of
a tuple first. Each tuple is decomposed into three parts:

1. The core: an index i that occurs most often in the tuple, namely k times. The number k is the core size. If several
   indices are tied, each of them is the core with weight 1 / #ties, where #ties is their number.
2. The positions of the core in the tuple: one of binomial(alpha, k) sets.
3. The other indices in order. Each of them occurs at most k times.

The estimator draws k with probability w_k, then the core with probability proportional to
exp(k (k - 1) |m_i|^2 / 2), and then the other indices one after another as in `power.py`. These draws exclude the core
and every index that was already drawn k times. The ratio of a tuple's weight in `power.py` to the probability that this
estimator draws the tuple is

    r = binomial(alpha, k) / (w_k #ties) * b^-k sum_i exp(k (k - 1) |m_i|^2 / 2) * prod_l (Z_l / b),

where Z_l is the sum of e_j (see `power.py`) over all indices j that are allowed at the l-th draw, or 0 if none is
allowed. The l-th draw takes each of them with a probability proportional to e_j. The bounds on Z_l in `steps.py` depend
only on k and l. The corresponding bounds in `power.py` are larger, because there one index may be drawn all alpha
times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.estimator import Draws, Estimator
from antiphase._montecarlo.gaussian import MARGIN
from antiphase._montecarlo.power import LARGEST_EXPONENT, noisy_losses
from antiphase._montecarlo.rounding import UNIT, modes_error
from antiphase._montecarlo.split import Split


@dataclass(frozen=True)
class Cores(Estimator):
    """Estimator of delta for mean_i N(m_i, I) against N(0, I), for modes with non-negative inner products.

    Args:
        split: the modes, divided by noise_std (see `split.py`).
        alpha: the power of the likelihood ratio, at least 2 (see `power.py`).
        weights: w_1, ..., w_alpha, where w_k is the probability of drawing core size k. It must be positive where
            `log_core_bounds` is finite.
        bounds: log B_1, ..., log B_alpha, from `log_core_bounds`.
    """

    split: Split
    alpha: int
    weights: Array
    bounds: Array

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
        """log max_k B_k / w_k, where `log_core_bounds` defines B_k."""
        used = np.isfinite(self.bounds)
        with np.errstate(divide="ignore"):
            return float((self.bounds[used] - np.log(self.weights[used])).max()) + MARGIN

    @property
    def loss_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of <rest_j, x> - |rest_j|^2 / 2 for any sample x and bin j."""
        return modes_error(self.split.bins, self.split.largest, self.alpha)

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of the ratio: twice that of `Power`, because there are twice as many factors."""
        return 2.0 * 2.0 * self.alpha * self.loss_error

    @property
    def bias(self) -> float:  # type: ignore[override]
        """Bound on how much rounding of the drawing probabilities changes the samples, in total variation distance."""
        return 8.0 * UNIT * (self.split.bins + self.alpha) * (self.alpha + 2.0)

    @cached_property
    def _constants(self) -> Array:
        with np.errstate(divide="ignore"):  # a core size with probability 0 is never drawn
            return _log_constants(self.split, self.alpha) - np.log(self.weights)

    @cached_property
    def _factors(self) -> Array:
        return np.exp(self.split.rest)

    @cached_property
    def _core_probabilities(self) -> Array:
        """Cumulative probabilities of the cores, indexed by [k - 1, i]."""
        exponents = _core_exponents(self.split, self.alpha)
        cumulative = np.exp(exponents - exponents.max(axis=1, keepdims=True)).cumsum(axis=1)
        return cumulative / cumulative[:, -1:]

    @property
    def width(self) -> int:
        """Number of bins, b."""
        return self.split.bins

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` samples: for each, a core, the other indices, and noise around the sum of the rests m_i."""
        from antiphase._kernels import draw_cores

        sizes = 1 + np.searchsorted(np.cumsum(self.weights) / self.weights.sum(), rng.random(count), side="right")
        cumulative, u = self._core_probabilities[sizes - 1], rng.random(count)
        cores = (cumulative <= u[:, None]).sum(axis=1)
        indices, log_ratios = np.empty((count, self.alpha), dtype=np.int32), np.empty(count)
        uniforms = rng.random((count, self.alpha))
        types = cores.astype(np.int32), sizes.astype(np.int32)
        draw_cores(self._factors, *types, uniforms, indices, log_ratios)
        losses, _ = noisy_losses(self.split, indices, rng)
        return Draws(log_ratios + self._constants[sizes - 1] - self.slope * losses, -losses)


def log_core_bounds(split: Split, steps: Array, alpha: int) -> Array:
    """Return log B_k for core sizes k = 1, ..., alpha; -inf if no tuple has that core size.

    B_k / w_k is an upper bound on the ratio r of the module docstring.

    Args:
        split: the modes, divided by noise_std (see `split.py`).
        steps: result of `log_step_bounds(split, largest)`, where `largest` is at least alpha.
        alpha: the power of the likelihood ratio (see `power.py`).
    """
    found = _log_constants(split, alpha)
    found[0] -= math.log(alpha)  # if k = 1, all alpha indices are different, so each of them is a tied core
    for k in range(1, alpha + 1):
        found[k - 1] += steps[k, : alpha - k].sum() if k < len(steps) else 0.0
        if k * split.bins < alpha:
            found[k - 1] = -math.inf
    return found


def _log_constants(split: Split, alpha: int) -> Array:
    """Return log of binomial(alpha, k) b^-k sum_i exp(k (k - 1) |m_i|^2 / 2), for k = 1, ..., alpha."""
    from scipy.special import gammaln, logsumexp

    k = np.arange(1, alpha + 1)
    ways = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
    return ways - k * math.log(split.bins) + logsumexp(_core_exponents(split, alpha), axis=1)


def _core_exponents(split: Split, alpha: int) -> Array:
    k = np.arange(1, alpha + 1)[:, None]
    return k * (k - 1) * split.half[None, :]


def fits(split: Split, alpha: int) -> bool:
    """Return True if the products of exponentials that draw the indices stay within floating-point range."""
    return alpha * float(split.rest.max()) <= LARGEST_EXPONENT
