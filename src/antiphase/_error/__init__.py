"""Computes the error of a strategy from the variance of the noise in the model after each step.

A is the workload matrix, C the strategy matrix, N its noising matrix (a left inverse), and n the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._error.table import per_step_variances, squared_norm, toeplitz_sums
from antiphase._errors import InvalidArgument
from antiphase._objective import Curvatures, Objective, resolved
from antiphase._workload import Workload
from antiphase.strategies import Identity, Strategy

MAX_ENTRIES = 1 << 22  # largest size of an array of last rows of A; more curvatures are processed in turn


@dataclass(frozen=True)
class ErrorProfile:
    """The error of a strategy for noise of standard deviation 1, with the variance of each step.

    Args:
        value: the error under the chosen objective.
        compute: function that returns `per_step`, called when `per_step` is first read. For `Curvatures`, each variance
            is the weighted mean over the curvatures.
        known: the pair (rms, max), if it is known without computing the variances.
    """

    value: float
    compute: Callable[[], Array]
    known: tuple[float, float] | None = None

    @cached_property
    def per_step(self) -> Array:
        """The variance of the noise in the model after each step, for noise of standard deviation 1."""
        return self.compute()

    @property
    def rms(self) -> float:
        """Square root of the mean variance over the n steps, ||A N||_F / sqrt(n)."""
        return math.sqrt(float(self.per_step.mean())) if self.known is None else self.known[0]

    @property
    def max(self) -> float:
        """Square root of the largest variance, which is the largest row norm of A N."""
        return math.sqrt(float(self.per_step.max())) if self.known is None else self.known[1]


def error(strategy: Strategy, workload: Workload, objective: Objective = "rms") -> ErrorProfile:
    """Return the error of a strategy on a workload, from the row norms of B = A N.

    The result is exact. For Identity and BLT, and for Toeplitz, Banded and BandedInverse with few bands, the time is
    linear in the number of steps. For Tree and Fourier, the computation uses the structure of the matrices. For Dense
    and for strategies with many bands, it uses dense algebra or Fourier transforms. The error of the last iterate (the
    model after the last step, which `Curvatures` measures by default) depends only on the last row of A.

    Args:
        strategy: strategy matrix, C, with its left inverse N.
        workload: workload matrix, A.
        objective: the error that `value` reports. "rms" or "max" is taken over the steps. A `Curvatures` object
            averages the noise over directions of different curvature. "training" stands for the `Curvatures` object
            that is used if the learning rate is unknown.

    Reference: McKenna 2024 (scaling), section 3, for the objective.

    >>> from antiphase import Curvatures, PrefixSum, strategies
    >>> error(strategies.Identity(4), PrefixSum()).per_step.tolist()
    [1.0, 2.0, 3.0, 4.0]
    >>> error(strategies.Identity(4), PrefixSum(), Curvatures([0.0])).value
    2.0
    """
    objective = resolved("error", objective)
    workload.check_steps(strategy.steps)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(objective, Curvatures):
            mixed = squared_error(strategy, workload, objective)
            return ErrorProfile(_root(mixed), lambda: _mean_variances(strategy, workload, objective))
        sums = _closed_sums(strategy, workload)
        if sums is None:
            variances = per_step_variances(strategy, workload)
            rms, most = _root(float(variances.mean())), _root(float(variances.max()))
            return ErrorProfile(rms if objective == "rms" else most, lambda: variances, (rms, most))
    total, weighted = sums
    rms, most = _root(weighted / strategy.steps), _root(total)
    value = rms if objective == "rms" else most
    return ErrorProfile(value, lambda: per_step_variances(strategy, workload), (rms, most))


def _root(square: float) -> float:
    if not math.isfinite(square):
        raise InvalidArgument(
            "The error of this strategy is too large for floating point, because the entries of C^-1 grow too fast.",
            hint="choose coefficients that decay, such as the coefficients of Toeplitz.square_root",
        )
    return math.sqrt(square)


def squared_error(strategy: Strategy, workload: Workload, objective: Curvatures) -> float:
    """Return J(C), the squared error under a `Curvatures` objective.

    For each curvature, the objective selects one number: the variance of the last iterate (the model after the last
    step), the variance of the mean of the last iterates, or the mean variance over all steps. J is the weighted mean of
    these numbers over the curvatures, plus the trajectory term if the objective has one. The trajectory term is
    `trajectory_weight` times the mean variance over all steps for curvature 0.
    """
    if objective.way is not None:
        weight = trajectory_weight(workload, objective, strategy.steps)
        at_end = squared_error(strategy, workload, objective.destination)
        return at_end + weight * squared_error(strategy, workload, objective.way)
    n = strategy.steps
    counted, workloads = objective.counted_steps(n), objective.workloads(workload)
    closed = toeplitz_sums(strategy) is not None and workloads[0].toeplitz_inverse is not None
    if counted == 1 and (not closed or objective.averaged_steps(n) > 1):
        return _last_iterate_variance(strategy, workload, objective)
    values = [_mean_variance(strategy, A, counted) for A in workloads]
    return math.fsum(share * value for share, value in zip(objective.shares, values, strict=True))


def trajectory_weight(workload: Workload, objective: Curvatures, steps: int) -> float:
    """Return the weight of the trajectory term in J.

    The weight is chosen so that, for independent noise (C = I), the weighted trajectory term is `objective.trajectory`
    times the other term of J.
    """
    if objective.way is None:
        return 0.0
    plain = Identity(steps)
    at_end = squared_error(plain, workload, objective.destination)
    return objective.trajectory * at_end / squared_error(plain, workload, objective.way)


def _mean_variance(strategy: Strategy, workload: Workload, counted: int) -> float:
    """Return the mean variance of the last `counted` steps.

    If W(t) is the sum of the variances of the first t steps, the sum over the last m of n steps is W(n) - W(n - m).
    """
    sums = _closed_sums(strategy, workload)
    if sums is None:
        return float(per_step_variances(strategy, workload)[-counted:].mean())
    total, weighted = sums
    if counted == 1:
        return total
    if counted == strategy.steps:
        return weighted / counted
    before = _closed_sums(strategy, workload, strategy.steps - counted)
    assert before is not None
    return (weighted - before[1]) / counted


def _mean_variances(strategy: Strategy, workload: Workload, objective: Curvatures) -> Array:
    """Return the variance of each step, averaged over the curvatures with their weights."""
    total = np.zeros(strategy.steps)
    for share, A in zip(objective.shares, objective.workloads(workload), strict=True):
        total += share * per_step_variances(strategy, A)
    return total


def _last_iterate_variance(strategy: Strategy, workload: Workload, objective: Curvatures) -> float:
    """Return the variance of the last iterate, or of the mean of the last iterates, averaged over the curvatures.

    The average uses the weights of the curvatures, and the noise z has standard deviation 1.
    """
    n = strategy.steps
    size = max(1, MAX_ENTRIES // n)
    total = 0.0
    for i in range(0, len(objective.values), size):
        total += squared_norm(strategy, objective.last_rows(workload, n, slice(i, i + size)))
    return total


def _closed_sums(strategy: Strategy, workload: Workload, steps: int | None = None) -> tuple[float, float] | None:
    """Return sum_i w_i^2 and sum_i (n - i) w_i^2, where w is the first column of A C^-1, if A and C are Toeplitz.

    Here n is `steps`, by default the number of steps of the strategy. The first sum is the variance of the last step,
    and the second sum is the sum of the variances of all n steps. No arrays of length n are needed. Returns None if A
    or C is not Toeplitz.
    """
    constant, sums = workload.toeplitz_inverse, toeplitz_sums(strategy)
    if constant is None or sums is None:
        return None
    return sums(constant, strategy.steps if steps is None else steps)
