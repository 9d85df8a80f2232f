"""Gradients by finite differences, and errors by dense algebra, for the tests of the optimisers."""

import numpy as np


def differences(function, x, size=1e-6):
    """Return the gradient of function(x, gradient) at x, by central differences."""
    unused, out = np.empty_like(x), np.empty_like(x)
    for i in range(len(x)):
        step = np.zeros_like(x)
        step[i] = size * max(1.0, abs(x[i]))
        out[i] = (function(x + step, unused) - function(x - step, unused)) / (2 * step[i])
    return out


def check_gradient(function, x, rtol=1e-6):
    gradient = np.empty_like(x)
    value = function(x, gradient)
    expected = differences(function, x)
    rounding = 1e-9 * abs(value)  # rounding error of (difference of two values) / 2e-6
    np.testing.assert_allclose(gradient, expected, rtol=rtol, atol=rtol * max(1e-3, np.abs(expected).max()) + rounding)


def worst_pattern(C, participation):
    """Return the largest norm of the sum of the columns of C for the steps of a participation pattern.

    This is the sensitivity if X = C^T C has no negative entries.
    """
    return max(np.linalg.norm(C[:, list(p)].sum(axis=1)) for p in participation.patterns(C.shape[1]))


def dense_variances(C, A):
    return ((A @ np.linalg.inv(C)) ** 2).sum(axis=1)


def dense_error(C, A, objective):
    variances = dense_variances(C, A)
    return np.sqrt(variances.mean() if objective == "rms" else variances.max())
