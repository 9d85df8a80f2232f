"""Dominating pair of a mechanism: two distributions whose divergence bounds its delta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from antiphase._montecarlo.estimator import Estimator
from antiphase._montecarlo.pilot import Effort, Pilot


@dataclass(frozen=True)
class Upper:
    """A proved upper bound on delta in both directions.

    Args:
        value: the bound.
        method: short description of how it was computed.
        reference: author, year, theorem.
    """

    value: float
    method: str
    reference: str


class Pair(ABC):
    """Distributions P and Q at one noise level. delta is the larger of P against Q (remove) and Q against P (add).

    `tight`: whether the upper bound is accurate, so that no samples are needed. `pilot`: number of samples of a pilot
    run. `samples`: default number of samples, for about half a minute on two cores. `reference`: the theorem that
    proves that the pair dominates.
    """

    noise_std: float
    tight: bool
    pilot: int
    samples: int
    reference: str

    @abstractmethod
    def at(self, noise_std: float) -> Self:
        """Return the pair of the same mechanism with another noise level."""

    @property
    @abstractmethod
    def outward(self) -> Self:
        """A pair whose delta is at least that of this pair before rounding; certificates use it."""

    @abstractmethod
    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return a bound that needs no samples; if `fine` is false, a faster and looser one."""

    def least(self, epsilon: float, samples: int, log_inverse: float) -> float:
        """Return a lower bound on the confidence limit, reached if no sample has a positive weight; 0 if unknown."""
        return 0.0

    @abstractmethod
    def plain(self) -> tuple[Estimator, Estimator]:
        """Return untilted estimators for removal and addition, which sample P and Q; their weights are at most 1."""

    @abstractmethod
    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return estimators for removal and addition that are good enough to search with."""

    @abstractmethod
    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return the best pilot runs for removal and addition."""
