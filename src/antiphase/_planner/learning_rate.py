"""Predicts the best learning rate of a run from a model of bias and noise.

Let T be the sum of the last row of the workload matrix. Over the whole run, a constant gradient g moves the model by
learning rate x T x g. A gradient that always has the clipping norm moves the model by

    path = learning rate x clipping norm x T.

The bias that remains after training depends only on the path: a direction has converged if its curvature is above
1 / path. The noise in the model is path x nu. Here nu = error / (T x batch size) is the noise per unit of path, and
`error` is the rms error at clipping norm 1. Given path and nu, neither bias nor noise depends on the learning rate, the
number of steps or the units of the schedule. The best path therefore depends only on nu. If bias and noise are both
powers of the path, the best path is a power of nu. The constants of this power law were fitted to the tuned learning
rates of the image task in docs/training.md. That page also compares the predictions with the tuned rates of the other
tasks. The model of bias and noise does not predict the learning rates at which the steepest directions diverge.
"""

from __future__ import annotations

import math

from antiphase._check import Array
from antiphase._objective import LARGEST_RATE
from antiphase._problem import Problem
from antiphase._workload import Workload

PATH, NOISE_PER_PATH, POWER = 1250.0, 1e-4, 1.4  # the best path is PATH * (nu / NOISE_PER_PATH)^-POWER
GRID = 2.0  # ratio of neighbouring learning rates in the suggested grid


def rate_for_error(problem: Problem, rms_error: float) -> float | None:
    """Return the learning rate predicted for an rms error over the steps; None if the batch size is unknown.

    Args:
        problem: the problem, with its workload, batch size and clipping norm.
        rms_error: noise_std x rms error of the strategy, for clipping norm 1.
    """
    if problem.batch_size is None:
        return None
    reach = total_reach(problem.workload, problem.steps)
    noise = rms_error / (reach * problem.batch_size)
    path = PATH * (noise / NOISE_PER_PATH) ** -POWER
    return min(path * problem.workload.largest_rate / reach, LARGEST_RATE) / problem.clip_norm


def rates_to_try(rate: float) -> tuple[float, float, float]:
    """Return three rates around a predicted rate, smallest first, each rounded to two digits.

    >>> rates_to_try(0.1234)
    (0.062, 0.12, 0.25)
    """
    low, middle, high = (float(f"{rate * factor:.2g}") for factor in (1.0 / GRID, 1.0, GRID))
    return low, middle, high


def total_reach(workload: Workload, steps: int) -> float:
    """Return the sum of the last row of the workload matrix: how far a constant gradient of 1 moves the model.

    >>> from antiphase import PrefixSum
    >>> total_reach(PrefixSum(), 10)
    10.0
    """
    from antiphase._kernels import last_row

    row: Array = last_row(workload.inverse_bands(steps), 1)
    return math.fsum(row)
