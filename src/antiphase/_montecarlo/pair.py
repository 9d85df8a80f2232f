"""Dominating pairs. The dominating pair of a mechanism is two distributions whose divergence bounds its delta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from antiphase._montecarlo.estimator import Estimator
from antiphase._montecarlo.pilot import Effort, Pilot


@dataclass(frozen=True)
class Upper:
    """A proved upper bound on delta, for both removal and addition.

    Args:
        value: the bound.
        method: short description of how it was computed.
        reference: author, year, theorem.
    """

    value: float
    method: str
    reference: str


class Pair(ABC):
    """A pair of distributions P and Q at one noise level.

    Delta is the larger of two divergences: P against Q (removal) and Q against P (addition).

    Attributes:
        noise_std: standard deviation of the noise.
        tight: whether the upper bound is accurate, so that no samples are needed.
        pilot: number of samples of a pilot run.
        samples: default number of samples, which take about half a minute on two cores.
        reference: the theorem that proves that the pair dominates the mechanism.
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
        """A pair whose delta is at least the delta of this pair without rounding errors. Certificates use it."""

    @abstractmethod
    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return a bound on delta that needs no samples. If `fine` is false, it is faster to compute and looser."""

    def least(self, epsilon: float, samples: int, log_inverse: float) -> float:
        """Return a lower bound on the confidence limit, nearly reached if all weights are 0. Return 0 if unknown."""
        return 0.0

    @abstractmethod
    def plain(self) -> tuple[Estimator, Estimator]:
        """Return estimators for removal and addition that sample P and Q directly. Their weights are at most 1."""

    @abstractmethod
    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return estimators for removal and addition that are good enough to search with."""

    @abstractmethod
    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return the best pilot runs for removal and addition."""
