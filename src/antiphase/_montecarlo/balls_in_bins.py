"""The dominating pair (see `pair.py`) of `BallsInBins`, with its estimators and bounds.

An estimator draws samples with weights. The mean weight is delta, and the weights have a proved bound (`estimator.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.allocation import COARSE, FINE, Allocation, allocation, allocation_delta
from antiphase._montecarlo.cores import Cores, fits, log_core_bounds
from antiphase._montecarlo.estimator import Estimator, best_slope, ceiling, log_bound
from antiphase._montecarlo.gaussian import log_envelope, upper_divergence
from antiphase._montecarlo.pair import Pair, Upper
from antiphase._montecarlo.pilot import Effort, Pilot, best, run_pilot
from antiphase._montecarlo.power import Power, log_factor
from antiphase._montecarlo.rounding import GRAM
from antiphase._montecarlo.split import Split, split
from antiphase._montecarlo.steps import log_step_bounds
from antiphase._montecarlo.tilt import Tilt, best_weights

LARGEST_ALPHA = 96  # largest power of the likelihood ratio that is tried (see `power.py`)
_PAIR = "Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2 (Lemma C.1 for negative entries)"


@dataclass(frozen=True)
class BinsPair(Pair):
    """The pair (P, Q) of balls-in-bins sampling.

    P is the equal-weight mixture of N(m_i, noise_std^2 I) over the bins i, and Q is N(0, noise_std^2 I). A bin is a
    step of the epoch. Its mode m_i is the sum of the columns of |C| at this step of every epoch.

    Args:
        gram: Gram matrix of the modes, G_ij = <m_i, m_j>.
        modes: the modes, each split into a common part and a rest by `split(gram)` (see `split.py`).
        noise_std: standard deviation of the noise.
        sensitivity: sens(C) for the worst bin, for a bound without amplification; infinity if unknown. If C has
            negative entries, sens(C) can be smaller than the norm of the largest mode.
    """

    gram: Array
    modes: Split
    noise_std: float
    sensitivity: float = math.inf
    _is_outward: bool = False

    pilot = 1 << 14
    reference = _PAIR

    @cached_property
    def split(self) -> Split:
        """The modes divided by noise_std, split into a common part and rests (see `split.py`)."""
        return self.modes.scaled(self.noise_std)

    @cached_property
    def _allocation(self) -> Allocation | None:
        return allocation(self.gram, self.noise_std)

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Default number of samples. It is smaller for many bins b, because products with b x b matrices are slow."""
        return max(1 << 16, round((1 << 22) * min(1.0, (100.0 / len(self.gram)) ** 1.5)))

    @property
    def tight(self) -> bool:  # type: ignore[override]
        """True if `upper` is accurate, so that no samples are needed. This holds only for orthogonal modes."""
        return self._allocation is not None

    def at(self, noise_std: float) -> BinsPair:
        """Return the pair with a different noise level."""
        return replace(self, noise_std=noise_std)

    @cached_property
    def outward(self) -> BinsPair:
        """A pair whose Gram matrix is at least the exact Gram matrix in every entry, despite rounding."""
        return self if self._is_outward else replace(self, modes=self.modes.outward(self.gram), _is_outward=True)

    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return the smallest of the proved bounds that apply."""
        reference = f"{_PAIR}; Balle and Wang 2018, Thm. 8"
        found = [
            Upper(self._unamplified(epsilon), "without amplification", reference),
            Upper(self._at_sensitivity(epsilon), "without amplification", reference, is_of_pair=False),
        ]
        if self._allocation is not None:
            value = max(allocation_delta(self._allocation, epsilon, FINE if fine else COARSE))
            found.append(Upper(value, "balls in bins with orthogonal modes, by convolution, rounded up", _PAIR))
        else:
            largest = max(ceiling(e, epsilon) for e in self.outward.estimators(epsilon))
            found.append(Upper(min(1.0, largest), "largest possible weight of a sample", _PAIR))
        return min(found, key=lambda upper: upper.value)

    def plain(self) -> tuple[Estimator, Estimator]:
        """Return estimators that sample N(G_i, noise_std^2 G), for a random row G_i of G, and N(0, noise_std^2 G).

        The first is for removal, the second for addition. The samples are the inner products of the mechanism's output
        with the modes. The privacy loss depends only on these inner products.
        """
        whole = split(self.gram, common=False).outward(self.gram).scaled(self.noise_std)
        return Power(whole, 1), Tilt(whole, 0.0, np.full(whole.bins, 1.0 / whole.bins))

    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return the `Power` (removal) and `Tilt` (addition) estimators with the smallest bounds on the weights."""
        return Power(self.split, best_power(self.split, epsilon)), best_tilt(self.split, epsilon)

    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return pilot runs of the best `Power` or `Cores` estimator for removal and the best `Tilt` for addition."""
        addition = run_pilot(best_tilt(self.split, epsilon), epsilon, self.pilot, effort)
        return self._removal(epsilon, effort), addition

    def _removal(self, epsilon: float, effort: Effort) -> Pilot:
        alpha = best_power(self.split, epsilon)
        # With a larger alpha, the bound on the weights is larger, but the variance of the weights is often smaller.
        tries = sorted({min(LARGEST_ALPHA, round(alpha * factor)) for factor in (1.0, 1.2, 1.4)})
        powers = [Power(self.split, a) for a in tries if a == 1 or fits(self.split, a)]
        found = best([run_pilot(e, epsilon, self.pilot, effort) for e in powers], effort)
        if found.slack(effort) <= effort.good or self.split.bins == 1:
            return found
        cores = best_cores(self.split, epsilon, 2 * alpha + 16)
        return best([found, *(run_pilot(e, epsilon, self.pilot, effort) for e in cores)], effort)

    def _unamplified(self, epsilon: float) -> float:
        """Return a bound on delta that does not use amplification.

        It is the mean over the modes of the divergence of N(m_i, noise_std^2 I) against N(0, noise_std^2 I). This
        bounds the divergence of the mixture, because divergences are convex.
        """
        squares = np.diag(self.gram) + GRAM * np.diag(self.gram).max()
        parts = upper_divergence(epsilon, squares / self.noise_std**2)
        return float(parts.mean()) * (1.0 + 1e-9)

    def _at_sensitivity(self, epsilon: float) -> float:
        """Return a bound on delta of a Gaussian mechanism with sensitivity `self.sensitivity`; 1 if it is unknown."""
        if not math.isfinite(self.sensitivity):
            return 1.0
        return float(upper_divergence(epsilon, (self.sensitivity / self.noise_std) ** 2)) * (1.0 + 1e-9)


def bins_pair(gram: Array, noise_std: float, sensitivity: float = math.inf) -> BinsPair:
    """Return the pair whose modes have the Gram matrix `gram`."""
    return BinsPair(gram, split(gram), noise_std, sensitivity)


def best_power(split: Split, epsilon: float) -> int:
    """Return the power alpha for which the bound on the weights of `Power` is smallest.

    Alpha is the power of the likelihood ratio in `power.py`. The bound is log-convex in alpha.
    """
    least, alpha = math.inf, 0
    while alpha < LARGEST_ALPHA:
        bound = log_factor(split, alpha + 1) + log_envelope(float(alpha), split.rho) - alpha * epsilon
        if not bound < least:
            break
        least, alpha = bound, alpha + 1
    return alpha


def best_tilt(split: Split, epsilon: float) -> Tilt:
    """Return the `Tilt` estimator with nearly the smallest bound on the weights of its samples.

    Optimizes the slope s (see `tilt.py`) for equal probabilities p_i of the modes, then the p_i for that slope, then
    the slope again.
    """
    slope = _best_slope(split, epsilon, np.full(split.bins, 1.0 / split.bins))
    weights = best_weights(split, slope)
    return Tilt(split, _best_slope(split, epsilon, weights), weights)


def best_cores(split: Split, epsilon: float, largest: int) -> list[Cores]:
    """Return `Cores` estimators for the alpha with the smallest bound on the weights and for a slightly larger alpha.

    Alpha is the power of the likelihood ratio in `power.py`. A sample of `Cores` belongs to a tuple of alpha bins (see
    `cores.py`). Its core size is how often the most frequent bin occurs in the tuple. Each core size is drawn with a
    probability proportional to its bound from `log_core_bounds`.

    Args:
        split: the modes, divided by noise_std.
        epsilon: epsilon at which delta is estimated.
        largest: largest power alpha to try.
    """
    from scipy.special import logsumexp

    largest = min(largest, LARGEST_ALPHA)
    while largest > 2 and not fits(split, largest):
        largest -= 1
    steps = log_step_bounds(split, largest)
    bounds = {alpha: log_core_bounds(split, steps, alpha) for alpha in range(2, largest + 1)}
    logs = {a: logsumexp(b) + log_envelope(a - 1.0, split.rho) - (a - 1.0) * epsilon for a, b in bounds.items()}
    alpha = min(logs, key=lambda a: logs[a])
    tries = sorted({alpha, min(largest, round(1.2 * alpha))})
    return [Cores(split, a, np.exp(bounds[a] - logsumexp(bounds[a])), bounds[a]) for a in tries]


def _best_slope(split: Split, epsilon: float, weights: Array) -> float:
    return best_slope(lambda slope: log_bound(Tilt(split, slope, weights), epsilon))
