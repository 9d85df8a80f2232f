"""Poisson-sampled Gaussian steps, with or without a largest batch size.

Truncation. Of a batch with more than `max_batch` members a uniformly random subset is kept, so an example that is
sampled can push another one out, also where it contributes zero. Let K be the number of other members sampled. If
K < max_batch nothing is pushed out and the step is plain Poisson sampling. If K >= max_batch, compare with the uniform
subset of the others that is kept without the example: with probability at most `rate` the example takes the place of a
member of it, which moves the sum by at most 2 where it contributes, by at most 1 where it is zeroed out, and the two
differ by at most 1. That is a substitution with a shift of at most 2 mu. K does not depend on the example, so the step
is a mixture of the two cases, with the probability of K >= max_batch as weight.

Reference: arXiv:2508.15089 (truncated Poisson sampling), for the same two cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

from antiphase._accounting import gaussian, loss_accountant
from antiphase._accounting.loss_accountant import COARSE, FINE, GaussianSteps
from antiphase._accounting.release import Release
from antiphase._errors import NotProved

FAILURE_SHARE = 1e-3  # of delta, for groups that are larger than assumed
SMALLEST_FAILURE = 1e-30


@final
@dataclass(frozen=True)
class Truncation:
    """Truncation of batches to a largest size.

    Args:
        examples: upper bound on the number of examples.
        groups: number of groups, of which each example draws one.
        max_batch: largest batch size.
    """

    examples: int
    groups: int
    max_batch: int

    def overflow(self, rate: float, failure: float) -> float:
        """The probability that max_batch or more other members are sampled.

        It holds for all groups up to a size that an example's own group exceeds with probability `failure`.
        """
        return at_least(self.max_batch, self._others(failure), rate)

    def _others(self, failure: float) -> int:
        """The number of other members of an example's group, exceeded with probability at most `failure`."""
        low, high = -1, self.examples - 1
        while self.groups > 1 and high - low > 1:
            middle = (low + high) // 2
            exceeded = at_least(middle + 1, self.examples - 1, 1.0 / self.groups) > failure
            low, high = (middle, high) if exceeded else (low, middle)
        return high


@final
@dataclass(frozen=True)
class PoissonSampled(Release):
    """`count` Gaussian mechanisms, each on a sample that holds an example with probability `rate`.

    **Guarantee**: an upper bound, for zero-out and add-or-remove alike: under both the example joins with its own
    coin and everything else stays, so the pair is (1 - rate) N(0) + rate N(mu) against N(0), in both directions.
    """

    rate: float
    count: int
    truncation: Truncation | None = None
    resolution: float = FINE

    method = "privacy loss distribution"

    def epsilon(self, delta: float) -> float:
        """By privacy losses."""
        part, failure = self.loss_part(FAILURE_SHARE * delta)
        return loss_accountant.epsilon([part], delta - failure, self.resolution)

    def delta(self, epsilon: float) -> float:
        """By privacy losses."""
        part, failure = self.loss_part(SMALLEST_FAILURE)
        return min(1.0, loss_accountant.delta([part], epsilon, self.resolution) + failure)

    def dp_event(self) -> Any:
        """A self-composed PoissonSampledDpEvent, or TruncatedSubsampledGaussianDpEvent for one group."""
        import dp_accounting
        from dp_accounting import dp_event

        if self.truncation is None:
            sampled: Any = dp_event.PoissonSampledDpEvent(self.rate, dp_event.GaussianDpEvent(self.multiplier))
        elif self.truncation.groups == 1:
            sampled = dp_event.TruncatedSubsampledGaussianDpEvent(
                self.truncation.examples, self.rate, self.truncation.max_batch, self.multiplier
            )
        else:
            raise NotProved(
                "dp_accounting has no event for truncated batches from groups of random size.",
                hint="use antiphase.epsilon, or a participation without max_batch",
            )
        return dp_accounting.SelfComposedDpEvent(sampled, self.count)

    def chance(self) -> float:
        """That of a coin that falls the right way in any step."""
        return at_least_once(self.rate, self.count)

    def guess(self, epsilon: float, delta: float) -> float:
        """From the central limit."""
        return central_limit(epsilon, delta, self.rate, self.count)

    def coarse(self) -> PoissonSampled:
        """With a wide grid."""
        return replace(self, resolution=COARSE)

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float]:
        """The steps with the probability that a batch overflows; only groups of random size need a failure."""
        overflow = 0.0
        if self.truncation is None or self.truncation.groups == 1:
            failure = 0.0
        if self.truncation is not None:
            overflow = self.truncation.overflow(self.rate, failure)
        return GaussianSteps(1.0 / self.multiplier, self.rate, self.count, overflow=overflow), failure


def central_limit(epsilon: float, delta: float, rate: float, count: int) -> float:
    """The multiplier m at which sampled steps are nearly one Gaussian with mu^2 = rate^2 count (e^(1/m^2) - 1).

    Reference: Bu et al. 2020.
    """
    mu = gaussian.shift(epsilon, delta)
    return 1.0 / math.sqrt(math.log1p(min(mu / rate, 1e150) ** 2 / count))


def at_least_once(rate: float, count: int) -> float:
    """1 - (1 - rate)^count."""
    return -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0


def at_least(successes: int, trials: int, rate: float) -> float:
    """The probability of at least so many successes, with room for rounding."""
    from scipy.special import betainc

    if successes > trials:
        return 0.0
    return min(1.0, float(betainc(successes, trials - successes + 1, rate)) * (1.0 + 1e-9))
