"""Reference optimizer of Toeplitz strategies for the last iterate of a model with known curvatures.

For weights w_i and values h_i of curvature x learning rate, it minimises
    ||c||^2 sum_i w_i ||C^-T a_i||^2
over lower-triangular Toeplitz matrices C with first column c. Here a_i is the last row of the workload matrix of SGD in
a direction with curvature x learning rate = h_i. The factor ||c||^2 is the squared sensitivity for a single
participation, and the sum is the squared noise of the last iterate for noise_std 1. The code is meant for comparisons
with up to a few thousand steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

Array = np.ndarray[Any, np.dtype[np.float64]]


def last_rows(beta: float, rates: Array, curvatures: Array) -> Array:
    """Return -d theta_n / d w_t for every curvature h and step t, of shape (curvatures, steps).

    Here theta_n is the parameter after the last step, and w_t is the noise of step t. The recursion of SGD is
    m_t = beta m_{t-1} + h theta_{t-1} + w_t, theta_t = theta_{t-1} - s_t m_t, with learning rates s (`rates`). The
    derivatives are computed by the adjoint recursion.
    """
    steps = len(rates)
    by_theta, by_momentum = np.ones(len(curvatures)), np.zeros(len(curvatures))
    rows = np.empty((len(curvatures), steps))
    for t in range(steps - 1, -1, -1):
        by_momentum = beta * by_momentum - rates[t] * by_theta
        rows[:, t] = -by_momentum
        by_theta = by_theta + curvatures * by_momentum
    return rows


def loss_and_gradient(c: Array, rows: Array, weights: Array) -> tuple[float, Array]:
    """Return the logarithm of ||c||^2 sum_i w_i ||C^-T a_i||^2, and its gradient with respect to c."""
    y = lfilter([1.0], c, rows[:, ::-1], axis=1)[:, ::-1]
    u = lfilter([1.0], c, y, axis=1)
    loss = float(weights @ np.square(y).sum(1))
    steps = rows.shape[1]
    products = [weights @ (u[:, : steps - k] * y[:, k:]).sum(1) for k in range(len(c))]
    return float(np.log(loss) + np.log(c @ c)), -2 * np.array(products) / loss + 2 * c / (c @ c)


def last_iterate_toeplitz(
    bands: int, beta: float, rates: Array, curvatures: Array, weights: Array, iterations: int = 500
) -> Array:
    """Return the first column of the best Toeplitz strategy with `bands` bands, scaled to a first entry of 1."""
    rows = last_rows(beta, rates, curvatures)
    start = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / np.arange(1, bands)]))

    def function(free: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = loss_and_gradient(np.concatenate([[1.0], free]), rows, weights)
        return (value, gradient[1:]) if np.isfinite(value) else (1e6, np.zeros_like(free))

    if bands == 1:
        return np.ones(1)
    found = minimize(function, start[1:], jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return np.concatenate([[1.0], found.x])


def log_uniform(low: float, high: float, power: float, points: int = 25) -> tuple[Array, Array]:
    """Return log-uniform curvatures h on [low, high], and weights proportional to h^power that sum to 1."""
    h = np.geomspace(low, high, points)
    return h, h**power / (h**power).sum()
