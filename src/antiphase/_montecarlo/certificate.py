"""Confidence limits on delta from fresh samples."""

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

FEWEST = 1 << 14
LUCK = 2.5  # standard errors of room for a certified run that comes out above what the pilot expects
ROUNDED_UP = 1e-4  # share by which an estimate may be too large for rounding errors
DEVIATIONS = 8.0  # of an estimate above a proved bound that chance does not explain


@dataclass(frozen=True)
class Limit:
    """delta in one direction is at most `value`, except with the probability beta that was asked for.

    Args:
        value: the confidence limit.
        estimate: the mean of the weights.
        error: its standard error.
        samples: how many; 0 where the bound on the weights was enough.
    """

    value: float
    estimate: float
    error: float
    samples: int


@dataclass(frozen=True)
class SamplingPlan:
    """A certified run as planned, before its samples are drawn.

    Args:
        pilot: the pilot run, with its estimator.
        samples: how many to draw; 0 takes the bound on the weights as the limit.
        stake: stake of the confidence limit.
        expected: the expected limit.
    """

    pilot: Pilot
    samples: int
    stake: float
    expected: float


def plan_run(pilot: Pilot, goal: float, effort: Effort) -> SamplingPlan:
    """About the fewest samples whose limit will most likely be at most the goal, up to those of the effort."""
    if pilot.bound <= goal:
        return SamplingPlan(pilot, 0, 0.0, pilot.bound)
    fewest, most = min(FEWEST, effort.samples), effort.samples
    while most > 1.2 * fewest:
        middle = round(math.sqrt(fewest * most))
        fewest, most = (fewest, middle) if _reaches(pilot, goal, middle, effort) else (middle, most)
    samples = fewest if _reaches(pilot, goal, fewest, effort) else most
    stake, expected = pilot.expected(samples, effort.log_inverse)
    return SamplingPlan(pilot, samples, stake, expected)


def _reaches(pilot: Pilot, goal: float, samples: int, effort: Effort) -> bool:
    chance = LUCK * pilot.error * math.sqrt(len(pilot.shares) / samples)
    return pilot.expected(samples, effort.log_inverse)[1] + chance <= goal


def run_certified(run: SamplingPlan, effort: Effort, seed: np.random.SeedSequence) -> Limit:
    """The confidence limit from fresh samples.

    **Guarantee**: delta exceeds the limit with probability at most exp(-log_inverse), if `seed` was not used before;
    rounding errors are within the limit.
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
    """Raise if an estimate exceeds a proved bound by more than chance explains: that is a defect."""
    for each in found:
        if each.estimate - DEVIATIONS * each.error > upper * (1.0 + ROUNDED_UP):
            raise AntiphaseError(
                f"The estimate {each.estimate} +- {each.error} lies above the proved bound {upper} on delta.",
                hint="this is a defect of the library: please report it with the strategy and the noise",
            )


def certify(
    runs: tuple[SamplingPlan, SamplingPlan], effort: Effort, seed: np.random.SeedSequence
) -> tuple[Limit, Limit]:
    """Both directions, each with samples of its own."""
    removal, addition = (run_certified(run, effort, child(seed, i)) for i, run in enumerate(runs))
    return removal, addition


def _shares(estimator: Estimator, epsilon: float, draws: Draws) -> Array:
    return np.exp(log_weights(estimator, draws, epsilon) - log_bound(estimator, epsilon))
