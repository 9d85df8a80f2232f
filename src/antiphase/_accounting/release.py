"""What a run makes public, reduced to a standard mechanism whose privacy is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self, final

from antiphase._accounting import gaussian
from antiphase._accounting.loss_accountant import GaussianSteps


@dataclass(frozen=True)
class Release(ABC):
    """A standard mechanism with its noise multiplier.

    Args:
        multiplier: standard deviation of the noise over the largest change that two neighbouring data sets cause
            in what the noise is added to. For replace adjacency that change is twice a contribution.
    """

    multiplier: float

    method = ""  # how epsilon is computed, in a few words
    tight = False  # whether epsilon is exact for the standard mechanism

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return an upper bound on the smallest epsilon >= 0 at `delta`."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the smallest delta at `epsilon`."""

    @abstractmethod
    def dp_event(self) -> Any:
        """Return the mechanism as an event of dp_accounting."""

    def guess(self, epsilon: float, delta: float) -> float:
        """Return a multiplier close to the one for this budget."""
        return 1.0 / gaussian.shift(epsilon, delta)

    def coarse(self) -> Release:
        """The same mechanism with a quicker, looser epsilon."""
        return self

    def chance(self) -> float:
        """The probability that an example takes part at all: at such a delta no noise is needed."""
        return 1.0

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float] | None:
        """For composition by privacy losses: the steps, and a probability to be added to delta, at most `failure`."""
        return None

    def with_multiplier(self, multiplier: float) -> Self:
        """With more or less noise."""
        return replace(self, multiplier=multiplier)


@final
@dataclass(frozen=True)
class Gaussian(Release):
    """One Gaussian mechanism.

    Reference: Balle and Wang 2018, Thm 8.
    """

    method = "analytic Gaussian"
    tight = True

    def epsilon(self, delta: float) -> float:
        """The smallest."""
        return gaussian.epsilon(1.0 / self.multiplier, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest."""
        return gaussian.delta(1.0 / self.multiplier, epsilon)

    def dp_event(self) -> Any:
        """A GaussianDpEvent."""
        from dp_accounting import GaussianDpEvent

        return GaussianDpEvent(self.multiplier)

    def loss_part(self, failure: float) -> tuple[GaussianSteps, float]:
        """A shift that always happens."""
        return GaussianSteps(1.0 / self.multiplier, 1.0, 1), 0.0
