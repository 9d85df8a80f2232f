"""Warm start for the dense problem: the optimum for half as many steps, interpolated.

The best Lagrange multipliers (see `multipliers`) for n steps in residue classes modulo b are similar to the best
multipliers for n / 2 steps in classes modulo b / 2. Class r of the larger problem corresponds to class r / 2 of the
smaller one. A search that starts from these multipliers starts within a few tenths of a percent of the optimum. An
evaluation of the dual function with half as many steps takes an eighth of the time.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._optimize.dense.residue_blocks import Blocks, ResidueClasses, flatten, unflatten
from antiphase._workload import PrefixSum, Workload

MIN_WARM_START_STEPS = 256  # up to this many steps, the search is fast from any starting point


def can_halve(steps: int, period: int, workload: Workload) -> bool:
    """Return True if the optimum for half the steps and half the period is a useful starting point.

    Steps and period must be even, so that halving both leaves the sizes of the residue classes unchanged. The workload
    must be a prefix sum. With momentum, the optimum for half the steps differs more, and a search that starts there
    converges no faster.

    >>> [can_halve(n, b, PrefixSum()) for n, b in [(1024, 64), (1024, 1), (1001, 2), (64, 8)]]
    [True, False, False, False]
    """
    return steps > MIN_WARM_START_STEPS and steps % 2 == 0 and period % 2 == 0 and isinstance(workload, PrefixSum)


def interpolate(state: Array, classes: ResidueClasses) -> Array:
    """Return a point of the dual function for twice as many steps and classes.

    A point consists of the coordinates of the multipliers and of the weights of the steps. Both are logarithms. They
    are interpolated linearly between the midpoints of the given classes or steps.

    Args:
        state: a point of the dual function for `classes`.
        classes: the residue classes of the smaller problem.

    >>> interpolate(np.array([0.0, 1.0]), ResidueClasses(2, 2))
    array([0.  , 0.25, 0.75, 1.  ])
    """
    like: Blocks = classes.identity()
    size = sum(block.size for block in like)
    fine = [_doubled(block) for block in unflatten(state[:size], like)]
    return np.concatenate([flatten(fine), _doubled(state[size:])])


def _doubled(values: Array) -> Array:
    """Return twice as many values, interpolated along the first axis."""
    middles = np.clip((np.arange(2 * len(values)) - 0.5) / 2.0, 0.0, max(len(values) - 1.0, 0.0))
    before = middles.astype(np.int64)
    after = np.minimum(before + 1, max(len(values) - 1, 0))
    share = (middles - before).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values[before] * (1.0 - share) + values[after] * share)
