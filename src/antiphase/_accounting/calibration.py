"""Calibration: finds the smallest noise that satisfies a privacy budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from antiphase._accounting.amplified import amplified_noise
from antiphase._accounting.budget import Budget
from antiphase._accounting.certificate import certified
from antiphase._accounting.guarantee import seeded_epsilon
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.reduction import Reduction, check_setting
from antiphase._accounting.theorems import Adjacency
from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._errors import NotProved
from antiphase._lattice import Lattice
from antiphase._montecarlo import MonteCarlo, check_sampling
from antiphase._participation import Participation
from antiphase._record import record
from antiphase.strategies import Strategy

TOLERANCE = 4e-4  # stop when epsilon is below the budget's epsilon by at most this fraction
SLOPE = -1.5  # initial guess of d(log epsilon) / d(log noise)
LONGEST_STEP = 2.0  # largest step of the search, in log noise
LARGEST_EXCESS = 20.0  # log(epsilon / budget's epsilon) is clipped to this absolute value
MAX_ITERATIONS = 80

Point = tuple[float, float]


@record
class Calibration:
    """A calibrated mechanism and its guarantee.

    Args:
        mechanism: the mechanism with the calibrated noise.
        guarantee: epsilon of the mechanism at the budget's delta; at most the budget's epsilon.
    """

    mechanism: Mechanism
    guarantee: Bound


def calibrate(
    strategy: Strategy,
    participation: Participation,
    budget: Budget,
    adjacency: Adjacency = "zero-out",
    examples: int | None = None,
    sampling: MonteCarlo = MonteCarlo(),
    lattice: Lattice | None = None,
) -> Calibration:
    """Return the mechanism with the smallest noise that satisfies the budget.

    **Guarantee**: the epsilon of the mechanism, as computed by `epsilon`, is at most the budget's epsilon. It is at
    least 99.9 % of the budget's epsilon, or at least 99 % if samples are used and there are enough of them.

    The same arguments give the same mechanism, because the seeds of the search are hashes of the arguments. A guarantee
    that is based on samples is certified at the end with fresh entropy, which the bound stores. If fresh samples do not
    confirm the epsilon that the search found, the budget's epsilon is certified instead.

    Raises `NotProved` if an example takes part with probability at most delta. Such a budget needs no noise at all.

    Args:
        strategy: strategy matrix, C.
        participation: steps in which one example participates.
        budget: privacy budget, (epsilon, delta).
        adjacency: as for `Mechanism`.
        examples: as for `Mechanism`.
        sampling: Monte Carlo settings for sampled bounds. To compare many mechanisms, use MonteCarlo(slack=0.2), which
            is about ten times faster than the default and gives about 1 % more noise.
        lattice: as for `Mechanism`.

    >>> from antiphase import FixedEpochs, strategies
    >>> found = calibrate(strategies.Identity(8), FixedEpochs(4, 2), Budget(epsilon=1.0, delta=1e-6))
    >>> round(found.mechanism.noise_std, 4), round(found.guarantee.value, 6)
    (8.4494, 1.0)
    """
    found = seeded_calibration(strategy, participation, budget, adjacency, examples, sampling, lattice)
    if found.guarantee.kind != "confident":
        return found
    return replace(found, guarantee=certified(found.mechanism, found.guarantee, budget, sampling))


def seeded_calibration(
    strategy: Strategy,
    participation: Participation,
    budget: Budget,
    adjacency: Adjacency = "zero-out",
    examples: int | None = None,
    sampling: MonteCarlo = MonteCarlo(),
    lattice: Lattice | None = None,
) -> Calibration:
    """Calibrate the noise like `calibrate`, but without the final certificate. Searches do not need a certificate.

    All seeds are hashes of the arguments.
    """
    if not isinstance(budget, Budget):
        raise invalid("calibrate", "budget", "a Budget", budget, "use Budget(epsilon=8.0, delta=1e-6)")
    checked = check_setting("calibrate", strategy, participation, adjacency, examples)
    reduction = Mechanism(*checked[:2], 1.0, *checked[2:], lattice).reduction
    if reduction.theorem.amplified:
        uncalibrated = Mechanism(strategy, participation, 1.0, adjacency, examples, lattice)
        found = amplified_noise(uncalibrated, budget, check_sampling("calibrate", sampling))
        if found is not None:
            return Calibration(found, seeded_epsilon(found, budget.delta, sampling))
    release = reduction.release(1.0)
    if release.participation_probability() <= budget.delta:
        raise NotProved(
            f"delta = {budget.delta} needs no noise at all: an example takes part with probability at most delta.",
            hint="use a delta far below 1 / number of examples",
        )
    log_noise = _least_noise(reduction.before_rounding(), budget)
    value = reduction.release(math.exp(log_noise)).epsilon(budget.delta)
    if value > budget.epsilon:  # possible, because log_noise is for the sensitivity before it was rounded up
        log_noise = _least_noise(reduction, budget)
        value = reduction.release(math.exp(log_noise)).epsilon(budget.delta)
    mechanism = Mechanism(strategy, participation, math.exp(log_noise), adjacency, examples, lattice)
    if reduction.theorem.amplified:
        return Calibration(mechanism, seeded_epsilon(mechanism, budget.delta, sampling))
    return Calibration(mechanism, reduction.bound(value, release.method))


def _least_noise(reduction: Reduction, budget: Budget) -> float:
    """Return the logarithm of the smallest noise that satisfies the budget, up to TOLERANCE in epsilon."""
    release = reduction.release(1.0)
    start = math.log(reduction.noise_std(release.guess(budget.epsilon, budget.delta)))
    if release.coarse() != release:
        start = _solve(lambda noise: reduction.release(noise).coarse().epsilon(budget.delta), budget, start)[0]
    return _solve(lambda noise: reduction.release(noise).epsilon(budget.delta), budget, start)[0]


def _solve(value_at: Callable[[float], float], budget: Budget, start: float) -> Point:
    """Return the logarithm of a noise level, and the epsilon at that noise level.

    This epsilon is at most the budget's epsilon, and usually within TOLERANCE of it. The search takes secant steps
    inside a bracket, and bisects the bracket in every fourth iteration.

    Args:
        value_at: function that returns epsilon for a noise level.
        budget: the privacy budget.
        start: first guess of the logarithm of the noise level.
    """
    at, low, high, value_at_high = start, None, None, math.inf
    for count in range(MAX_ITERATIONS):
        value = value_at(math.exp(at))
        excess = math.log(value / budget.epsilon) if value > 0.0 else -LARGEST_EXCESS
        excess = max(-LARGEST_EXCESS, min(LARGEST_EXCESS, excess))
        if -TOLERANCE <= excess <= 0.0:
            return at, value
        if excess > 0.0:
            low = (at, excess)
        else:
            high, value_at_high = (at, excess), value
        at = _next(at, excess, low, high, bisect=count % 4 == 3)
        if low is not None and high is not None and high[0] - low[0] < 1e-13:
            break
    if high is None:
        raise NotProved(
            f"Found no noise level that satisfies {budget}.",
            hint="use a larger epsilon or delta, or another participation",
        )
    return high[0], value_at_high


def _next(at: float, excess: float, low: Point | None, high: Point | None, bisect: bool) -> float:
    if low is None or high is None:
        step = -(excess + TOLERANCE / 2.0) / SLOPE
        return at + max(-LONGEST_STEP, min(LONGEST_STEP, step))
    if bisect:
        return (low[0] + high[0]) / 2.0
    share = (low[1] + TOLERANCE / 2.0) / (low[1] - high[1])
    return low[0] + (high[0] - low[0]) * share
