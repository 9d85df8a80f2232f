"""A start for the dense problem: the optimum with half as many steps, spread over all of them.

The best multipliers of n steps in classes modulo b look like those of n / 2 steps in classes modulo b / 2: class r
belongs to class r / 2. From there a first evaluation is within some tenths of a percent of the optimum, and each costs
an eighth with half as many steps.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._optimize._classes import Blocks, Classes, flat, unflat
from antiphase._workload import PrefixSum, Workload

SMALLEST = 256  # steps below which the optimum is quick from any start


def halves(steps: int, period: int, workload: Workload) -> bool:
    """Whether half the steps in half as many classes have the same numbers of participations and the same problem.

    With momentum they have another problem, from which the way is as long as from the start.

    >>> [halves(n, b, PrefixSum()) for n, b in [(1024, 64), (1024, 1), (1001, 2), (64, 8)]]
    [True, False, False, False]
    """
    return steps > SMALLEST and steps % 2 == 0 and period % 2 == 0 and isinstance(workload, PrefixSum)


def spread(state: Array, classes: Classes) -> Array:
    """The coordinates of multipliers and rows of weights for twice as many classes as `classes` has.

    Coordinates are logarithms, straight between the middles of the classes that are known.

    >>> spread(np.array([0.0, 1.0]), Classes(2, 2))
    array([0.  , 0.25, 0.75, 1.  ])
    """
    like: Blocks = classes.identity()
    size = sum(block.size for block in like)
    fine = [_doubled(block) for block in unflat(state[:size], like)]
    return np.concatenate([flat(fine), _doubled(state[size:])])


def _doubled(values: Array) -> Array:
    """Twice as many values along the first axis."""
    middles = np.clip((np.arange(2 * len(values)) - 0.5) / 2.0, 0.0, max(len(values) - 1.0, 0.0))
    before = middles.astype(np.int64)
    after = np.minimum(before + 1, max(len(values) - 1, 0))
    share = (middles - before).reshape(-1, *[1] * (values.ndim - 1))
    return np.asarray(values[before] * (1.0 - share) + values[after] * share)
