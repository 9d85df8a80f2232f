"""Workloads: linear maps A from the gradients of all steps to the model iterates.

Every workload has a banded inverse, and only the bands of this inverse are computed. Multiplication by A is then a
recursion that takes O(steps x bands) time. The dense matrix A is formed in small cases only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import optional, record


class Workload(ABC):
    """A lower-triangular workload A with a banded inverse."""

    @abstractmethod
    def inverse_bands(self, steps: int) -> Array:
        """Return the bands of A^-1, shape (steps, bands). Entry [t, r] is A^-1[t, t - r], or 0 if t < r."""

    @property
    @abstractmethod
    def toeplitz_inverse(self) -> Array | None:
        """The first column of A^-1 without trailing zeros if A is Toeplitz, else None."""

    @abstractmethod
    def check_steps(self, steps: int) -> None:
        """Raise `InvalidArgument` unless the workload is defined for this many steps."""

    @property
    def largest_rate(self) -> float:
        """The largest learning rate of the schedule; 1 for a workload without one."""
        return 1.0

    def with_curvature(self, h: float) -> Workload:
        """Return the map from gradients to iterates in the directions in which the loss has a given curvature.

        The curvature is h / (largest learning rate). If it is 0, the map is this workload itself. If it is positive,
        the gradient pulls the parameters back to the minimum, which damps old noise.

        Args:
            h: curvature x largest learning rate.
        """
        if h == 0.0:
            return self
        raise _check.invalid(type(self).__name__, "h", "0", h, "use PrefixSum or Momentum, which support curvature")

    def matrix(self, steps: int) -> Array:
        """Return A as a dense array, for small cases."""
        return self.apply(np.eye(_check.positive_integer("matrix", "steps", steps)))

    def apply(self, x: ArrayLike) -> Array:
        """Return s = A x along the first axis, by solving A^-1 s = x step by step."""
        x = np.asarray(x, dtype=np.float64)
        bands = self.inverse_bands(len(x))
        s = np.empty_like(x)
        for t in range(len(x)):
            s[t] = x[t]
            for r in range(1, min(t, bands.shape[1] - 1) + 1):
                s[t] -= bands[t, r] * s[t - r]
            s[t] /= bands[t, 0]
        return s


@final
@record
class PrefixSum(Workload):
    """Plain SGD with a constant learning rate. Iterates are prefix sums: A has ones on and below the diagonal.

    Reference: Denisov et al. 2022.

    >>> PrefixSum().matrix(3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """

    @property
    def toeplitz_inverse(self) -> Array:
        """The first column of A^-1 without trailing zeros: 1, -1."""
        return np.array([1.0, -1.0])

    def check_steps(self, steps: int) -> None:
        """Raise unless `steps` is a positive integer."""
        _check.positive_integer("PrefixSum", "steps", steps)

    def with_curvature(self, h: float) -> Workload:
        """Return `Momentum(0, curvature=h)`, which is plain SGD in a direction of curvature h, or `self` if h is 0."""
        return self if h == 0.0 else Momentum(0.0, curvature=h)

    def inverse_bands(self, steps: int) -> Array:
        """Return the bands of A^-1 = I - L, where L is the shift down by one step."""
        return _constant_bands(self.toeplitz_inverse, _check.positive_integer("PrefixSum", "steps", steps))


@final
@record
class Momentum(Workload):
    """SGD with momentum, a learning-rate schedule and weight decay, in a direction of given curvature.

    With gradients g_t, momentum m_t, parameters theta_t, learning rates eta_t and weight decay wd,

        m_t = beta m_{t-1} + g_t,    theta_t = (1 - eta_t wd) theta_{t-1} - eta_t m_t.

    A maps g to -theta, so that A^-1 = (I - beta L) diag(1/eta) (I - diag(1 - eta wd) L), where L is the shift down by
    one step. Where the loss has curvature lambda, the gradient is g_t + lambda theta_{t-1} instead. Eliminating m
    shows that curvature adds lambda to the first subdiagonal of A^-1 and changes no other entry:

        A^-1[t, t]     = 1 / eta_t,
        A^-1[t, t - 1] = lambda - (1 - eta_t wd) / eta_t - beta / eta_{t-1},
        A^-1[t, t - 2] = beta (1 - eta_{t-1} wd) / eta_{t-1}.

    Curvature and weight decay have different effects: the momentum averages the curvature term, but not the weight
    decay.

    Args:
        beta: momentum, in [0, 1).
        learning_rates: one positive number per step; None for 1 at every step.
        weight_decay: wd >= 0, with eta_t wd <= 1 at every step.
        curvature: lambda >= 0, with eta_t lambda < (1 + beta) (2 - eta_t wd) for the largest eta_t. Beyond this limit
            SGD diverges.

    >>> Momentum(0.5).matrix(3).tolist()
    [[1.0, 0.0, 0.0], [1.5, 1.0, 0.0], [1.75, 1.5, 1.0]]
    >>> Momentum(0.0, curvature=0.5).matrix(3).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """

    beta: float
    learning_rates: Array | None = None
    weight_decay: float = 0.0
    curvature: float = optional(0.0)

    def __post_init__(self) -> None:
        owner = "Momentum"
        beta = _check.real(owner, "beta", self.beta, 0.0, np.nextafter(1.0, 0.0), "use for example 0.9")
        object.__setattr__(self, "beta", beta)
        rates = np.ones(1)
        if self.learning_rates is not None:
            rates = _check.array(owner, "learning_rates", self.learning_rates, 1)
            if not (rates > 0).all():
                raise _check.invalid(
                    owner, "learning_rates", "positive at every step", rates.min(), "use a small floor instead of 0"
                )
            object.__setattr__(self, "learning_rates", rates)
        largest = 1.0 / rates.max()
        decay = _check.real(
            owner, "weight_decay", self.weight_decay, 0.0, largest, "learning rate x weight decay must be at most 1"
        )
        object.__setattr__(self, "weight_decay", decay)
        object.__setattr__(self, "curvature", self._stable_curvature())

    def _stable_curvature(self) -> float:
        """Return the curvature as a float; raise if SGD diverges at the largest learning rate, eta.

        SGD does not diverge if no root of z^2 - (1 - eta wd + beta - eta lambda) z + beta (1 - eta wd) lies outside the
        unit circle. That holds for eta lambda up to (1 + beta) (2 - eta wd). At this limit, one root reaches -1.
        """
        owner, rate = "Momentum", self.largest_rate
        value = _check.real(owner, "curvature", self.curvature, 0.0, np.finfo(float).max, "use 0 for a flat direction")
        limit = (1.0 + self.beta) * (2.0 - rate * self.weight_decay) / rate
        if value >= limit:
            must = f"less than {limit:g}, because SGD with this momentum and learning rate diverges otherwise"
            raise _check.invalid(owner, "curvature", must, value, "use a smaller curvature or learning rate")
        return value

    @property
    def largest_rate(self) -> float:
        """The largest learning rate."""
        return 1.0 if self.learning_rates is None else float(self.learning_rates.max())

    def with_curvature(self, h: float) -> Momentum:
        """Return this workload in the directions in which the loss has curvature h / (largest learning rate).

        Args:
            h: curvature x largest learning rate.

        >>> Momentum(0.9, [0.1, 0.2]).with_curvature(0.5).curvature
        2.5
        """
        if self.curvature != 0.0:
            must = "0 if the objective is Curvatures"
            hint = "set the curvature in the workload or in the objective, not in both"
            raise _check.invalid("Momentum", "curvature", must, self.curvature, hint)
        return self if h == 0.0 else replace(self, curvature=h / self.largest_rate)

    @property
    def toeplitz_inverse(self) -> Array | None:
        """The first column of A^-1 without trailing zeros if the learning rate is constant, else None.

        Its entries are the coefficients of the polynomial (1 - beta x) (1 - (1 - eta wd) x) / eta + lambda x.
        """
        rates = np.ones(1) if self.learning_rates is None else self.learning_rates
        if (rates != rates[0]).any():
            return None
        eta = rates[0]
        inverse = np.convolve([1.0, -self.beta], [1.0, eta * self.weight_decay - 1.0]) / eta
        inverse[1] += self.curvature
        return _trim(inverse)

    def inverse_bands(self, steps: int) -> Array:
        """Return the three bands of A^-1, or two without momentum, from the formulas in the class docstring."""
        self.check_steps(steps)
        n, eta = steps, np.ones(steps) if self.learning_rates is None else self.learning_rates
        keep = 1.0 - eta * self.weight_decay
        bands = np.zeros((n, 3))
        bands[:, 0] = 1.0 / eta
        bands[1:, 1] = -keep[1:] / eta[1:] - self.beta / eta[:-1] + self.curvature
        bands[2:, 2] = self.beta * keep[1:-1] / eta[1:-1]
        return bands if self.beta > 0 else bands[:, :2].copy()

    def check_steps(self, steps: int) -> None:
        """Raise unless there is one learning rate per step, or no learning rates are given."""
        n = _check.positive_integer("Momentum", "steps", steps)
        if self.learning_rates is not None and len(self.learning_rates) != n:
            raise _check.invalid(
                "Momentum",
                "learning_rates",
                f"one number for each of the {n} steps",
                f"{len(self.learning_rates)} numbers",
                f"make the schedule for {n} steps",
            )


def _constant_bands(first_column: Array, steps: int) -> Array:
    bands = np.tile(first_column, (steps, 1))
    for r in range(1, len(first_column)):
        bands[:r, r] = 0.0
    return bands


def _trim(coefficients: Array) -> Array:
    return np.trim_zeros(coefficients, "b")
