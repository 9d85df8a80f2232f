"""Pilot runs: few samples, from which the estimator and the parameters of a confidence limit on delta are chosen.

A certified run then draws new samples and computes the limit (`certificate.py`). A bad choice can make the limit loose,
but never wrong, because the choice is made before these samples are drawn, and they are independent of the pilot run.
The slack of a pilot run is the relative amount by which the limit is expected to exceed the estimate of delta.
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
    """Limits on the work for a confidence limit, its failure probability, and the seed of its pilot run.

    Args:
        samples: maximum number of samples of a certified run.
        log_inverse: log(1 / beta), where beta is the failure probability of one limit.
        seed: seed of the pilot run.
        workers: joblib's n_jobs.
        good: the search for a better estimator stops once the slack is below this value.
    """

    samples: int
    log_inverse: float
    seed: np.random.SeedSequence
    workers: int = -1
    good: float = 0.01


@dataclass(frozen=True)
class Pilot:
    """A pilot run: its estimator, and the weights of its samples. The mean weight estimates delta.

    Args:
        estimator: estimator that drew the samples.
        epsilon: epsilon at which delta is estimated, reduced to allow for rounding.
        bound: bound on the weights, c, increased to allow for rounding.
        shares: weights divided by their bound, W / c.
    """

    estimator: Estimator
    epsilon: float
    bound: float
    shares: Array

    @property
    def estimate(self) -> float:
        """Estimate of delta."""
        return self.bound * float(self.shares.mean())

    @property
    def error(self) -> float:
        """Standard error of the estimate."""
        return self.bound * float(self.shares.std()) / math.sqrt(len(self.shares))

    def expected(self, samples: int, log_inverse: float) -> tuple[float, float]:
        """Return the best stake for `samples` samples, and the confidence limit expected from them."""
        stake, limit = best_stake(self.shares, samples, log_inverse)
        return stake, self.bound * limit

    def slack(self, effort: Effort) -> float:
        """Return the relative gap between the expected limit and the estimate, if all `effort.samples` are drawn."""
        estimate = self.estimate
        return self.expected(effort.samples, effort.log_inverse)[1] / estimate - 1.0 if estimate > 0.0 else math.inf


def run_pilot(estimator: Estimator, epsilon: float, samples: int, effort: Effort) -> Pilot:
    """Draw the samples of a pilot run and return their weights."""
    at = epsilon - estimator.loss_error
    scale = log_bound(estimator, at)
    found = draws(estimator, samples, effort.seed, effort.workers)
    shares = np.exp(log_weights(estimator, found, at) - scale)
    return Pilot(estimator, at, ceiling(estimator, epsilon), shares)


def best(pilots: Sequence[Pilot], effort: Effort) -> Pilot:
    """Return the pilot with the smallest slack.

    If a pilot run misses rare, large weights, its estimate is too small. Such a pilot run is not chosen by mistake: the
    bound on its weights is large, and therefore its slack is large.
    """
    return min(pilots, key=lambda pilot: pilot.slack(effort))
