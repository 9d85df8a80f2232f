"""Privacy loss accountant for many Gaussian steps, each of which contains a given example with some probability.

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

# Grid spacing, in standard deviations of the privacy loss of one step. Moving losses to a grid of spacing d adds
# about d^2 / 6 to the variance of each loss. With the fine grid, the relative error is 1e-4 in the variance and less
# than 1e-4 in epsilon. At sampling rates below 0.001, the limit LARGEST_GRID makes the grid coarser, and epsilon is up
# to 2 % too large.
FINE, COARSE = 0.02, 0.1
LARGEST_GRID = 1 << 18  # grid points for the loss of one step
LARGEST_SPREAD = 1 << 17  # grid points per standard deviation of the sum of losses
SMALLEST_INTERVAL = 1e-15
LARGEST_INTERVAL = 1e30  # far more than needed: 1e17 is enough for 2^53 steps with LARGEST_MU
SMALLEST_MU, LARGEST_MU = 1e-10, 1e4  # reliable range; a step with mu = 1e4 has an epsilon of 5e7
SMALLEST_LOG = -720.0  # e^-745 underflows to 0


@dataclass(frozen=True)
class GaussianSteps:
    """`count` steps, each of which shifts a unit Gaussian by mu with probability `rate`.

    Args:
        mu: size of the shift, which is the inverse of the noise multiplier.
        rate: probability of the shift.
        count: number of steps.
        substitutes: True if a sampled example always replaces another one in the sample (`FixedSize`).
        overflow: probability that the batch of a step is full without the example, so that the example replaces
            another one (`max_batch`). Such a step has a shift of 2 mu. Ignored if `substitutes` is true.
    """

    mu: float
    rate: float
    count: int
    substitutes: bool = False
    overflow: float = 0.0

    @property
    def symmetric(self) -> bool:
        """True if removal and addition of the example have the same privacy loss distribution."""
        return self.substitutes or (self.rate == 1.0 and self.overflow == 0.0)

    def grid(self, direction: str, interval: float, log_tail: float) -> LossGrid:
        """Return the privacy loss distribution of one step.

        Args:
            direction: "removal" or "addition" of the example.
            interval: grid spacing.
            log_tail: logarithm of the probability mass that may be moved to an infinite loss.
        """
        if self.substitutes:
            return loss_grid.substitution(self.mu, self.rate, interval, log_tail)
        pair = loss_grid.removal if direction == "removal" else loss_grid.addition
        grid = pair(self.mu, self.rate, interval, log_tail)
        if self.overflow == 0.0:
            return grid
        substitution = loss_grid.substitution(2.0 * self.mu, self.rate, interval, log_tail)
        return loss_grid.mixture(grid, substitution, self.overflow)


def epsilon(parts: Sequence[GaussianSteps], delta: float, resolution: float = FINE) -> float:
    """Return an upper bound on the smallest epsilon >= 0 of the composition of all parts.

    The bound holds for removal and for addition of an example.

    Args:
        parts: steps to compose.
        delta: delta at which epsilon is computed.
        resolution: grid spacing in standard deviations of the loss of one step.

    >>> round(epsilon([GaussianSteps(mu=1.0, rate=0.01, count=1000)], 1e-6), 2)
    2.12
    """
    if any(part.mu > LARGEST_MU for part in parts):
        return math.inf
    log_tail = max(math.log(TAIL) + math.log(delta) - math.log(_count(parts)), SMALLEST_LOG)
    return _largest(parts, resolution, log_tail, lambda total: total.epsilon(delta), math.inf)


def delta(parts: Sequence[GaussianSteps], epsilon: float, resolution: float = FINE) -> float:
    """Return an upper bound on the smallest delta of the composition at `epsilon`, for removal and for addition."""
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
    """Compute `value` for removal and for addition, and return the larger one.

    Uses the requested grid, or the finest one that fits in memory. If no grid fits, returns `fallback`, which is valid
    for any mechanism. This can happen with very many steps, because a coarser grid then widens the distribution of the
    sum so much that it needs as many grid points as before.
    """
    parts = [replace(part, mu=max(part.mu, SMALLEST_MU)) for part in parts]  # safe: a larger shift reveals more
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
    """Return the grid spacing: `resolution` x standard deviation of a loss, or more if that needs too many points."""
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
