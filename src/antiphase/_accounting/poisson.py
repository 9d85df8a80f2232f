"""Poisson-sampled Gaussian steps, with or without a maximum batch size.

**Truncation.** If more than `max_batch` examples are sampled, the batch is a uniformly random subset of them. A sampled
example can therefore displace another one, even if its own contribution is zero. Let K be the number of other examples
that are sampled.

- If K < max_batch, no example is displaced, and the step is plain Poisson sampling.
- If K >= max_batch, the batch without the given example is a uniform subset of these K examples. If the given example
  is in the data set, it replaces a member of that subset with probability at most `rate`. For contributions of norm at
  most 1, the replacement moves the sum by at most 2 if the example contributes, and by at most 1 if it is zeroed out.
  The two moved sums differ by at most 1. This is the pair `substitution` of `loss_grid.py` with a shift of at most
  2 mu.

K does not depend on the given example, so the step is a mixture of the two cases, with weights Pr(K < max_batch) and
Pr(K >= max_batch).

Reference: arXiv:2508.15089 (truncated Poisson sampling), which distinguishes the same two cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, final

from antiphase._accounting import gaussian, loss_accountant
from antiphase._accounting.loss_accountant import COARSE, FINE, GaussianSteps
from antiphase._accounting.standard_mechanism import StandardMechanism
from antiphase._errors import NotProved

FAILURE_SHARE = 1e-3  # share of delta reserved for the event that a random group is larger than assumed
SMALLEST_FAILURE = 1e-30


@final
@dataclass(frozen=True)
class Truncation:
    """Truncation of batches to a maximum size.

    Args:
        examples: upper bound on the number of examples.
        groups: number of groups. Each example is assigned to a random group.
        max_batch: maximum batch size.
    """

    examples: int
    groups: int
    max_batch: int

    def overflow(self, rate: float, failure: float) -> float:
        """Return an upper bound on the probability that max_batch or more other members of a group are sampled.

        The bound assumes a group size that a random group exceeds with probability at most `failure`.
        """
        return at_least(self.max_batch, self._others(failure), rate)

    def _others(self, failure: float) -> int:
        """Return a number that the count of other group members exceeds with probability at most `failure`."""
        low, high = -1, self.examples - 1
        while self.groups > 1 and high - low > 1:
            middle = (low + high) // 2
            exceeded = at_least(middle + 1, self.examples - 1, 1.0 / self.groups) > failure
            low, high = (middle, high) if exceeded else (low, middle)
        return high


@final
@dataclass(frozen=True)
class PoissonSampled(StandardMechanism):
    """`count` Gaussian mechanisms, each on a sample that contains each example independently with probability `rate`.

    **Guarantee**: epsilon and delta are upper bounds for zero-out and add-or-remove adjacency. Without truncation, the
    example joins each step by an independent coin flip, and nothing else changes. Each step is therefore the pair
    (1 - rate) N(0) + rate N(mu) against N(0), in both directions. Here mu is the inverse of the noise multiplier, and
    N(v) is the normal distribution with mean v and unit variance. The module docstring covers truncation.
    """

    rate: float
    count: int
    truncation: Truncation | None = None
    resolution: float = FINE

    method = "privacy loss distribution"

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon from the privacy loss accountant."""
        part, failure = self.loss_part(FAILURE_SHARE * delta)
        return loss_accountant.epsilon([part], delta - failure, self.resolution)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta from the privacy loss accountant."""
        part, failure = self.loss_part(SMALLEST_FAILURE)
        return min(1.0, loss_accountant.delta([part], epsilon, self.resolution) + failure)

    def dp_event(self) -> Any:
        """Return a self-composed PoissonSampledDpEvent or, with truncation, TruncatedSubsampledGaussianDpEvent."""
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

    def participation_probability(self) -> float:
        """Return the probability that an example is sampled in at least one step."""
        return at_least_once(self.rate, self.count)

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a first guess of the multiplier from the central limit theorem."""
        return central_limit(epsilon, delta, self.rate, self.count)

    def coarse(self) -> PoissonSampled:
        """Return the same mechanism with a coarse grid."""
        return replace(self, resolution=COARSE)

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float]:
        """Return the steps, including their overflow probability, and the failure probability to add to delta.

        The failure probability is zero unless batches are truncated and there are several groups of random size.
        """
        overflow = 0.0
        if self.truncation is None or self.truncation.groups == 1:
            failure = 0.0
        if self.truncation is not None:
            overflow = self.truncation.overflow(self.rate, failure)
        return GaussianSteps(1.0 / self.multiplier, self.rate, self.count, overflow=overflow), failure


def central_limit(epsilon: float, delta: float, rate: float, count: int) -> float:
    """Return an approximate noise multiplier m for the budget (epsilon, delta), from the central limit theorem.

    The composition of all steps is close to a single Gaussian mechanism whose shift mu satisfies
    mu^2 = rate^2 * count * (e^(1/m^2) - 1).

    Reference: Bu et al. 2020.
    """
    mu = gaussian.shift(epsilon, delta)
    return 1.0 / math.sqrt(math.log1p(min(mu / rate, 1e150) ** 2 / count))


def at_least_once(rate: float, count: int) -> float:
    """Return the probability of at least one success in `count` trials, 1 - (1 - rate)^count."""
    return -math.expm1(count * math.log1p(-rate)) if rate < 1.0 else 1.0


def at_least(successes: int, trials: int, rate: float) -> float:
    """Return the probability of at least `successes` successes in `trials` trials, rounded up."""
    from scipy.special import betainc

    if successes > trials:
        return 0.0
    return min(1.0, float(betainc(successes, trials - successes + 1, rate)) * (1.0 + 1e-9))
