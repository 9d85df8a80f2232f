"""Balls-in-bins: the dominating pair, with its estimators and bounds."""

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

LARGEST_ALPHA = 96
_PAIR = "Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2 (Lemma C.1 for negative entries)"


@dataclass(frozen=True)
class BinsPair(Pair):
    """The pair mean_i N(m_i, noise_std^2 I) and N(0, noise_std^2 I).

    Args:
        gram: Gram matrix of the modes, G.
        modes: the result of `split` for G.
        noise_std: standard deviation of the noise.
        sensitivity: sensitivity of C without amplification, or infinity if unknown. With negative entries it can be
            smaller than the largest mode.
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
        """The split modes, divided by the noise."""
        return self.modes.scaled(self.noise_std)

    @cached_property
    def _allocation(self) -> Allocation | None:
        return allocation(self.gram, self.noise_std)

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Default number of samples; fewer for many bins, where products with b x b matrices take most of the time."""
        return max(1 << 16, round((1 << 22) * min(1.0, (100.0 / len(self.gram)) ** 1.5)))

    @property
    def tight(self) -> bool:  # type: ignore[override]
        """Whether the upper bound is accurate without samples: only for orthogonal modes."""
        return self._allocation is not None

    def at(self, noise_std: float) -> BinsPair:
        """Return the pair with another noise level."""
        return replace(self, noise_std=noise_std)

    @cached_property
    def outward(self) -> BinsPair:
        """The pair with modes whose Gram matrix is nowhere smaller than the exact one, despite rounding."""
        return self if self._is_outward else replace(self, modes=self.modes.outward(self.gram), _is_outward=True)

    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return the smallest applicable bound."""
        found = [Upper(self._unamplified(epsilon), "without amplification", f"{_PAIR}; Balle and Wang 2018, Thm. 8")]
        if self._allocation is not None:
            value = max(allocation_delta(self._allocation, epsilon, FINE if fine else COARSE))
            found.append(Upper(value, "random allocation by convolution, rounded up", _PAIR))
        else:
            largest = max(ceiling(e, epsilon) for e in self.outward.estimators(epsilon))
            found.append(Upper(min(1.0, largest), "largest weight of the samples", _PAIR))
        return min(found, key=lambda upper: upper.value)

    def plain(self) -> tuple[Estimator, Estimator]:
        """Return plain samplers of N(G_i, noise_std^2 G), for a random i, and N(0, noise_std^2 G).

        These are the inner products of the output with the modes, on which alone the privacy loss depends.
        """
        whole = split(self.gram, common=False).outward(self.gram).scaled(self.noise_std)
        return Power(whole, 1), Tilt(whole, 0.0, np.full(whole.bins, 1.0 / whole.bins))

    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return the estimators with the smallest bound on their weights, without cores."""
        return Power(self.split, best_power(self.split, epsilon)), best_tilt(self.split, epsilon)

    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return pilots of the best power estimator, with or without cores, and of the best tilt."""
        addition = run_pilot(best_tilt(self.split, epsilon), epsilon, self.pilot, effort)
        return self._removal(epsilon, effort), addition

    def _removal(self, epsilon: float, effort: Effort) -> Pilot:
        alpha = best_power(self.split, epsilon)
        # A larger power has a larger bound but often a smaller variance.
        tries = sorted({min(LARGEST_ALPHA, round(alpha * factor)) for factor in (1.0, 1.2, 1.4)})
        powers = [Power(self.split, a) for a in tries if a == 1 or fits(self.split, a)]
        found = best([run_pilot(e, epsilon, self.pilot, effort) for e in powers], effort)
        if found.slack(effort) <= effort.good or self.split.bins == 1:
            return found
        cores = best_cores(self.split, epsilon, 2 * alpha + 16)
        return best([found, *(run_pilot(e, epsilon, self.pilot, effort) for e in cores)], effort)

    def _unamplified(self, epsilon: float) -> float:
        """Return the mean divergence of the modes, which bounds that of the mixture because divergences are convex.

        If the sensitivity is known, its divergence is a bound as well.
        """
        squares = np.diag(self.gram) + GRAM * np.diag(self.gram).max()
        parts = upper_divergence(epsilon, squares / self.noise_std**2)
        whole = upper_divergence(epsilon, (self.sensitivity / self.noise_std) ** 2) if self._is_signed else 1.0
        return min(float(parts.mean()), float(whole)) * (1.0 + 1e-9)

    @property
    def _is_signed(self) -> bool:
        return math.isfinite(self.sensitivity)


def bins_pair(gram: Array, noise_std: float, sensitivity: float = math.inf) -> BinsPair:
    """Return the pair whose modes have the Gram matrix `gram`."""
    return BinsPair(gram, split(gram), noise_std, sensitivity)


def best_power(split: Split, epsilon: float) -> int:
    """Return the alpha whose weights have the smallest bound, which is log-convex in alpha."""
    least, alpha = math.inf, 0
    while alpha < LARGEST_ALPHA:
        bound = log_factor(split, alpha + 1) + log_envelope(float(alpha), split.rho) - alpha * epsilon
        if not bound < least:
            break
        least, alpha = bound, alpha + 1
    return alpha


def best_tilt(split: Split, epsilon: float) -> Tilt:
    """Optimize the slope for equal weights, then the weights for that slope, then the slope for those weights."""
    slope = _best_slope(split, epsilon, np.full(split.bins, 1.0 / split.bins))
    weights = best_weights(split, slope)
    return Tilt(split, _best_slope(split, epsilon, weights), weights)


def best_cores(split: Split, epsilon: float, largest: int) -> list[Cores]:
    """Return estimators for the alpha with the smallest bound and for a slightly larger alpha.

    The core sizes are weighted by their bounds.
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
