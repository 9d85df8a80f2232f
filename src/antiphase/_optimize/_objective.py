"""The error to be minimised: a power mean of the variances, whose limit is the largest."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase._loss import Objective
from antiphase._optimize._vectors import inner
from antiphase._workload import Workload

LARGEST_COLUMNS = 1 << 27  # entries; a descent holds some fifteen such arrays
POWERS: dict[Objective, tuple[float, ...]] = {"rms": (1.0,), "max": (4.0, 32.0, 256.0, 2048.0, 16384.0)}


def power_mean(variances: Array, power: float) -> tuple[float, Array]:
    """log of sqrt((mean v^p)^(1/p)) and its derivative for each variance."""
    largest = float(variances.max())
    scaled = variances / largest
    powers = scaled ** (power - 1.0)
    total = inner(powers, scaled)
    value = 0.5 * (np.log(largest) + np.log(total / len(variances)) / power)
    powers *= 0.5 / (total * largest)
    return float(value), powers


class BandedError:
    """log error of a banded C and its gradient, with the arrays that the two passes share."""

    def __init__(self, workload: Workload, steps: int, bands: int) -> None:
        if steps * bands > LARGEST_COLUMNS:
            raise NotEnoughMemory(
                f"Optimising {steps} columns of {bands} bands one by one would not fit in memory.",
                hint="use fewer bands, or family='toeplitz' without column_normalized",
            )
        self.inverse = workload.inverse_bands(steps)
        self.covariance = np.empty((steps, bands + self.inverse.shape[1] - 1))

    def variances(self, columns: Array) -> Array:
        """The squared row norms of A C^-1."""
        from antiphase._kernels.covariance_gradient import forward

        forward(columns, self.inverse, self.covariance)
        return np.ascontiguousarray(self.covariance[:, 0])

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """The value; `gradient`, of the shape of `columns`, is filled where the value is finite."""
        from antiphase._kernels.covariance_gradient import backward

        variances = self.variances(columns)
        if not np.isfinite(variances).all():
            return np.inf
        value, weights = power_mean(variances, power)
        backward(columns, self.inverse, self.covariance, weights, gradient)
        return value
