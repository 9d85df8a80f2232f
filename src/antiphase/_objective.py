"""Objectives, which define how the noise in the model is measured: at which steps, and in which directions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, final

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._record import optional, record
from antiphase._workload import Workload

Steps = Literal["all", "last"]


@final
@record
class Curvatures:
    """An objective that averages the noise over directions of different curvature in parameter space.

    In a direction of curvature lambda, SGD with learning rate eta damps old noise at the rate h = eta lambda. Without
    momentum, each step multiplies old noise by 1 - h. For gradients x, the iterates in this direction are A_h x, where
    A_h is `workload.with_curvature(h)`. The squared error of a strategy C is

        J(C) = sum_i p_i ||diag(g) A_{h_i} C^-1||_F^2,    p_i = weight_i / (sum of all weights),

    where g_t^2 = 1 / n if all n steps count. If only the last step counts, g_t^2 is 1 for the last step and 0 for the
    others. The error is the square root of J. With the single curvature 0 and all steps, this is the error "rms". If
    `steps` is a fraction, the model is the mean of the last iterates. Then J is sum_i p_i ||m_i||^2, where the row m_i
    is the mean of the last rows of A_{h_i} C^-1.

    Args:
        values: h_i >= 0, curvature x largest learning rate.
        weights: relative weights, one for each curvature; None for equal weights. To measure the excess loss of a
            quadratic model, weight each direction by its curvature.
        steps: "last" counts the noise in the last iterate, and "all" the mean square over all steps. A fraction f in
            (0, 1] counts the noise in the mean of the last f x n iterates.
        trajectory: weight of a second term of J, the noise over all steps in a flat direction (curvature 0). The second
            term is scaled so that, with weight 1, it equals the first term for independent noise. Without the second
            term, an optimised strategy with separate coefficients for every column has little noise in the last steps
            but far too much in all others.

    >>> Curvatures([0.0, 0.1]).steps
    'last'
    """

    values: Array
    weights: Array | None = None
    steps: Steps | float = "last"
    trajectory: float = optional(0.0)

    def __post_init__(self) -> None:
        owner = "Curvatures"
        values = _check.array(owner, "values", self.values, 1)
        if values.min() < 0.0:
            raise _check.invalid(owner, "values", "non-negative", values.min(), "use 0 for a flat direction")
        object.__setattr__(self, "values", values)
        weights = np.ones(len(values)) if self.weights is None else self.weights
        weights = _check.array(owner, "weights", weights, 1)
        if len(weights) != len(values):
            must = f"of length {len(values)}, like values"
            hint = "pass one weight for each curvature"
            raise _check.invalid(owner, "weights", must, f"{len(weights)} numbers", hint)
        if weights.min() <= 0.0 or not math.isfinite(math.fsum(weights)):
            raise _check.invalid(owner, "weights", "positive", weights.min(), "leave out directions without weight")
        object.__setattr__(self, "weights", weights)
        if self.steps not in ("all", "last"):
            hint = "use 'last' for the last iterate, 'all', or a fraction of the steps at the end"
            if isinstance(self.steps, str):
                raise _check.invalid(owner, "steps", "'all', 'last' or a fraction", self.steps, hint)
            share = _check.real(owner, "steps", self.steps, np.finfo(float).tiny, 1.0, hint)
            object.__setattr__(self, "steps", share)

        hint = "1 gives the noise over all steps the same weight as the noise at the end"
        object.__setattr__(self, "trajectory", _check.real(owner, "trajectory", self.trajectory, 0.0, 1e6, hint))

    @classmethod
    def log_uniform(
        cls,
        low: float,
        high: float,
        count: int = 25,
        power: float = 0.5,
        steps: Steps | float = "last",
        trajectory: float = 0.0,
    ) -> Curvatures:
        """Return `count` log-spaced curvatures h from `low` to `high`, with weights h^power.

        Args:
            low: smallest h.
            high: largest h.
            count: number of curvatures.
            power: 1 weights each direction by its curvature, 0 weights all directions equally.
            steps: the steps over which noise is measured, as for `Curvatures`.
            trajectory: weight of the noise over all steps in a flat direction, as for `Curvatures`.

        >>> Curvatures.log_uniform(0.01, 1.0, 3, power=1.0).weights.tolist()
        [0.01, 0.1, 1.0]
        """
        owner = "Curvatures.log_uniform"
        most = _check.real(owner, "high", high, np.finfo(float).tiny, np.finfo(float).max, "use for example 1")
        least = _check.real(owner, "low", low, np.finfo(float).tiny, most, "use for example 1e-3")
        number = _check.positive_integer(owner, "count", count)
        exponent = _check.real(owner, "power", power, -10.0, 10.0, "use for example 0.5")
        values = np.geomspace(least, most, number)
        return cls(values, values**exponent, steps, trajectory)

    @property
    def destination(self) -> Curvatures:
        """The same objective with `trajectory` set to 0."""
        return replace(self, trajectory=0.0) if self.trajectory else self

    @property
    def way(self) -> Curvatures | None:
        """The noise over all steps that `trajectory` weights, as an objective of its own. None if `trajectory` is 0."""
        return Curvatures(np.zeros(1), steps="all") if self.trajectory else None

    @property
    def shares(self) -> Array:
        """The `weights`, scaled to sum to 1. These are the p_i in J."""
        assert self.weights is not None
        return self.weights / math.fsum(self.weights)

    def counted_steps(self, steps: int) -> int:
        """Return the number of models whose noise counts: one per step, or only the last or averaged model."""
        return steps if self.steps == "all" else 1

    def averaged_steps(self, steps: int) -> int:
        """Return how many of the last iterates of a run are averaged; 1 means that only the last iterate is used."""
        return 1 if isinstance(self.steps, str) else max(1, round(self.steps * steps))

    def workloads(self, workload: Workload) -> list[Workload]:
        """Return the workload A_h for each curvature h."""
        return [workload.with_curvature(float(h)) for h in self.values]

    def last_rows(self, workload: Workload, steps: int, chosen: slice = slice(None)) -> Array:
        """Return the last row of sqrt(p_i) A_{h_i} for each curvature h_i, as the columns of an array.

        The array has shape (steps, curvatures), and p_i are the `shares`. If the model is the mean of the last
        iterates, each column is the mean of the last rows instead. The rows are computed by a recursion from the last
        step to the first.

        Args:
            workload: the workload matrix for curvature 0.
            steps: number of steps, n.
            chosen: slice of the curvatures to use.
        """
        from antiphase._kernels import last_row

        roots, values = np.sqrt(self.shares)[chosen], self.values[chosen]
        rows = np.empty((steps, len(values)))
        for i, h in enumerate(values):
            inverse = workload.with_curvature(float(h)).inverse_bands(steps)
            rows[:, i] = roots[i] * last_row(inverse, self.averaged_steps(steps))
        return rows


Objective = Literal["training", "rms", "max"] | Curvatures

LEAST_RATE, LARGEST_RATE = 1e-4, 3.0


def training_objective(rate: float) -> Curvatures:
    """Return the objective "training", the noise at the end plus the noise over all steps, for a learning rate.

    The curvatures lie between 0.001 and 0.3. This range suits all models of docs/training.md if gradients are clipped
    to norm 1. Each h is one of these curvatures times the learning rate.

    Args:
        rate: largest learning rate x clipping norm. Values outside [1e-4, 3] are clipped to this range. At 3, the
            largest h is 0.9, so SGD converges in every direction.

    >>> training_objective(2.0).values.max().item()
    0.6
    """
    scale = min(max(rate, LEAST_RATE), LARGEST_RATE)
    return Curvatures.log_uniform(1e-3 * scale, 0.3 * scale, count=13, power=0.25, trajectory=1.0)


TRAINING = training_objective(1.0)
"""The objective "training" for learning rate 1, used where the rate is unknown. (The planner predicts a rate.)"""


def resolved(owner: str, objective: object) -> Literal["rms", "max"] | Curvatures:
    """Return the objective, with "training" replaced by `TRAINING`; raise if the objective is not valid."""
    checked = check_objective(owner, objective)
    return TRAINING if checked == "training" else checked


def check_objective(owner: str, objective: object) -> Objective:
    """Return the objective; raise unless it is "training", "rms", "max" or `Curvatures`."""
    if isinstance(objective, Curvatures):
        return objective
    names: tuple[Literal["training", "rms", "max"], ...] = ("training", "rms", "max")
    given = _check.plain(objective) if isinstance(objective, str) else None
    for name in names:
        if name == given:
            return name
    hint = "'training' measures the noise left in the model at the end; 'rms' and 'max' measure it over all steps"
    raise _check.invalid(owner, "objective", "'training', 'rms', 'max' or Curvatures", objective, hint)
