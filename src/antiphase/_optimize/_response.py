"""Error of a Toeplitz strategy under a Toeplitz workload, with its gradient, at a cost that stops growing with n.

B = A C^-1 is Toeplitz with first column w = A u, u the coefficients of C^-1, so step t has variance
w_0^2 + ... + w_t^2. The derivative of w along coefficient r of C is -C^-1 shifted by r, times w: one more filter,
run backwards in time, gives the whole gradient. Where w has become constant the rest of the sum is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase._optimize._vectors import inner

FIRST_BLOCK = 2048
CONVERGED = 1e-12
LARGEST_LENGTH = 1 << 24
EXPLODED = 1e6
SHORT_FILTER = 128  # above this many coefficients a series by FFT is cheaper than a filter, if n is not much longer


def response_square(c: Array, inverse: Array, steps: int, weighted: bool) -> tuple[float, Array]:
    """sum_i weight_i w_i^2 and its gradient for the coefficients c of C, with `inverse` the first column of A^-1.

    Args:
        c: coefficients of C.
        inverse: coefficients of A^-1.
        steps: n.
        weighted: weight_i = (n - i) / n, the mean over the steps; otherwise 1, the last and largest.

    Reference: McKenna 2024 (scaling), Prop. 3.1 and C.1.

    >>> response_square(np.array([1.0]), np.array([1.0, -1.0]), 4, weighted=True)[0]
    2.5
    """
    w = inverse_response(c, inverse, steps)
    if w is None:
        return np.inf, np.zeros_like(c)
    limit = _limit(c, inverse)
    weights, rest = _weights(len(w), steps, weighted)
    g = 2.0 * weights * w
    gradient = pull_back(c, w, g) - 2.0 * rest * limit**2 / c.sum()
    return 0.5 * inner(g, w) + rest * limit**2, gradient


def moving_square(inverse: Array, steps: int, weighted: bool) -> Callable[[Array], tuple[float, Array]]:
    """The same sum as a function of the coefficients d of C^-1, with w = A d: a quadratic form.

    >>> moving_square(np.array([1.0, -1.0]), 4, weighted=False)(np.array([1.0, -1.0]))[0]
    1.0
    """
    a = inverse_response(np.ones(1), inverse, steps)
    if a is None:
        raise NotEnoughMemory("The response of this workload is too long.", hint="use fewer steps")
    limit = _limit(np.ones(1), inverse)

    def square(d: Array) -> tuple[float, Array]:
        length = min(steps, len(a) + len(d))
        extended = np.concatenate([a, np.full(length - len(a), limit)])
        w = np.convolve(d, extended)[:length]
        weights, rest = _weights(length, steps, weighted)
        g = 2.0 * weights * w
        end = float(d.sum()) * limit
        gradient = np.array([inner(g[r:], extended[: length - r]) for r in range(len(d))])
        return 0.5 * inner(g, w) + rest * end**2, gradient + 2.0 * rest * end * limit

    return square


def _weights(length: int, steps: int, weighted: bool) -> tuple[Array, float]:
    """The weights of the first entries of w, and the sum of those of the rest."""
    left = float(steps - length)
    if not weighted:
        return np.ones(length), left
    return (steps - np.arange(length)) / steps, left * (left + 1.0) / (2.0 * steps)


def _limit(c: Array, inverse: Array) -> float:
    """lim w_i: zero, unless A^-1(1) = 0 (no weight decay), where A^-1(x) = (1 - x) E(x)."""
    if abs(inverse.sum()) > 1e-12 * np.abs(inverse).sum():
        return 0.0
    return float(1.0 / (c.sum() * np.cumsum(inverse)[:-1].sum()))


def inverse_response(c: Array, inverse: Array, steps: int) -> Array | None:
    """w = A C^-1 e_0 as far as it is not yet constant; None where it grows without bound or takes too long.

    A first, then C^-1: its rounding errors die out, where a running sum would collect them.
    """
    limit = _limit(c, inverse)
    if _long(c, steps):
        a, _ = _filter(inverse, np.eye(1, steps)[0], np.zeros(len(inverse) - 1))
        return _product(_series_inverse(c, steps), a)
    blocks: list[Array] = []
    start, size = 0, max(FIRST_BLOCK, 2 * len(c))
    first, second = np.zeros(len(inverse) - 1), np.zeros(len(c) - 1)
    while start < min(steps, LARGEST_LENGTH):
        x = np.zeros(min(size, steps - start))
        x[0] = 1.0 if start == 0 else 0.0
        a, first = _filter(inverse, x, first)
        w, second = _filter(c, a, second)
        blocks.append(w)
        start, size = start + len(x), min(2 * size, 1 << 20)
        distance = np.abs(w[-len(c) - len(inverse) :] - limit).max()
        largest = np.abs(blocks[0]).max()
        if not distance < EXPLODED * largest:
            return None
        if distance <= CONVERGED * largest or start == steps:
            return np.concatenate(blocks)
    return None


def _filter(denominator: Array, x: Array, state: Array) -> Any:
    from scipy.signal import lfilter

    return lfilter([1.0], denominator, x, zi=state) if len(state) else (x / denominator[0], state)


def pull_back(c: Array, w: Array, g: Array) -> Array:
    """From the gradient g for w = C^-1 a to that for the coefficients of C: -sum_i v_i w_{i-r}, v = C^-T g."""
    n = len(w)
    if _long(c, n):
        v = _product(_series_inverse(c, n), g[::-1])[::-1]
        return -_product(v[::-1], w)[::-1][: len(c)]
    v = _filter(c, g[::-1], np.zeros(len(c) - 1))[0][::-1]
    return -np.array([inner(v[r:], w[: n - r]) for r in range(len(c))])


def _product(p: Array, q: Array) -> Array:
    """The product of two power series of the same length."""
    from scipy.signal import fftconvolve

    return fftconvolve(p, q)[: len(q)]


def _long(c: Array, steps: int) -> bool:
    return len(c) > SHORT_FILTER and 16 * len(c) >= steps


def _series_inverse(c: Array, length: int) -> Array:
    """The first coefficients of 1 / c(x) by Newton's iteration with FFTs, O(n log n)."""
    from scipy.signal import fftconvolve

    inverse = np.array([1.0 / c[0]])
    while len(inverse) < length:
        size = min(2 * len(inverse), length)
        correction = -fftconvolve(c[:size], inverse)[:size]
        correction[0] += 2.0
        inverse = fftconvolve(inverse, correction)[:size]
    return inverse
