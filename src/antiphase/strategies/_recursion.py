"""Multiplying by a lower-triangular Toeplitz matrix or its inverse, whole or as a stream."""

from __future__ import annotations

from collections import deque

import numpy as np

from antiphase._check import Array
from antiphase.strategies._base import Stream


class MovingSum(Stream):
    """T (scales * x) for T with the given first column, from the last inputs: one row a step, shape (1, ...)."""

    def __init__(self, coefficients: Array, scales: Array | None = None) -> None:
        self._coefficients = coefficients
        self._scales = scales
        self._past: deque[Array] = deque(maxlen=len(coefficients))
        self._step = 0

    def step(self, value: Array) -> Array:
        """The next row."""
        if self._scales is not None:
            value = value * self._scales[self._step]
        self._step += 1
        self._past.appendleft(value)
        pairs = zip(self._coefficients, self._past, strict=False)
        return sum((c * x for c, x in pairs), np.zeros_like(value))[None]


class Feedback(Stream):
    """scales * (T^-1 z) for T with the given first column, by forward substitution from the last outputs."""

    def __init__(self, coefficients: Array, scales: Array | None = None) -> None:
        self._coefficients = coefficients
        self._scales = scales
        self._past: deque[Array] = deque(maxlen=len(coefficients) - 1)
        self._step = 0

    def step(self, value: Array) -> Array:
        """The next output; `value` has shape (1, ...)."""
        out = value[0]
        for c, y in zip(self._coefficients[1:], self._past, strict=False):
            out = out - c * y
        out = out / self._coefficients[0]
        self._past.appendleft(out)
        scale = 1.0 if self._scales is None else self._scales[self._step]
        self._step += 1
        return out * scale


class First(Stream):
    """A stream that takes rows of shape (1, ...) and gives plain vectors, or the other way round."""

    def __init__(self, inner: Stream, *, rows_in: bool) -> None:
        self._inner = inner
        self._rows_in = rows_in

    def step(self, value: Array) -> Array:
        """The inner stream's output with its row axis moved to the other side."""
        return self._inner.step(value[0])[0] if self._rows_in else self._inner.step(value[None])[None]


def convolve(coefficients: Array, x: Array) -> Array:
    """T x along the first axis, O(n log n) for long coefficients."""
    from scipy.signal import fftconvolve, lfilter

    if len(coefficients) <= 64:
        return lfilter(coefficients, [1.0], x, axis=0)
    kernel = coefficients.reshape(-1, *[1] * (x.ndim - 1))
    return fftconvolve(x, kernel, axes=0)[: len(x)]
