"""Dominating pairs. A dominating pair is a pair of distributions whose divergence bounds the delta of a mechanism.

The delta of the pair is estimated as the mean weight of random samples (`estimator.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from antiphase._montecarlo.estimator import Estimator
from antiphase._montecarlo.pilot import Effort, Pilot


@dataclass(frozen=True)
class Upper:
    """A proved upper bound on the delta of a mechanism, for both removal and addition.

    Args:
        value: the bound.
        method: short description of how the bound was computed.
        reference: author, year, theorem.
        is_of_pair: True if the bound also holds for the delta of the dominating pair, the number that is estimated from
            samples. Only then may estimates be checked against the bound. False if the bound is the delta of a Gaussian
            mechanism with sensitivity sens(C): if C has negative entries, the delta of the pair can be larger than this
            bound.
    """

    value: float
    method: str
    reference: str
    is_of_pair: bool = True


class Pair(ABC):
    """A pair of distributions P and Q at one noise level.

    Delta is the larger of two hockey-stick divergences: P against Q (removal) and Q against P (addition).

    Attributes:
        noise_std: standard deviation of the noise.
        tight: True if `upper` is accurate, so that no samples are needed.
        pilot: number of samples of a pilot run, which chooses an estimator (see `pilot.py`).
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
        """Return the pair of the same mechanism with a different noise level."""

    @property
    @abstractmethod
    def outward(self) -> Self:
        """The pair to use in certificates: its delta is at least the exact delta of this pair, despite rounding."""

    @abstractmethod
    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return a bound on delta that needs no samples. With `fine=False`, it is faster to compute, but looser."""

    def least(self, epsilon: float, samples: int, log_inverse: float) -> float:
        """Return a number that no confidence limit on delta from this many samples can be below; 0 if unknown.

        If all weights of the samples are 0, the limit is close to this number. `log_inverse` is
        log(1 / failure probability).
        """
        return 0.0

    @abstractmethod
    def plain(self) -> tuple[Estimator, Estimator]:
        """Return estimators for removal and addition that sample P and Q directly. All weights are at most 1."""

    @abstractmethod
    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return estimators for removal and addition that are good enough for the searches in `search.py`."""

    @abstractmethod
    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return pilot runs of the best estimators for removal and addition."""
