"""Objectives: the steps and the directions of parameter space in which noise in the model counts."""

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
    """The noise in directions of several curvatures, at the end of training or over all steps.

    In a direction of curvature lambda, SGD with learning rate eta forgets old noise at a rate h = eta lambda, so that
    its iterates are A_h x with A_h = `workload.with_curvature(h)`. The squared error of a strategy C is

        J(C) = sum_i p_i ||diag(g) A_{h_i} C^-1||_F^2,    p_i = weight_i / (sum of all weights),

    where g_t^2 = 1 / m for the m steps that count and 0 for the others. The error is the square root of J. With the
    single curvature 0 and all steps, it is the error "rms".

    Args:
        values: h_i >= 0, curvature x largest learning rate.
        weights: relative weights, one for each curvature; None for equal ones. The excess loss of a quadratic model
            weights a direction by its curvature.
        steps: the steps that count: "last" for the last iterate, "all", or a fraction in (0, 1] for that fraction of
            the steps at the end.
        trajectory: weight of a second term, the noise over all steps in a flat direction. With 1, the two terms are
            equal for independent noise. Without the second term, a strategy whose columns are free spends the whole
            budget on the last steps and drowns the others in noise.

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
            raise _check.invalid(owner, "values", "non-negative", values.min(), "0 is a flat direction")
        object.__setattr__(self, "values", values)
        weights = np.ones(len(values)) if self.weights is None else self.weights
        weights = _check.array(owner, "weights", weights, 1)
        if len(weights) != len(values):
            must = f"as many as values, {len(values)}"
            raise _check.invalid(owner, "weights", must, f"{len(weights)} numbers", "one weight for each curvature")
        if weights.min() <= 0.0 or not math.isfinite(math.fsum(weights)):
            raise _check.invalid(owner, "weights", "positive", weights.min(), "leave out directions without weight")
        object.__setattr__(self, "weights", weights)
        if self.steps not in ("all", "last"):
            hint = "use 'last' for the last iterate, 'all', or a fraction of the steps at the end"
            if isinstance(self.steps, str):
                raise _check.invalid(owner, "steps", "'all', 'last' or a fraction", self.steps, hint)
            share = _check.real(owner, "steps", self.steps, np.finfo(float).tiny, 1.0, hint)
            object.__setattr__(self, "steps", share)

        hint = "1 counts the noise over all steps as much as the noise at the end"
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
        """Return curvatures spaced evenly in their logarithm, with weights h^power.

        Args:
            low: smallest h.
            high: largest h.
            count: number of curvatures.
            power: 1 weights each direction by its curvature, 0 weights all directions equally.
            steps: the steps that count.
            trajectory: weight of the noise over all steps.

        >>> Curvatures.log_uniform(0.01, 1.0, 3, power=1.0).weights.tolist()
        [0.01, 0.1, 1.0]
        """
        owner = "Curvatures.log_uniform"
        most = _check.real(owner, "high", high, np.finfo(float).tiny, np.finfo(float).max, "1 is usual")
        least = _check.real(owner, "low", low, np.finfo(float).tiny, most, "1e-3 is usual")
        number = _check.positive_integer(owner, "count", count)
        exponent = _check.real(owner, "power", power, -10.0, 10.0, "0.5 is usual")
        values = np.geomspace(least, most, number)
        return cls(values, values**exponent, steps, trajectory)

    @property
    def destination(self) -> Curvatures:
        """The same objective without the trajectory term."""
        return replace(self, trajectory=0.0) if self.trajectory else self

    @property
    def way(self) -> Curvatures | None:
        """The trajectory term, the noise over all steps in a flat direction; None if it does not count."""
        return Curvatures(np.zeros(1), steps="all") if self.trajectory else None

    @property
    def shares(self) -> Array:
        """The weights, scaled to sum to 1."""
        assert self.weights is not None
        return self.weights / math.fsum(self.weights)

    def counted_steps(self, steps: int) -> int:
        """Return how many of the last steps count in a run of `steps` steps, at least one."""
        if self.steps == "all":
            return steps
        return 1 if self.steps == "last" else max(1, round(float(self.steps) * steps))

    def workloads(self, workload: Workload) -> list[Workload]:
        """Return A_h for every curvature."""
        return [workload.with_curvature(float(h)) for h in self.values]

    def last_rows(self, workload: Workload, steps: int, chosen: slice = slice(None)) -> Array:
        """Return the last rows of sqrt(p_i) A_{h_i}, one column for each curvature, shape (steps, curvatures).

        Each row a solves A_h^-T a = e_n, by a recursion from the last step to the first.

        Args:
            workload: the workload matrix for curvature 0.
            steps: number of steps, n.
            chosen: which curvatures to use.
        """
        from antiphase._kernels import last_row

        roots, values = np.sqrt(self.shares)[chosen], self.values[chosen]
        rows = np.empty((steps, len(values)))
        for i, h in enumerate(values):
            rows[:, i] = roots[i] * last_row(workload.with_curvature(float(h)).inverse_bands(steps))
        return rows


Objective = Literal["training", "rms", "max"] | Curvatures

TRAINING = Curvatures.log_uniform(1e-3, 1.0, count=13, power=0.25, trajectory=1.0)
"""The objective "training": the noise left in the model at the end of training, plus the noise over all steps.

It needs no knowledge of the model. Directions with h below 1e-3 keep most of their noise to the end, whatever the
mechanism, and at learning rates that train well the largest h is near 1. docs/training.md compares it with measured
accuracy.
"""


def resolved(owner: str, objective: object) -> Literal["rms", "max"] | Curvatures:
    """Return the objective, with `TRAINING` in place of "training"; raise if it is not a valid objective."""
    checked = check_objective(owner, objective)
    return TRAINING if checked == "training" else checked


def check_objective(owner: str, objective: object) -> Objective:
    """Return the objective, a name as a plain `str`; raise unless it is "training", "rms", "max" or `Curvatures`."""
    if isinstance(objective, Curvatures):
        return objective
    names: tuple[Literal["training", "rms", "max"], ...] = ("training", "rms", "max")
    given = _check.plain(objective) if isinstance(objective, str) else None
    for name in names:
        if name == given:
            return name
    hint = "training counts the noise left in the model at the end; rms and max count the noise over the steps"
    raise _check.invalid(owner, "objective", "'training', 'rms', 'max' or Curvatures", objective, hint)
