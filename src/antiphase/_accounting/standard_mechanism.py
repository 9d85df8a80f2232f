"""Standard mechanisms with known privacy guarantees, to which other mechanisms are reduced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self, final

from antiphase._accounting import gaussian
from antiphase._accounting.loss_accountant import GaussianSteps


@dataclass(frozen=True)
class StandardMechanism(ABC):
    """A standard mechanism with its noise multiplier.

    Args:
        multiplier: standard deviation of the noise, divided by the largest change that one example can cause in the
            value to which noise is added. For replace adjacency, that change is twice the norm of a contribution.
    """

    multiplier: float

    method = ""  # short description of how epsilon is computed
    tight = False  # True if epsilon is exact for the standard mechanism

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return an upper bound on the smallest epsilon >= 0 at `delta`."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the smallest delta at `epsilon`."""

    @abstractmethod
    def dp_event(self) -> Any:
        """Return the mechanism as a dp_accounting event."""

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a noise multiplier close to the one that meets the budget (epsilon, delta)."""
        return 1.0 / gaussian.shift(epsilon, delta)

    def coarse(self) -> StandardMechanism:
        """Return the same mechanism with an accountant that is faster and gives a larger epsilon."""
        return self

    def participation_probability(self) -> float:
        """Return the probability that an example takes part at least once. A delta this large needs no noise."""
        return 1.0

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float] | None:
        """Return the steps for the privacy loss accountant and a probability, at most `failure`, to add to delta.

        Returns None if the privacy loss accountant cannot handle the mechanism.
        """
        return None

    def with_multiplier(self, multiplier: float) -> Self:
        """Return the same mechanism with a different noise multiplier."""
        return replace(self, multiplier=multiplier)


@final
@dataclass(frozen=True)
class Gaussian(StandardMechanism):
    """One Gaussian mechanism.

    Reference: Balle and Wang 2018, Thm 8.
    """

    method = "analytic Gaussian"
    tight = True

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon, rounded up."""
        return gaussian.epsilon(1.0 / self.multiplier, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta, rounded up."""
        return gaussian.delta(1.0 / self.multiplier, epsilon)

    def dp_event(self) -> Any:
        """Return a GaussianDpEvent."""
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(self.multiplier)

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float]:
        """Return a single step with rate 1, and 0 as its failure probability."""
        return GaussianSteps(1.0 / self.multiplier, 1.0, 1), 0.0
