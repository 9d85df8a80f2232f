"""Accounting by privacy losses: many Gaussian steps, each seeing an example with some probability.

Reference: Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022; Zhu, Dong and Wang 2022, Thm 10 (dominating
pairs compose).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from antiphase._accounting import loss_grid
from antiphase._accounting.loss_grid import LossGrid
from antiphase._accounting.loss_sum import TAIL, LossSum, TooWide

# Distance of grid points in standard deviations of a step's loss. Rounding to a grid adds d^2/6 to the variance of
# each loss: 1e-4 of it, hence less than 1e-4 of epsilon, for the fine one. At sampling rates below 0.001 LARGEST_GRID
# makes the grid coarser than that, and epsilon lies up to 2 % above the smallest.
FINE, COARSE = 0.02, 0.1
LARGEST_GRID = 1 << 18  # points for one step
LARGEST_SPREAD = 1 << 17  # points in a standard deviation of the sum
SMALLEST_INTERVAL = 1e-15
LARGEST_INTERVAL = 1e30  # the sum of 2^53 losses of LARGEST_MU needs one of 1e17
SMALLEST_MU, LARGEST_MU = 1e-10, 1e4  # where the arithmetic of the grids holds; 1e4 means epsilon 5e7
SMALLEST_LOG = -720.0  # delta is no number below e^-745


@dataclass(frozen=True)
class GaussianSteps:
    """`count` steps, each of which moves a unit Gaussian by mu with probability `rate`.

    Args:
        mu: size of the shift.
        rate: probability of the shift.
        count: number of steps.
        substitutes: whether the example takes the place of another one.
        overflow: the probability, in a step without substitution, that it does so all the same, which moves by 2 mu.
    """

    mu: float
    rate: float
    count: int
    substitutes: bool = False
    overflow: float = 0.0

    @property
    def symmetric(self) -> bool:
        """Whether the two directions of neighbouring data sets have one loss distribution."""
        return self.substitutes or (self.rate == 1.0 and self.overflow == 0.0)

    def grid(self, direction: str, interval: float, log_tail: float) -> LossGrid:
        """The loss of one step."""
        if self.substitutes:
            return loss_grid.substitution(self.mu, self.rate, interval, log_tail)
        pair = loss_grid.removal if direction == "removal" else loss_grid.addition
        grid = pair(self.mu, self.rate, interval, log_tail)
        if self.overflow == 0.0:
            return grid
        substitution = loss_grid.substitution(2.0 * self.mu, self.rate, interval, log_tail)
        return loss_grid.mixture(grid, substitution, self.overflow)


def epsilon(parts: Sequence[GaussianSteps], delta: float, resolution: float = FINE) -> float:
    """An upper bound on the smallest epsilon >= 0 of all parts together, over both directions.

    Args:
        parts: what is composed.
        delta: the target.
        resolution: distance of grid points in standard deviations of a loss.

    >>> round(epsilon([GaussianSteps(mu=1.0, rate=0.01, count=1000)], 1e-6), 2)
    2.12
    """
    if any(part.mu > LARGEST_MU for part in parts):
        return math.inf
    log_tail = max(math.log(TAIL) + math.log(delta) - math.log(_count(parts)), SMALLEST_LOG)
    return _largest(parts, resolution, log_tail, lambda total: total.epsilon(delta), math.inf)


def delta(parts: Sequence[GaussianSteps], epsilon: float, resolution: float = FINE) -> float:
    """An upper bound on the smallest delta of all parts together, over both directions; arguments as for `epsilon`."""
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
    nothing: float,
) -> float:
    """Return the larger value of the two directions, on a grid as fine as requested or as memory allows.

    Returns `nothing`, which holds for any mechanism, if no grid will do: with so many steps, rounding their losses
    widens the sum by more than a coarser grid saves.
    """
    parts = [replace(part, mu=max(part.mu, SMALLEST_MU)) for part in parts]  # more is revealed by a larger shift
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
                return nothing


def _interval(parts: Sequence[GaussianSteps], resolution: float, log_tail: float) -> float:
    """A share of the root mean square deviation of a loss, wider where grids would become too long."""
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
