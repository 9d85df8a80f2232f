"""Gaussian steps on fixed-size samples drawn without replacement, under replace adjacency.

Consider the example that differs between two neighbouring data sets. A sample without this example is a uniform subset
of the other examples. A sample with it has the same distribution as such a subset after the example replaces a random
member. If contributions have norm at most 1, this replacement moves the sum by at most 2, for each of the two data
sets. The moved sums of the two data sets differ by at most 2. This is the pair `substitution` of `loss_grid.py` with a
shift of 2 and a rate of batch_size / group, where `group` is the number of examples from which the batch is drawn.

Fixed-size sampling is not equivalent to Poisson sampling under any adjacency: if the example is not sampled, the sample
contains one more of the other examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from antiphase._accounting import loss_accountant
from antiphase._accounting.loss_accountant import COARSE, FINE, GaussianSteps
from antiphase._accounting.poisson import at_least_once, central_limit
from antiphase._accounting.standard_mechanism import StandardMechanism


@final
@dataclass(frozen=True)
class FixedSizeSampled(StandardMechanism):
    """`count` Gaussian mechanisms, each on a uniformly random subset of `batch_size` out of `group` examples.

    **Guarantee**: epsilon and delta are upper bounds for replace adjacency. The multiplier is the standard deviation of
    the noise divided by twice the largest norm of a contribution.

    Reference: Zhu, Dong and Wang 2022, Thm 11.
    """

    batch_size: int
    group: int
    count: int
    resolution: float = FINE

    method = "privacy loss distribution"

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on epsilon from the privacy loss accountant."""
        return loss_accountant.epsilon([self.loss_part(0.0)[0]], delta, self.resolution)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta from the privacy loss accountant."""
        return loss_accountant.delta([self.loss_part(0.0)[0]], epsilon, self.resolution)

    def dp_event(self) -> Any:
        """Return a self-composed SampledWithoutReplacementDpEvent, for the RDP accountant under REPLACE_ONE."""
        from dp_accounting import dp_event

        gaussian = dp_event.GaussianDpEvent(self.multiplier)
        sampled = dp_event.SampledWithoutReplacementDpEvent(self.group, self.batch_size, gaussian)
        return dp_event.SelfComposedDpEvent(sampled, self.count)

    def participation_probability(self) -> float:
        """Return the probability that an example is sampled in at least one step."""
        return at_least_once(self.batch_size / self.group, self.count)

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a first guess of the multiplier, as for Poisson sampling."""
        return central_limit(epsilon, delta, self.batch_size / self.group, self.count)

    def coarse(self) -> FixedSizeSampled:
        """Return the same mechanism with a coarse grid."""
        return replace(self, resolution=COARSE)

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float]:
        """Return the steps for the privacy loss accountant, and a failure probability of 0."""
        return GaussianSteps(1.0 / self.multiplier, self.batch_size / self.group, self.count, substitutes=True), 0.0
