"""The dominating pair of a mechanism: two distributions whose divergence bounds its delta."""

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
        method: how it was computed, in a few words.
        reference: author, year, theorem.
    """

    value: float
    method: str
    reference: str


class Pair(ABC):
    """P and Q at one noise: delta is that of P against Q (remove) and of Q against P (add), whichever is larger.

    `tight`: the upper bound is accurate, so that there is no need for samples. `pilot`: samples of a pilot run.
    `samples`: about as many as half a minute on two cores allows. `reference`: the theorem by which the pair dominates.
    """

    noise_std: float
    tight: bool
    pilot: int
    samples: int
    reference: str

    @abstractmethod
    def at(self, noise_std: float) -> Self:
        """The same mechanism with other noise."""

    @property
    @abstractmethod
    def outward(self) -> Self:
        """A pair with at least the same delta, also where this one is rounded down: what is certified."""

    @abstractmethod
    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """A bound that needs no samples; without `fine` a quicker one."""

    def least(self, epsilon: float, samples: int, log_inverse: float) -> float:
        """What a confidence limit comes to even if no sample has a weight, as far as is known beforehand."""
        return 0.0

    @abstractmethod
    def plain(self) -> tuple[Estimator, Estimator]:
        """For removing and for adding, samples of P and Q as they are: weights up to 1, whatever delta is."""

    @abstractmethod
    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """For removing and for adding, good enough to search with."""

    @abstractmethod
    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """For removing and for adding, the best that pilot runs find."""
