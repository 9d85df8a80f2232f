"""Error of a banded strategy with its gradient: a power mean of the variances, which tends to the largest one."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase._loss import Objective
from antiphase._optimize.linear_algebra import inner
from antiphase._workload import Workload

# Each objective is minimised for these exponents of the power mean in turn; the last is close enough to the maximum.
OBJECTIVE_POWERS: dict[Objective, tuple[float, ...]] = {"rms": (1.0,), "max": (4.0, 32.0, 256.0, 2048.0, 16384.0)}


def power_mean(variances: Array, power: float) -> tuple[float, Array]:
    """Return log sqrt((mean v^p)^(1/p)) and its derivative with respect to each variance v."""
    largest = float(variances.max())
    scaled = variances / largest
    powers = scaled ** (power - 1.0)
    total = inner(powers, scaled)
    value = 0.5 * (np.log(largest) + np.log(total / len(variances)) / power)
    powers *= 0.5 / (total * largest)
    return float(value), powers


class BandedError:
    """log error of a banded C and its gradient, with the arrays that the forward and backward passes share.

    Args:
        workload: the workload matrix, A.
        steps: number of steps, n.
        bands: number of bands of C.
    """

    def __init__(self, workload: Workload, steps: int, bands: int) -> None:
        if steps * bands > 1 << 27:  # 1 GB for one array of columns, and the optimiser holds about fifteen of them
            raise NotEnoughMemory(
                f"Optimising {steps} columns of {bands} bands each would not fit in memory.",
                hint="use fewer bands, or family='toeplitz' without column_normalized",
            )
        self.inverse = workload.inverse_bands(steps)
        self.covariance = np.empty((steps, bands + self.inverse.shape[1] - 1))

    def variances(self, columns: Array) -> Array:
        """Return the squared row norms of A C^-1."""
        from antiphase._kernels import covariance_forward

        covariance_forward(columns, self.inverse, self.covariance)
        return np.ascontiguousarray(self.covariance[:, 0])

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return the value and, if it is finite, write its gradient into `gradient`, an array like `columns`."""
        from antiphase._kernels import covariance_backward

        variances = self.variances(columns)
        if not np.isfinite(variances).all():
            return np.inf
        value, weights = power_mean(variances, power)
        covariance_backward(columns, self.inverse, self.covariance, weights, gradient)
        return value
