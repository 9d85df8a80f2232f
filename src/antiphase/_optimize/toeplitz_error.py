"""Error of a Toeplitz strategy under a Toeplitz workload, and its gradient.

For a workload A and a strategy C, A C^-1 is Toeplitz. Its first column is w = A u, where u is the first column of C^-1.
The noise variance of step t is w_0^2 + ... + w_t^2. The derivative of w with respect to coefficient r of C is -C^-1 w,
shifted down by r steps. So one more filter, run backwards in time, gives the whole gradient. At some step, the entries
of w become constant up to rounding. The sums over all later steps have a closed form, so the cost does not grow with
the number of these steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase._optimize.linear_algebra import inner

MAX_RESPONSE_LENGTH = 1 << 24
# Both constants are distances of the entries of w to their limit, relative to the largest of the first entries.
CONSTANT_TOLERANCE = 1e-12  # w is treated as constant at distances up to this
DIVERGED = 1e6  # w is treated as unbounded at distances of this or more


def squared_error(c: Array, inverse: Array, steps: int, counted: int) -> tuple[float, Array]:
    """Return the mean noise variance of the last m steps, and its gradient with respect to the coefficients of C.

    The mean variance is sum_i weight_i w_i^2 with weight_i = min(1, (n - i) / m).

    Args:
        c: first column of C.
        inverse: first column of A^-1.
        steps: number of steps, n.
        counted: number of steps to average over, m. For m = n, the result is the mean variance of all steps. For m = 1,
            it is the variance of the last step, which is the largest.

    Reference: McKenna 2024 (scaling), Prop. 3.1 and C.1.

    >>> squared_error(np.array([1.0]), np.array([1.0, -1.0]), 4, counted=4)[0]
    2.5
    """
    w = impulse_response(c, inverse, steps)
    if w is None:
        return np.inf, np.zeros_like(c)
    limit = _limit(c, inverse)
    weights, rest = _weights(len(w), steps, counted)
    g = 2.0 * weights * w
    gradient = pull_back(c, w, g) - 2.0 * rest * limit**2 / c.sum()
    return 0.5 * inner(g, w) + rest * limit**2, gradient


def squared_error_of_inverse(inverse: Array, steps: int, counted: int) -> Callable[[Array], tuple[float, Array]]:
    """Return a function from the first column d of C^-1 to the mean noise variance of the last `counted` steps.

    The function returns the variance and its gradient. The variance is a quadratic form in d, because w = A d.

    Raises `NotEnoughMemory` if the first column of A becomes constant only after more than MAX_RESPONSE_LENGTH steps.

    >>> squared_error_of_inverse(np.array([1.0, -1.0]), 4, counted=1)(np.array([1.0, -1.0]))[0]
    1.0
    """
    a = impulse_response(np.ones(1), inverse, steps)
    if a is None:
        raise NotEnoughMemory(
            "The first column of this workload matrix does not become constant within 2^24 steps.",
            hint="use fewer steps",
        )
    limit = _limit(np.ones(1), inverse)

    def square(d: Array) -> tuple[float, Array]:
        length = min(steps, len(a) + len(d))
        extended = np.concatenate([a, np.full(length - len(a), limit)])
        w = np.convolve(d, extended)[:length]
        weights, rest = _weights(length, steps, counted)
        g = 2.0 * weights * w
        end = float(d.sum()) * limit
        gradient = np.array([inner(g[r:], extended[: length - r]) for r in range(len(d))])
        return 0.5 * inner(g, w) + rest * end**2, gradient + 2.0 * rest * end * limit

    return square


def _weights(length: int, steps: int, counted: int) -> tuple[Array, float]:
    """Return the weights of the first `length` entries of w, and the sum of the other weights.

    The weights are min(1, (n - i) / m), as in `squared_error`.
    """
    left = float(steps - length)
    if counted == 1:
        return np.ones(length), left
    weights = np.minimum((steps - np.arange(length)) / counted, 1.0)
    if left <= counted:
        return weights, left * (left + 1.0) / (2.0 * counted)
    return weights, left - counted + (counted + 1.0) / 2.0


def _limit(c: Array, inverse: Array) -> float:
    """Return the limit of the entries w_i of `impulse_response` for large i.

    The limit is 0 if the coefficients of A^-1 do not sum to 0. They sum to 0 if the workload has neither weight decay
    nor curvature. In that case, the power series of A^-1 is (1 - x) E(x) with a polynomial E, and the limit is
    1 / (c(1) E(1)), where c(1) is the sum of the coefficients of C.
    """
    if abs(inverse.sum()) > 1e-12 * np.abs(inverse).sum():
        return 0.0
    return float(1.0 / (c.sum() * np.cumsum(inverse)[:-1].sum()))


def impulse_response(c: Array, inverse: Array, steps: int) -> Array | None:
    """Return the first column w of A C^-1, truncated where it becomes constant.

    Returns None if w diverges, or if it is not constant after MAX_RESPONSE_LENGTH steps. A is applied before C^-1. In
    the other order, A would sum up the rounding errors of C^-1.
    """
    limit = _limit(c, inverse)
    if series_is_faster(c, steps):
        a, _ = _filter(inverse, np.eye(1, steps)[0], np.zeros(len(inverse) - 1))
        return _product(series_inverse(c, steps), a)
    blocks: list[Array] = []
    start, size = 0, max(2048, 2 * len(c))  # filter in blocks of growing size
    first, second = np.zeros(len(inverse) - 1), np.zeros(len(c) - 1)
    while start < min(steps, MAX_RESPONSE_LENGTH):
        x = np.zeros(min(size, steps - start))
        x[0] = 1.0 if start == 0 else 0.0
        a, first = _filter(inverse, x, first)
        w, second = _filter(c, a, second)
        blocks.append(w)
        start, size = start + len(x), min(2 * size, 1 << 20)
        distance = np.abs(w[-len(c) - len(inverse) :] - limit).max()
        largest = np.abs(blocks[0]).max()
        if not distance < DIVERGED * largest:
            return None
        if distance <= CONSTANT_TOLERANCE * largest or start == steps:
            return np.concatenate(blocks)
    return None


def _filter(denominator: Array, x: Array, state: Array) -> Any:
    from scipy.signal import lfilter

    return lfilter([1.0], denominator, x, zi=state) if len(state) else (x / denominator[0], state)


def pull_back(c: Array, w: Array, g: Array) -> Array:
    """Return the gradient of a function of w = C^-1 a with respect to c, the first column of C.

    `g` is the gradient of the function with respect to w. Entry r of the result is -sum_i v_i w_{i-r}, with
    v = C^-T g.
    """
    n = len(w)
    if series_is_faster(c, n):
        v = _product(series_inverse(c, n), g[::-1])[::-1]
        return -_product(v[::-1], w)[::-1][: len(c)]
    v = _filter(c, g[::-1], np.zeros(len(c) - 1))[0][::-1]
    return -np.array([inner(v[r:], w[: n - r]) for r in range(len(c))])


def _product(p: Array, q: Array) -> Array:
    """Return the product of two power series of the same length."""
    from scipy.signal import fftconvolve

    return fftconvolve(p, q)[: len(q)]


def series_is_faster(c: Array, steps: int) -> bool:
    """Return True if FFTs are faster than a recursive filter: if c is long and `steps` is not much larger."""
    return len(c) > 128 and 16 * len(c) >= steps


def series_inverse(c: Array, length: int) -> Array:
    """Return the first `length` coefficients of 1 / c(x), by Newton's iteration with FFTs in O(length log length)."""
    from scipy.signal import fftconvolve

    inverse = np.array([1.0 / c[0]])
    while len(inverse) < length:
        size = min(2 * len(inverse), length)
        correction = -fftconvolve(c[:size], inverse)[:size]
        correction[0] += 2.0
        inverse = fftconvolve(inverse, correction)[:size]
    return inverse
