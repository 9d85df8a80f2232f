"""Optimise strategies under amplification by balls-in-bins: noise x error at a budget instead of sensitivity x error.

The noise that a budget requires depends on C only through the Gram matrix G of its modes, and the gradient of its
logarithm with respect to G is H / 2 (`noise_estimate`). At the current C, log error + log <H, G> / 2 is tangent to the
true objective: it has the same value and gradient there, and evaluating it takes no samples. Each iteration minimises
the tangent, moves to its minimum, or part of the way if the true objective would increase, and estimates H again. All
iterations of a stage share the same few samples. The noise of the result is calibrated with independent samples.
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
from antiphase._montecarlo import bins_gram, single_threaded
from antiphase._optimize.amplified.families import BandedFamily, BLTFamily, Family, ToeplitzFamily
from antiphase._optimize.amplified.noise_estimate import NoiseEstimate, NoiseEstimator
from antiphase._optimize.blt import blt_at, closed_loss
from antiphase._optimize.blt_decays import clipped, to_points
from antiphase._optimize.newton import newton_minimize
from antiphase._optimize.participation_limits import ParticipationLimits, check_bands
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._optimize.toeplitz import toeplitz_coefficients
from antiphase._participation import BallsInBins
from antiphase._workload import Workload
from antiphase.strategies import Banded, Strategy, Toeplitz

STAGES = ((1 << 11, 1), (1 << 13, 2))  # number of samples and seed of each stage
STEP_FRACTIONS = (1.0, 0.5, 0.25, 0.1)  # fractions of the way to the minimum of the tangent to try
MIN_LOG_LOSS_GAIN = 5e-5  # a smaller gain ends a stage
MAX_BANDED_WORK = 1 << 26  # steps x bands^2 of a banded search that takes about a minute
MIN_DEFAULT_BANDS = 32
LOG_LOSS_MARGIN = 0.01  # estimates that differ by less are compared by calibrated noise


@dataclass(frozen=True)
class AmplifiedProblem:
    """The problem that a search under amplification solves.

    Args:
        steps: number of steps, n.
        participation: bins and epochs.
        workload: the workload matrix, A.
        objective: which error over the steps to minimise, "rms" or "max".
        budget: the privacy budget, (epsilon, delta).
    """

    steps: int
    participation: BallsInBins
    workload: Workload
    objective: Objective
    budget: Budget

    def log_error(self, strategy: Strategy) -> float:
        """Return the logarithm of the error under the objective."""
        return math.log(error(strategy, self.workload, self.objective).value)


@dataclass(frozen=True)
class EvaluatedPoint:
    """A point of a family with its estimated loss.

    Args:
        point: the coordinates.
        strategy: the strategy there.
        log_loss: estimate of log(noise x error).
        noise: estimate of the noise, with its gradient.
    """

    point: Array
    strategy: Strategy
    log_loss: float
    noise: NoiseEstimate


def amplified_toeplitz(problem: AmplifiedProblem, limits: SearchLimits, *, bands: int | None = None) -> Solution:
    """Minimise noise x error over the non-negative, non-increasing coefficients of a Toeplitz C.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        bands: largest number of coefficients; by default the number of steps in two epochs.
    """
    n = problem.steps
    widest = min(n, 2 * problem.participation.steps_per_epoch) if bands is None else bands
    count = check_bands("optimize('toeplitz')", widest, n, n)
    known = toeplitz_starts(problem, count)
    family = ToeplitzFamily(n, problem.workload, problem.objective)
    points = [family.point(s.coefficients, count) for s in known]
    return _optimize(problem, family, known, points, limits)


def amplified_banded(problem: AmplifiedProblem, limits: SearchLimits, *, bands: int | None = None) -> Solution:
    """Minimise noise x error over all columns of a banded C.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        bands: number of bands, at most the number of bins; by default the number of bins, halved until the search is
            fast, but not below 32. For a large epsilon, more bands help a lot.
    """
    n, bins = problem.steps, problem.participation.steps_per_epoch
    count = check_bands("optimize('banded')", _default_bands(n, bins) if bands is None else bands, n, bins)
    if count > bins:
        must = f"at most {bins}, the number of bins"
        raise _check.invalid(
            "optimize('banded')", "bands", must, bands, "use family='toeplitz', which allows more bands"
        )
    family = BandedFamily(n, problem.workload, problem.objective, count)
    known = banded_starts(problem, count)
    points = [family.point(np.pad(s.columns, ((0, 0), (0, count - s.columns.shape[1])))) for s in known]
    return _optimize(problem, family, known, points, limits)


def _default_bands(steps: int, bins: int) -> int:
    """Return as many bands as bins, halved until an iteration of the search is fast."""
    count = min(bins, steps)
    while count > MIN_DEFAULT_BANDS and steps * count**2 > MAX_BANDED_WORK:
        count = max(MIN_DEFAULT_BANDS, count // 2)
    return count


def amplified_blt(problem: AmplifiedProblem, limits: SearchLimits, *, buffers: int = 3) -> Solution:
    """Minimise noise x error over the decays and scales of a BLT.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        buffers: number of buffers, d, from 1 to 10.
    """
    if not 1 <= _check.positive_integer("optimize('blt')", "buffers", buffers) <= 10:
        raise _check.invalid("optimize('blt')", "buffers", "at most 10", buffers, "3 buffers are nearly optimal")
    known, points = blt_starts(problem, buffers)
    family = BLTFamily(problem.steps, problem.workload, problem.objective)
    return _optimize(problem, family, known, points, limits)


def _optimize(
    problem: AmplifiedProblem, family: Family, known: Sequence[Strategy], points: Sequence[Array], limits: SearchLimits
) -> Solution:
    """Search from the best of the known strategies, and return the best by calibrated noise.

    The candidates are the end of the search and the known strategies whose estimated loss is not clearly larger.
    """
    with single_threaded():
        starts, end = _search(problem, family, known, points, limits)
    candidates = [end, *(start for start in starts if start.log_loss <= end.log_loss + LOG_LOSS_MARGIN)]
    losses = [_calibrated_loss(problem, candidate.strategy) for candidate in candidates]
    least = min(losses)
    best = candidates[losses.index(least)].strategy
    return Solution(best, least, None, limits.count, limits.elapsed, not limits.reached)


def _search(
    problem: AmplifiedProblem, family: Family, known: Sequence[Strategy], points: Sequence[Array], limits: SearchLimits
) -> tuple[list[EvaluatedPoint], EvaluatedPoint]:
    """Return the known strategies, evaluated, and the point where the search from the best of them ends."""
    estimator = NoiseEstimator(problem.budget, *STAGES[0])
    starts = [
        evaluate_point(problem, strategy, point, estimator) for strategy, point in zip(known, points, strict=True)
    ]
    end = min(starts, key=lambda start: start.log_loss)
    for samples, seed in STAGES:
        end = descend(problem, family, end, NoiseEstimator(problem.budget, samples, seed), limits)
    return starts, end


def descend(
    problem: AmplifiedProblem, family: Family, start: EvaluatedPoint, estimator: NoiseEstimator, limits: SearchLimits
) -> EvaluatedPoint:
    """Move to the minimum of the tangent, or part of the way there, until the gain becomes too small."""
    current = evaluate_point(problem, start.strategy, start.point, estimator)
    while not limits.reached:
        goal = family.minimize_tangent(current.point, current.noise.weights)
        better = _line_search(problem, family, current, goal, estimator)
        gained = 0.0 if better is None else current.log_loss - better.log_loss
        current = better or current
        if limits.tick(math.exp(current.log_loss)) or gained < MIN_LOG_LOSS_GAIN:
            break
    return current


def _line_search(
    problem: AmplifiedProblem, family: Family, current: EvaluatedPoint, goal: Array, estimator: NoiseEstimator
) -> EvaluatedPoint | None:
    """Return a point on the way to the goal where the true objective is smaller, or None if there is none."""
    for fraction in STEP_FRACTIONS:
        point = current.point + fraction * (goal - current.point)
        found = evaluate_point(problem, family.strategy(point), point, estimator, current.noise)
        if found.log_loss < current.log_loss:
            return found
    return None


def evaluate_point(
    problem: AmplifiedProblem,
    strategy: Strategy,
    point: Array,
    estimator: NoiseEstimator,
    previous: NoiseEstimate | None = None,
) -> EvaluatedPoint:
    """Estimate the loss at a point, with the tangent at the previous point as a first guess at the noise."""
    gram = bins_gram(strategy, problem.participation)
    guess = None if previous is None else previous.log_noise + 0.5 * math.log(float((previous.weights * gram).sum()))
    noise = estimator(gram, guess)
    return EvaluatedPoint(point, strategy, noise.log_noise + problem.log_error(strategy), noise)


def _calibrated_loss(problem: AmplifiedProblem, strategy: Strategy) -> float:
    """Return noise_std x error at the budget, with a noise that is proved to be enough."""
    noise = seeded_calibration(strategy, problem.participation, problem.budget).mechanism.noise_std
    return noise * math.exp(problem.log_error(strategy))


def toeplitz_starts(problem: AmplifiedProblem, bands: int) -> list[Toeplitz]:
    """Return the best Toeplitz strategies without amplification for 1, 2, 4, ... bands, up to an epoch."""
    return [Toeplitz(_coefficients(problem, count), problem.steps) for count in _band_counts(problem, bands)]


def banded_starts(problem: AmplifiedProblem, bands: int) -> list[Banded]:
    """Return the strategies of `toeplitz_starts` with columns scaled to norm 1."""
    return [
        Banded(Toeplitz(_coefficients(problem, count), problem.steps, column_normalized=True).columns())
        for count in _band_counts(problem, bands)
    ]


def blt_starts(problem: AmplifiedProblem, buffers: int) -> tuple[list[Strategy], list[Array]]:
    """Return BLTs that are best without amplification, and their coordinates.

    They are optimised for the whole run and for shorter ones: those have a shorter memory and share less between bins.
    """
    n, points = problem.steps, []
    for steps in (n, *(length for length in (n // 8, n // 64) if length > 2 * buffers)):
        logits = np.linspace(np.log(steps) + 1.0, -1.0, 2 * buffers)
        allowed = _unamplified_limits(problem, steps)
        loss, _ = closed_loss(steps, allowed, problem.workload, problem.objective, run=n)
        points.append(newton_minimize(loss, to_points(logits[None]), clipped, SearchLimits())[0][0])
    return [blt_at(point, n) for point in points], points


def _band_counts(problem: AmplifiedProblem, bands: int) -> list[int]:
    widest = min(bands, problem.participation.steps_per_epoch)
    return sorted({*(1 << i for i in range(widest.bit_length())), widest})


def _coefficients(problem: AmplifiedProblem, bands: int) -> Array:
    allowed = _unamplified_limits(problem, problem.steps)
    return toeplitz_coefficients(problem.steps, allowed, problem.workload, problem.objective, SearchLimits(), bands)[0]


def _unamplified_limits(problem: AmplifiedProblem, steps: int) -> ParticipationLimits:
    separation = min(problem.participation.steps_per_epoch, steps)
    return ParticipationLimits(separation, -(-steps // separation))
