"""The best strategy under amplification by balls-in-bins: noise x error at a budget, not sensitivity x error.

The noise that a budget needs depends on C through the Gram matrix G of its modes alone, and its logarithm has the
gradient H / 2 (`_noise_level`). At the current C the search minimises log error + log <H, G> / 2, which has the same
value and gradient there and needs no samples, moves there, or part of the way where the true objective would grow, and
finds H anew. The samples are few and the same in all steps of a stage; the noise at the end is calibrated, with samples
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antiphase import _check
from antiphase._accounting import Budget, seeded_calibration
from antiphase._check import Array
from antiphase._error import error
from antiphase._loss import Objective
from antiphase._montecarlo import bins_gram
from antiphase._montecarlo._threads import single_threaded
from antiphase._optimize._amplified_families import BandedFamily, BLTFamily, Family, ToeplitzFamily
from antiphase._optimize._amplified_starts import banded_starts, blt_starts, toeplitz_starts
from antiphase._optimize._noise_level import Level, NoiseLevel
from antiphase._optimize._schema import check_bands
from antiphase._optimize._solution import Limits, Solution
from antiphase._participation import BallsInBins
from antiphase._workload import Workload
from antiphase.strategies import Strategy

STAGES = ((1 << 11, 1), (1 << 13, 2))  # samples and seed
DAMPING = (1.0, 0.5, 0.25, 0.1)
ENOUGH = 5e-5  # a step that gains less in log loss ends a stage
BUFFERS = 3
QUICK = 1 << 26  # steps x bands^2 of a banded search that takes a minute
FEWEST_BANDS = 32
ALIKE = 0.01  # of log loss: estimates that differ by less are told apart by calibrating


@dataclass(frozen=True)
class Setting:
    """What is optimised for.

    Args:
        steps: n.
        participation: bins and epochs.
        workload: A.
        objective: "rms" or "max".
        budget: (epsilon, delta).
    """

    steps: int
    participation: BallsInBins
    workload: Workload
    objective: Objective
    budget: Budget

    def log_error(self, strategy: Strategy) -> float:
        """log of the error under the objective."""
        found = error(strategy, self.workload)
        return math.log(found.rms if self.objective == "rms" else found.max)


@dataclass(frozen=True)
class Trial:
    """A point of a family with an estimate of its loss."""

    point: Array
    strategy: Strategy
    value: float
    level: Level


def amplified_toeplitz(setting: Setting, limits: Limits, *, bands: int | None = None) -> Solution:
    """Minimise noise x error over the coefficients of a Toeplitz C, non-negative and not increasing.

    Args:
        setting: what is optimised for.
        limits: when to stop early.
        bands: most coefficients; by default those of two epochs.
    """
    n = setting.steps
    widest = min(n, 2 * setting.participation.steps_per_epoch) if bands is None else bands
    count = check_bands("optimize('toeplitz')", widest, n, n)
    known = toeplitz_starts(setting, count)
    family = ToeplitzFamily(n, setting.workload, setting.objective)
    points = [family.point(s.coefficients, count) for s in known]
    return _optimize(setting, family, known, points, limits)


def amplified_banded(setting: Setting, limits: Limits, *, bands: int | None = None) -> Solution:
    """Minimise noise x error over all columns of a banded C.

    Args:
        setting: what is optimised for.
        limits: when to stop early.
        bands: at most as many as there are bins; by default as many, halved until the search is quick, but not below
            32. At a large epsilon more bands gain much.
    """
    n, bins = setting.steps, setting.participation.steps_per_epoch
    count = check_bands("optimize('banded')", _widest(n, bins) if bands is None else bands, n, bins)
    if count > bins:
        raise _check.refuse("optimize('banded')", "bands", f"at most {bins}, the bins", bands, "use family='toeplitz'")
    family = BandedFamily(n, setting.workload, setting.objective, count)
    known = banded_starts(setting, count)
    points = [family.point(np.pad(s.columns, ((0, 0), (0, count - s.columns.shape[1])))) for s in known]
    return _optimize(setting, family, known, points, limits)


def _widest(steps: int, bins: int) -> int:
    """As many bands as bins, halved until a step of the search is quick."""
    count = min(bins, steps)
    while count > FEWEST_BANDS and steps * count**2 > QUICK:
        count = max(FEWEST_BANDS, count // 2)
    return count


def amplified_blt(setting: Setting, limits: Limits, *, buffers: int = BUFFERS) -> Solution:
    """Minimise noise x error over the decays and scales of a BLT.

    Args:
        setting: what is optimised for.
        limits: when to stop early.
        buffers: d, from 1 to 10.
    """
    if not 1 <= _check.positive_integer("optimize('blt')", "buffers", buffers) <= 10:
        raise _check.refuse("optimize('blt')", "buffers", "at most 10", buffers, "3 are nearly optimal")
    known, points = blt_starts(setting, buffers)
    family = BLTFamily(setting.steps, setting.workload, setting.objective)
    return _optimize(setting, family, known, points, limits)


def _optimize(
    setting: Setting, family: Family, known: Sequence[Strategy], points: Sequence[Array], limits: Limits
) -> Solution:
    """Descend from the best of the known strategies, and keep the best by calibrated noise of the end and the known.

    A known strategy whose estimate is larger than that of the end by more than estimates err is not calibrated.
    """
    with single_threaded():
        starts, end = _search(setting, family, known, points, limits)
    tried = [end, *(start for start in starts if start.value <= end.value + ALIKE)]
    losses = [_loss(setting, trial.strategy) for trial in tried]
    least = min(losses)
    best = tried[losses.index(least)].strategy
    return Solution(best, least, None, limits.count, limits.elapsed, not limits.reached)


def _search(
    setting: Setting, family: Family, known: Sequence[Strategy], points: Sequence[Array], limits: Limits
) -> tuple[list[Trial], Trial]:
    """The known strategies, and where the descent from the best of them ends."""
    level = NoiseLevel(setting.budget, *STAGES[0])
    starts = [trial_at(setting, strategy, point, level) for strategy, point in zip(known, points, strict=True)]
    end = min(starts, key=lambda trial: trial.value)
    for samples, seed in STAGES:
        end = descend(setting, family, end, NoiseLevel(setting.budget, samples, seed), limits)
    return starts, end


def descend(setting: Setting, family: Family, trial: Trial, level: NoiseLevel, limits: Limits) -> Trial:
    """Move to the minimum of the tangent, or part of the way, until that gains no more."""
    trial = trial_at(setting, trial.strategy, trial.point, level)
    while not limits.reached:
        goal = family.minimise(trial.point, trial.level.weights)
        better = _towards(setting, family, trial, goal, level)
        gained = 0.0 if better is None else trial.value - better.value
        trial = better or trial
        if limits.tick(math.exp(trial.value)) or gained < ENOUGH:
            break
    return trial


def _towards(setting: Setting, family: Family, trial: Trial, goal: Array, level: NoiseLevel) -> Trial | None:
    """All or part of the way to the goal, where the true objective falls; None where it does not."""
    for share in DAMPING:
        point = trial.point + share * (goal - trial.point)
        found = trial_at(setting, family.strategy(point), point, level, trial.level)
        if found.value < trial.value:
            return found
    return None


def trial_at(
    setting: Setting, strategy: Strategy, point: Array, level: NoiseLevel, before: Level | None = None
) -> Trial:
    """The estimate at a point; the tangent at the point before gives a first guess at the noise."""
    gram = bins_gram(strategy, setting.participation)
    guess = None if before is None else before.log_noise + 0.5 * math.log(float((before.weights * gram).sum()))
    found = level(gram, guess)
    return Trial(point, strategy, found.log_noise + setting.log_error(strategy), found)


def _loss(setting: Setting, strategy: Strategy) -> float:
    """noise_std x error at the budget, with a noise that is proved."""
    noise = seeded_calibration(strategy, setting.participation, setting.budget).mechanism.noise_std
    return noise * math.exp(setting.log_error(strategy))
