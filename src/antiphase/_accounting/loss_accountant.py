"""Privacy loss accountant for many Gaussian steps, each of which sees an example with some probability.

Reference: Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022; Zhu, Dong and Wang 2022, Thm 10 (composition of
dominating pairs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from antiphase._accounting import loss_grid
from antiphase._accounting.loss_grid import LossGrid
from antiphase._accounting.loss_sum import TAIL, LossSum, TooWide

# Grid spacing in standard deviations of a step's loss. Rounding losses to a grid of spacing d adds d^2/6 to the
# variance of each loss. For the fine grid that is a relative error of 1e-4 in the variance and less than 1e-4 in
# epsilon. At sampling rates below 0.001 LARGEST_GRID makes the grid coarser, and epsilon is up to 2 % above the
# smallest.
FINE, COARSE = 0.02, 0.1
LARGEST_GRID = 1 << 18  # points for one step
LARGEST_SPREAD = 1 << 17  # points in a standard deviation of the sum
SMALLEST_INTERVAL = 1e-15
LARGEST_INTERVAL = 1e30  # the sum of 2^53 losses of LARGEST_MU needs one of 1e17
SMALLEST_MU, LARGEST_MU = 1e-10, 1e4  # range in which the grids are numerically reliable; 1e4 means epsilon 5e7
SMALLEST_LOG = -720.0  # e^-745 underflows to 0


@dataclass(frozen=True)
class GaussianSteps:
    """`count` steps, each of which shifts a unit Gaussian by mu with probability `rate`.

    Args:
        mu: size of the shift.
        rate: probability of the shift.
        count: number of steps.
        substitutes: whether the example replaces another one in the sample.
        overflow: if `substitutes` is false, the probability that a full batch makes the example replace another one
            in a step nevertheless, which is a shift of 2 mu.
    """

    mu: float
    rate: float
    count: int
    substitutes: bool = False
    overflow: float = 0.0

    @property
    def symmetric(self) -> bool:
        """Whether both directions of a neighbouring pair have the same loss distribution."""
        return self.substitutes or (self.rate == 1.0 and self.overflow == 0.0)

    def grid(self, direction: str, interval: float, log_tail: float) -> LossGrid:
        """Return the loss distribution of one step."""
        if self.substitutes:
            return loss_grid.substitution(self.mu, self.rate, interval, log_tail)
        pair = loss_grid.removal if direction == "removal" else loss_grid.addition
        grid = pair(self.mu, self.rate, interval, log_tail)
        if self.overflow == 0.0:
            return grid
        substitution = loss_grid.substitution(2.0 * self.mu, self.rate, interval, log_tail)
        return loss_grid.mixture(grid, substitution, self.overflow)


def epsilon(parts: Sequence[GaussianSteps], delta: float, resolution: float = FINE) -> float:
    """Return an upper bound on the smallest epsilon >= 0 of the composition of all parts, in both directions.

    Args:
        parts: steps to compose.
        delta: the target.
        resolution: grid spacing in standard deviations of a loss.

    >>> round(epsilon([GaussianSteps(mu=1.0, rate=0.01, count=1000)], 1e-6), 2)
    2.12
    """
    if any(part.mu > LARGEST_MU for part in parts):
        return math.inf
    log_tail = max(math.log(TAIL) + math.log(delta) - math.log(_count(parts)), SMALLEST_LOG)
    return _largest(parts, resolution, log_tail, lambda total: total.epsilon(delta), math.inf)


def delta(parts: Sequence[GaussianSteps], epsilon: float, resolution: float = FINE) -> float:
    """Return an upper bound on the smallest delta of the composition, in both directions; arguments as in `epsilon`."""
    if any(part.mu > LARGEST_MU for part in parts):
        return 1.0
    log_tail = math.log(1e-30) - math.log(_count(parts))
    found = _largest(parts, resolution, log_tail, lambda total: total.delta(epsilon), 1.0)
    if found > 1e-25:
        return found
    return _largest(parts, resolution, SMALLEST_LOG, lambda total: total.delta(epsilon), 1.0)


def _largest(
    parts: Sequence[GaussianSteps],
    resolution: float,
    log_tail: float,
    value: Callable[[LossSum], float],
    fallback: float,
) -> float:
    """Return the larger value of the two directions, on a grid as fine as requested or as memory allows.

    Returns `fallback`, which is valid for any mechanism, if no grid works: with that many steps, rounding the losses
    widens the sum by more than a coarser grid saves.
    """
    parts = [replace(part, mu=max(part.mu, SMALLEST_MU)) for part in parts]  # a larger shift reveals more
    interval = _interval(parts, resolution, log_tail)
    directions = ["removal"] if all(part.symmetric for part in parts) else ["removal", "addition"]
    while True:
        try:
            return max(
                value(LossSum([(part.grid(direction, interval, log_tail), part.count) for part in parts]))
                for direction in directions
            )
        except TooWide as error:
            interval = error.interval
            if interval > LARGEST_INTERVAL:
                return fallback


def _interval(parts: Sequence[GaussianSteps], resolution: float, log_tail: float) -> float:
    """Return the grid spacing: `resolution` times the RMS deviation of a loss, or more to limit the grid's length."""
    variance = sum(part.count * loss_grid.deviation(part.mu, part.rate) ** 2 for part in parts)
    widest = max(loss_grid.span(2.0 * part.mu if part.overflow else part.mu, part.rate, log_tail) for part in parts)
    return max(
        resolution * math.sqrt(variance / _count(parts)),
        widest / LARGEST_GRID,
        math.sqrt(variance) / LARGEST_SPREAD,
        SMALLEST_INTERVAL,
    )


def _count(parts: Sequence[GaussianSteps]) -> int:
    return sum(part.count for part in parts)
