"""Pilot runs: which estimator, with which parameters, will give the smallest confidence limit.

Nothing chosen here can make a limit wrong, only wide: the choice is fixed before the samples that the limit is
computed from are drawn, and those are independent of the pilot's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.betting import best_stake
from antiphase._montecarlo.estimator import Estimator, ceiling, log_bound, log_weights
from antiphase._montecarlo.samples import draws


@dataclass(frozen=True)
class Effort:
    """How much work a certificate may take.

    Args:
        samples: most samples of a certified run.
        log_inverse: log(1 / beta), beta the failure probability of one limit.
        seed: of the pilot.
        workers: joblib's n_jobs.
        good: slack below which no better estimator is looked for.
    """

    samples: int
    log_inverse: float
    seed: np.random.SeedSequence
    workers: int = -1
    good: float = 0.01


@dataclass(frozen=True)
class Pilot:
    """Weights of a pilot run, as shares of their bound.

    Args:
        estimator: what they were drawn from.
        epsilon: of the divergence, smaller by what rounding may cost.
        bound: c, larger by what rounding may cost.
        shares: W / c.
    """

    estimator: Estimator
    epsilon: float
    bound: float
    shares: Array

    @property
    def estimate(self) -> float:
        """The estimate of delta."""
        return self.bound * float(self.shares.mean())

    @property
    def error(self) -> float:
        """The standard error of the estimate."""
        return self.bound * float(self.shares.std()) / math.sqrt(len(self.shares))

    def expected(self, samples: int, log_inverse: float) -> tuple[float, float]:
        """The best stake for `samples` samples and the limit to expect from them."""
        stake, limit = best_stake(self.shares, samples, log_inverse)
        return stake, self.bound * limit

    def slack(self, effort: Effort) -> float:
        """Relative gap between the limit and the estimate at the largest effort."""
        estimate = self.estimate
        return self.expected(effort.samples, effort.log_inverse)[1] / estimate - 1.0 if estimate > 0.0 else math.inf


def run_pilot(estimator: Estimator, epsilon: float, samples: int, effort: Effort) -> Pilot:
    """Draw the samples of a pilot run."""
    at = epsilon - estimator.loss_error
    scale = log_bound(estimator, at)
    found = draws(estimator, samples, effort.seed, effort.workers)
    shares = np.exp(log_weights(estimator, found, at) - scale)
    return Pilot(estimator, at, ceiling(estimator, epsilon), shares)


def best(pilots: Sequence[Pilot], effort: Effort) -> Pilot:
    """Return the pilot with the smallest slack. One that missed rare, large weights has a large slack by its bound."""
    return min(pilots, key=lambda pilot: pilot.slack(effort))
