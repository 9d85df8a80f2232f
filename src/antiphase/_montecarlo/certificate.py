"""Confidence limits on delta from fresh samples.

Delta is the mean weight of random samples, and the weights have a proved bound (`estimator.py`). First, a pilot run
with few samples chooses an estimator and its parameters (`pilot.py`). Then a certified run computes the limit from new
samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._montecarlo.betting import upper_limit
from antiphase._montecarlo.estimator import Draws, Estimator, log_bound, log_weights
from antiphase._montecarlo.pilot import Effort, Pilot
from antiphase._montecarlo.rounding import UNDERFLOW
from antiphase._montecarlo.samples import child, collect

MIN_SAMPLES = 1 << 14
PILOT_MARGIN = 2.5  # sampling plans allow for an estimate this many standard errors above that of the pilot run
ROUNDED_UP = 1e-4  # relative amount by which rounding may increase an estimate
DEVIATIONS = 8.0  # an estimate this many standard errors above a proved bound cannot be due to chance


@dataclass(frozen=True)
class Limit:
    """An upper confidence limit on delta, for removal or addition, at the requested failure probability.

    Args:
        value: the confidence limit.
        estimate: the mean of the weights of the samples, which is an estimate of delta.
        error: standard error of the estimate.
        samples: number of samples; 0 if the largest possible weight is small enough to be the limit.
    """

    value: float
    estimate: float
    error: float
    samples: int


@dataclass(frozen=True)
class SamplingPlan:
    """Plan of a certified run, made before its samples are drawn.

    Args:
        pilot: the pilot run, with its estimator.
        samples: number of samples to draw; 0 if the largest possible weight is small enough to be the limit.
        stake: stake of the confidence limit; see `betting.py`.
        expected: the expected confidence limit.
    """

    pilot: Pilot
    samples: int
    stake: float
    expected: float


def plan_run(pilot: Pilot, goal: float, effort: Effort, more: int = 1) -> SamplingPlan:
    """Return a plan with roughly the fewest samples that are likely to give a limit of at most `goal`.

    Args:
        pilot: the pilot run.
        goal: the limit to reach.
        effort: limits on the work. At most `effort.samples` samples are drawn.
        more: factor by which to multiply the number of samples. If the pilot run underestimated delta, more samples
            make it more likely that the limit still reaches the goal.
    """
    if pilot.bound <= goal:
        return SamplingPlan(pilot, 0, 0.0, pilot.bound)
    fewest, most = min(MIN_SAMPLES, effort.samples), effort.samples
    while most > 1.2 * fewest:
        middle = round(math.sqrt(fewest * most))
        fewest, most = (fewest, middle) if _reaches(pilot, goal, middle, effort) else (middle, most)
    samples = min(more * (fewest if _reaches(pilot, goal, fewest, effort) else most), effort.samples)
    stake, expected = pilot.expected(samples, effort.log_inverse)
    return SamplingPlan(pilot, samples, stake, expected)


def _reaches(pilot: Pilot, goal: float, samples: int, effort: Effort) -> bool:
    chance = PILOT_MARGIN * pilot.error * math.sqrt(len(pilot.shares) / samples)
    return pilot.expected(samples, effort.log_inverse)[1] + chance <= goal


def run_certified(run: SamplingPlan, effort: Effort, seed: np.random.SeedSequence) -> Limit:
    """Return the confidence limit from fresh samples.

    **Guarantee**: delta exceeds the limit with probability at most exp(-effort.log_inverse), if `seed` was not used
    before. The limit allows for rounding errors.
    """
    pilot = run.pilot
    if run.samples == 0:
        return Limit(pilot.bound, pilot.estimate, pilot.error, 0)
    to_shares = partial(_shares, pilot.estimator, pilot.epsilon)
    shares = np.concatenate(collect(pilot.estimator, run.samples, seed, to_shares, effort.workers))
    value = upper_limit(shares, run.stake, effort.log_inverse) + pilot.estimator.bias + UNDERFLOW
    error = float(shares.std()) / math.sqrt(run.samples)
    c = pilot.bound
    return Limit(c * value, c * float(shares.mean()), c * error, run.samples)


def check_estimates(found: tuple[Limit, Limit] | tuple[Pilot, Pilot], upper: float) -> None:
    """Raise `AntiphaseError` if an estimate exceeds the proved bound `upper` by more than chance explains (a bug)."""
    for each in found:
        if each.estimate - DEVIATIONS * each.error > upper * (1.0 + ROUNDED_UP):
            raise AntiphaseError(
                f"The estimate {each.estimate} +- {each.error} exceeds the proved bound {upper} on delta.",
                hint="this is a bug in antiphase; please report it with the strategy and the noise",
            )


def certify(
    runs: tuple[SamplingPlan, SamplingPlan], effort: Effort, seed: np.random.SeedSequence
) -> tuple[Limit, Limit]:
    """Return the limits for removal and addition, each from its own samples."""
    removal, addition = (run_certified(run, effort, child(seed, i)) for i, run in enumerate(runs))
    return removal, addition


def _shares(estimator: Estimator, epsilon: float, draws: Draws) -> Array:
    return np.exp(log_weights(estimator, draws, epsilon) - log_bound(estimator, epsilon))
