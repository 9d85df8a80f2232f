"""Optimise strategies under amplification by balls-in-bins: minimise noise_std x error for a privacy budget.

The noise_std (standard deviation of the noise) that a budget requires depends on the strategy matrix C only through G,
the Gram matrix of the modes. A mode is the sum of the columns of |C| for the steps of one bin, where |C| holds the
absolute values of C (see `weighted_gram`). The gradient of log noise_std with respect to G is H / 2, where H is a
matrix of weights that is estimated by Monte Carlo sampling (see `noise_estimate`).

The loss is noise_std x error, and the true objective is log(loss). The function log error + log <H, G> / 2, with H
fixed at the current C, is called the tangent, where <H, G> is the sum of the products H_ij G_ij. At the current C, the
tangent has the same gradient as the true objective, and evaluating it takes no Monte Carlo samples. Each iteration
minimises the tangent and moves to the minimum, or only part of the way if the true objective would increase there. Then
H is estimated again.

A search has several stages with growing numbers of samples. All iterations of a stage use the same samples. At the end,
the noise_std of the best strategy is calibrated with independent samples.
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
STEP_FRACTIONS = (1.0, 0.5, 0.25, 0.1)  # fractions of the way to the minimum of the tangent, tried in turn
MIN_GAIN = 5e-5  # a stage of the search ends when an iteration lowers log(loss) by less than this
MAX_BANDED_WORK = 1 << 26  # largest steps x bands^2 for the default number of bands; takes about a minute
MIN_DEFAULT_BANDS = 32
# the limits of `quick_amplified_blt`
QUICK_START_ITERATIONS = 10
QUICK_STAGES = ((1 << 11, 1), (1 << 12, 2))
QUICK_MIN_GAIN = 1e-4
LOG_LOSS_MARGIN = 0.01  # if estimates of log(loss) differ by less, strategies are compared with calibrated noise_std


@dataclass(frozen=True)
class AmplifiedProblem:
    """The problem that a search under amplification solves.

    Args:
        steps: number of steps, n.
        participation: balls-in-bins participation, with the number of bins and epochs.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
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
        strategy: the strategy with these coordinates.
        log_loss: estimate of log(noise_std x error).
        noise: estimate of noise_std, with its gradient.
    """

    point: Array
    strategy: Strategy
    log_loss: float
    noise: NoiseEstimate


def amplified_toeplitz(problem: AmplifiedProblem, limits: SearchLimits, *, bands: int | None = None) -> Solution:
    """Minimise noise_std x error over Toeplitz strategies with non-negative, non-increasing coefficients.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        bands: largest number of coefficients; by default the number of steps in two epochs, or `steps` if smaller.
    """
    n = problem.steps
    widest = min(n, 2 * problem.participation.steps_per_epoch) if bands is None else bands
    count = check_bands("optimize('toeplitz')", widest, n, n)
    known = toeplitz_starts(problem, count)
    family = ToeplitzFamily(n, problem.workload, problem.objective)
    points = [family.point(s.coefficients, count) for s in known]
    return _optimize(problem, family, known, points, limits)


def amplified_banded(problem: AmplifiedProblem, limits: SearchLimits, *, bands: int | None = None) -> Solution:
    """Minimise noise_std x error over all banded strategies.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        bands: number of bands, at most the number of bins. By default, the number of bins, halved until the search is
            fast enough, but not below 32. For a large epsilon, more bands lower the loss a lot.
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
    """Return the number of bins, halved until steps x bands^2 is at most MAX_BANDED_WORK, but not below 32."""
    count = min(bins, steps)
    while count > MIN_DEFAULT_BANDS and steps * count**2 > MAX_BANDED_WORK:
        count = max(MIN_DEFAULT_BANDS, count // 2)
    return count


def amplified_blt(problem: AmplifiedProblem, limits: SearchLimits, *, buffers: int = 3) -> Solution:
    """Minimise noise_std x error over the decays and scales of a BLT.

    Args:
        problem: the problem to solve.
        limits: when to stop early.
        buffers: number of buffers, d, from 1 to 10.
    """
    if not 1 <= _check.positive_integer("optimize('blt')", "buffers", buffers) <= 10:
        raise _check.invalid(
            "optimize('blt')", "buffers", "at most 10", buffers, "use 3 buffers, which are nearly optimal"
        )
    known, points = blt_starts(problem, buffers)
    family = BLTFamily(problem.steps, problem.workload, problem.objective)
    return _optimize(problem, family, known, points, limits)


def quick_amplified_blt(problem: AmplifiedProblem, buffers: int) -> tuple[Strategy, float]:
    """Return a strategy that is nearly as good as the result of `amplified_blt`, and its estimated loss.

    Three shortcuts save time. All searches stop early. The second stage uses fewer Monte Carlo samples. No noise_std is
    calibrated: the result is the strategy with the smallest estimated loss among the starting points and the end point.

    Args:
        problem: the problem to solve.
        buffers: number of buffers, d.
    """
    known, points = blt_starts(problem, buffers, QUICK_START_ITERATIONS)
    family = BLTFamily(problem.steps, problem.workload, problem.objective)
    with single_threaded():
        starts, end = _search(problem, family, known, points, SearchLimits(), QUICK_STAGES, QUICK_MIN_GAIN)
    best = min([end, *starts], key=lambda found: found.log_loss)
    return best.strategy, math.exp(best.log_loss)


def _optimize(
    problem: AmplifiedProblem, family: Family, known: Sequence[Strategy], points: Sequence[Array], limits: SearchLimits
) -> Solution:
    """Search from the best of the known strategies, and return the strategy with the smallest loss after calibration.

    `points` are the coordinates of the known strategies. The candidates for the result are the end point of the search
    and the known strategies whose estimated loss is not clearly larger.
    """
    with single_threaded():
        starts, end = _search(problem, family, known, points, limits)
    candidates = [end, *(start for start in starts if start.log_loss <= end.log_loss + LOG_LOSS_MARGIN)]
    losses = [_calibrated_loss(problem, candidate.strategy) for candidate in candidates]
    least = min(losses)
    best = candidates[losses.index(least)].strategy
    return Solution(best, least, None, limits.count, limits.elapsed, not limits.reached)


def _search(
    problem: AmplifiedProblem,
    family: Family,
    known: Sequence[Strategy],
    points: Sequence[Array],
    limits: SearchLimits,
    stages: Sequence[tuple[int, int]] = STAGES,
    min_gain: float = MIN_GAIN,
) -> tuple[list[EvaluatedPoint], EvaluatedPoint]:
    """Evaluate the known strategies, and search from the best of them.

    Returns the known strategies with their evaluations, and the final point of the search.
    """
    estimator = NoiseEstimator(problem.budget, *stages[0])
    starts = [
        evaluate_point(problem, strategy, point, estimator) for strategy, point in zip(known, points, strict=True)
    ]
    end = min(starts, key=lambda start: start.log_loss)
    for samples, seed in stages:
        end = descend(problem, family, end, NoiseEstimator(problem.budget, samples, seed), limits, min_gain)
    return starts, end


def descend(
    problem: AmplifiedProblem,
    family: Family,
    start: EvaluatedPoint,
    estimator: NoiseEstimator,
    limits: SearchLimits,
    min_gain: float = MIN_GAIN,
) -> EvaluatedPoint:
    """Run one stage of the search, and return its end point.

    Each iteration moves to the minimum of the tangent, or part of the way there. The stage ends when an iteration
    lowers log(loss) by less than `min_gain`, or when a limit is reached.
    """
    current = evaluate_point(problem, start.strategy, start.point, estimator)
    while not limits.reached:
        goal = family.minimize_tangent(current.point, current.noise.weights)
        if _predicted_gain(problem, current, family.strategy(goal)) < min_gain:
            limits.tick(math.exp(current.log_loss))
            break
        better = _line_search(problem, family, current, goal, estimator)
        gained = 0.0 if better is None else current.log_loss - better.log_loss
        current = better or current
        if limits.tick(math.exp(current.log_loss)) or gained < min_gain:
            break
    return current


def _predicted_gain(problem: AmplifiedProblem, current: EvaluatedPoint, strategy: Strategy) -> float:
    """Return by how much `strategy` would lower the log loss of `current` according to the tangent."""
    if not math.isfinite(current.log_loss):
        return math.inf
    noise = _predicted_noise(current.noise, bins_gram(strategy, problem.participation))
    return current.log_loss - noise - problem.log_error(strategy)


def _predicted_noise(noise: NoiseEstimate, gram: Array) -> float:
    """Return log noise_std for `gram`, to first order around the Gram matrix for which `noise` was estimated."""
    return noise.log_noise + 0.5 * math.log(float((noise.weights * gram).sum()))


def _line_search(
    problem: AmplifiedProblem, family: Family, current: EvaluatedPoint, goal: Array, estimator: NoiseEstimator
) -> EvaluatedPoint | None:
    """Return a point between the current point and `goal` with a smaller log loss, or None if none is found."""
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
    """Estimate the loss at a point.

    If `previous` is given, its noise_std and gradient provide an initial guess of noise_std. If the estimate is not
    finite, the loss is infinite.
    """
    gram = bins_gram(strategy, problem.participation)
    is_known = previous is not None and math.isfinite(previous.log_noise)
    guess = None if previous is None or not is_known else _predicted_noise(previous, gram)
    with np.errstate(over="ignore", invalid="ignore"):  # far from the optimum, an estimate may overflow
        noise = estimator(gram, guess)
    if not (math.isfinite(noise.log_noise) and np.isfinite(noise.weights).all()):
        noise = NoiseEstimate(math.inf, np.zeros_like(gram))
    return EvaluatedPoint(point, strategy, noise.log_noise + problem.log_error(strategy), noise)


def _calibrated_loss(problem: AmplifiedProblem, strategy: Strategy) -> float:
    """Return noise_std x error, where noise_std is proved to be sufficient for the budget."""
    noise = seeded_calibration(strategy, problem.participation, problem.budget).mechanism.noise_std
    return noise * math.exp(problem.log_error(strategy))


def toeplitz_starts(problem: AmplifiedProblem, bands: int) -> list[Toeplitz]:
    """Return the best Toeplitz strategies without amplification, for different numbers of bands.

    The numbers are 1, 2, 4, ..., up to `bands` or the number of steps per epoch, whichever is smaller.
    """
    return [Toeplitz(_coefficients(problem, count), problem.steps) for count in _band_counts(problem, bands)]


def banded_starts(problem: AmplifiedProblem, bands: int) -> list[Banded]:
    """Return the strategies of `toeplitz_starts` with columns scaled to norm 1."""
    return [
        Banded(Toeplitz(_coefficients(problem, count), problem.steps, column_normalized=True).columns())
        for count in _band_counts(problem, bands)
    ]


def blt_starts(
    problem: AmplifiedProblem, buffers: int, iterations: int | None = None
) -> tuple[list[Strategy], list[Array]]:
    """Return BLTs that are optimised without amplification, and their coordinates.

    One BLT is optimised for the whole run, the others for shorter runs. BLTs for shorter runs have smaller decays. So
    the modes of different bins (see `weighted_gram`) overlap less, which helps amplification. `iterations` limits
    each search.
    """
    n, points = problem.steps, []
    for steps in (n, *(length for length in (n // 8, n // 64) if length > 2 * buffers)):
        logits = np.linspace(np.log(steps) + 1.0, -1.0, 2 * buffers)
        allowed = _unamplified_limits(problem, steps)
        loss, _ = closed_loss(steps, allowed, problem.workload, problem.objective, run=n)
        limits = SearchLimits(iterations=iterations)
        points.append(newton_minimize(loss, to_points(logits[None]), clipped, limits)[0][0])
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
