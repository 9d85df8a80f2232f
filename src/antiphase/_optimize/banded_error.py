"""Error of a banded strategy, and its gradient.

The variance of a step is the variance of the noise in the model after this step. The "max" error is the root of the
largest variance, which is not smooth. The search therefore uses a power mean of the variances, which tends to the
largest variance as the exponent grows.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase._loss import Objective
from antiphase._optimize.linear_algebra import inner
from antiphase._workload import Workload

MAX_POWERS = (4.0, 32.0, 256.0, 2048.0, 16384.0)


def objective_powers(objective: Objective) -> tuple[float, ...]:
    """Return the exponents of the power means to minimise in turn, in increasing order."""
    return MAX_POWERS if objective == "max" else (1.0,)


def power_mean(variances: Array, power: float) -> tuple[float, Array]:
    """Return log sqrt((mean v^p)^(1/p)) for the variances v and p = `power`, and its gradient with respect to v."""
    largest = float(variances.max())
    scaled = variances / largest
    powers = scaled ** (power - 1.0)
    total = inner(powers, scaled)
    value = 0.5 * (np.log(largest) + np.log(total / len(variances)) / power)
    powers *= 0.5 / (total * largest)
    return float(value), powers


class BandedError:
    """Computes log(error) and its gradient for a banded strategy C.

    C is given by an array `columns` of shape (steps, bands), with columns[j, r] = C[j + r, j].

    Args:
        workload: the workload matrix, A.
        steps: number of steps, n.
        bands: number of bands of C.
    """

    def __init__(self, workload: Workload, steps: int, bands: int) -> None:
        check_columns(steps, bands)
        self.inverse = workload.inverse_bands(steps)
        self.covariance = np.empty((steps, bands + self.inverse.shape[1] - 1))

    def variances(self, columns: Array) -> Array:
        """Return the squared row norms of A C^-1, which are the noise variances of the steps."""
        from antiphase._kernels import covariance_forward

        covariance_forward(columns, self.inverse, self.covariance)
        return np.ascontiguousarray(self.covariance[:, 0])

    def reach(self) -> Array:
        """Return the squared norm of every column j of A, which measures how much step j influences the error."""
        return column_squares(self.inverse)

    def tangent(self, columns: Array, power: float, gradient: Array) -> float:
        """Return phi(C) = sum_i w_i var_i, and write its gradient with respect to the columns into `gradient`.

        Here var_i is the variance of step i. The weights w_i are the derivatives of the power mean with respect to
        var_i at `columns`, scaled to sum to 1. If these weights are kept fixed and C varies, phi(C) is at most the
        largest variance for every C. For power = 1, phi(C) is the mean variance. `lower_bound` in `banded.py` uses
        this function.
        """
        from antiphase._kernels import covariance_backward

        variances = self.variances(columns)
        _, weights = power_mean(variances, power)
        weights /= weights.sum()
        covariance_backward(columns, self.inverse, self.covariance, weights, gradient)
        return inner(weights, variances)

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return the logarithm of the root of the power mean. If it is finite, write its gradient into `gradient`."""
        from antiphase._kernels import covariance_backward

        variances = self.variances(columns)
        if not np.isfinite(variances).all():
            return np.inf
        value, weights = power_mean(variances, power)
        covariance_backward(columns, self.inverse, self.covariance, weights, gradient)
        return value


def check_columns(steps: int, bands: int) -> None:
    """Raise `NotEnoughMemory` if an array of shape (steps, bands) exceeds 1 GB.

    The optimiser holds about fifteen such arrays.
    """
    if steps * bands > 1 << 27:
        raise NotEnoughMemory(
            f"Optimising {steps} columns of {bands} bands each would not fit in memory.",
            hint="use fewer bands, or family='toeplitz' without column_normalized",
        )


def column_squares(inverse: Array) -> Array:
    """Return the squared norm of every column of A, given the bands of A^-1.

    Let M be A^T with its rows and columns in reverse order. M is lower triangular. Its squared row norms are the result
    in reverse order, and the bands of M^-1 are the bands of A^-1 in reverse order.
    """
    from antiphase._kernels import autoregressive_variances

    n = len(inverse)
    reversed_inverse = np.zeros_like(inverse)
    for r in range(inverse.shape[1]):
        reversed_inverse[r:, r] = inverse[r:, r][::-1]
    return autoregressive_variances(np.ones((n, 1)), reversed_inverse)[::-1].copy()
