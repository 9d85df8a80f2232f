"""NumPy streams, which compute C x or N z one step at a time.

C is the strategy matrix and N its left inverse. x has one row for each step, and z has one row of random draws for each
row of C.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from antiphase._check import Array, invalid
from antiphase.strategies._recursion import (
    Buffers,
    Feedback,
    MovingSum,
    Recursion,
    Restart,
    TreeNodes,
    WholeMatrix,
    own_weight,
)


class Stream(ABC):
    """A pass over the steps that keeps only the buffers it needs.

    In step t, an encoding stream takes x_t, of any shape (...), and returns the rows of C x that step t completes (see
    `Strategy`), shape (rows, ...). A noising stream takes the next `Strategy.rows_at(t)` rows of z and returns (N z)_t,
    shape (...).
    """

    @abstractmethod
    def step(self, value: Array) -> Array:
        """Process the input of one step and return its output."""


def noising_stream(recursion: Recursion) -> Stream:
    """Return a stream that computes N z by this recursion.

    >>> stream = noising_stream(MovingSum(3, np.array([1.0, -0.5])))
    >>> [float(stream.step(np.array([z]))) for z in (2.0, 4.0, 8.0)]
    [2.0, 3.0, 6.0]
    """
    match recursion:
        case Feedback():
            return _Feedback(recursion)
        case MovingSum():
            return _MovingSum(recursion)
        case Buffers():
            return _Buffers(recursion)
        case TreeNodes():
            return _TreeNodes(recursion)
        case Restart():
            return _Restart(recursion)
        case WholeMatrix():
            return _Whole(recursion)
    raise TypeError(f"{type(recursion).__name__} is not one of the recursions of antiphase.strategies")


class Inverse(Stream):
    """An encoding stream for a square C, made from the noising stream of the strategy C^-1.

    That noising stream multiplies its input by the inverse of C^-1, so its outputs are the rows of C x.
    """

    def __init__(self, inner: Stream) -> None:
        self._inner = inner

    def step(self, value: Array) -> Array:
        """Return the next row of C x, shape (1, ...)."""
        return self._inner.step(value[None])[None]


class _Feedback(Stream):
    def __init__(self, recursion: Feedback) -> None:
        self._recursion = recursion
        self._past: deque[Array] = deque(maxlen=recursion.bands - 1)
        self._step = 0

    def step(self, value: Array) -> Array:
        row, scales = self._recursion.unscaled_row(self._step), self._recursion.scales
        out = value[0]
        for c, y in zip(row[1:], self._past, strict=False):
            out = out - c * y
        out = out / row[0]
        self._past.appendleft(out)
        self._step += 1
        return out if scales is None else out * scales[self._step - 1]


class _MovingSum(Stream):
    def __init__(self, recursion: MovingSum) -> None:
        self._coefficients = recursion.coefficients
        self._past: deque[Array] = deque(maxlen=len(recursion.coefficients))

    def step(self, value: Array) -> Array:
        self._past.appendleft(value[0])
        pairs = zip(self._coefficients, self._past, strict=False)
        return sum((c * x for c, x in pairs), np.zeros_like(value[0]))


class _Buffers(Stream):
    def __init__(self, recursion: Buffers) -> None:
        self._recursion = recursion
        self._buffers: list[Array] | None = None

    def step(self, value: Array) -> Array:
        decay, scale = self._recursion.decay, self._recursion.scale
        if self._buffers is None:
            self._buffers = [np.zeros_like(value[0]) for _ in decay]
        out = value[0] - sum(s * b for s, b in zip(scale, self._buffers, strict=True))
        self._buffers = [d * b + out for d, b in zip(decay, self._buffers, strict=True)]
        return out


class _TreeNodes(Stream):
    def __init__(self, recursion: TreeNodes) -> None:
        self._tree, self._step = recursion, 0
        self._nodes: list[Array] = []

    def step(self, value: Array) -> Array:
        node, replaced = value[0], np.zeros_like(value[0])
        for level in range(self._tree.completed_level(self._step)):
            if self._step >> level & 1:
                left = self._nodes.pop()
                node, replaced = node + left, replaced + left
            weight = own_weight(level + 1)
            node = weight * value[level + 1] + (1.0 - weight) * node
        self._nodes.append(node)
        self._step += 1
        return node - replaced


class _Restart(Stream):
    def __init__(self, recursion: Restart) -> None:
        self._recursion = recursion
        self._stream, self._step = noising_stream(recursion.inner), 0

    def step(self, value: Array) -> Array:
        if self._step >= self._recursion.steps:
            must = f"in 0, ..., {self._recursion.steps - 1}"
            raise invalid("Stamped", "step", must, self._step, "the run is over; plan a longer one")
        if self._step > 0 and self._step % self._recursion.inner.steps == 0:
            self._stream = noising_stream(self._recursion.inner)
        self._step += 1
        return self._stream.step(value)


class _Whole(Stream):
    """Computes all of N z in the first step, keeps it in n buffers, and returns one row per step."""

    def __init__(self, recursion: WholeMatrix) -> None:
        self._strategy = recursion.strategy
        self._out: Array | None = None
        self._next = 0

    def step(self, value: Array) -> Array:
        if self._out is None:
            self._out = self._strategy.solve(value)
        self._next += 1
        return self._out[self._next - 1]
