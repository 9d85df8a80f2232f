"""The base class of correlators, which compute the noise of a step, part by part, from white noise and stored state.

A part is a range of entries of the noise vector. Row i of the white noise z is a vector with one number for each entry.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import NotEnoughMemory
from antiphase.strategies import Recursion

Noise = NDArray[Any]  # float32 or float64
White = Callable[[int, Noise], None]  # white(row, out) fills `out` with one row of z, restricted to the current part

# Entries per strip of the state (see `Correlator`); defined again here because kernels are imported only when used.
LANES = 128
PART = 1 << 16  # entries of a part: few enough for the CPU caches, and enough that the function calls cost little
SMALLEST_PART = 1 << 13


@final
@dataclass(frozen=True)
class Part:
    """The entries of the stream with indices `start` to `stop - 1`; `start` is a multiple of LANES."""

    start: int
    stop: int

    @property
    def strips(self) -> slice:
        """Strips of the state that hold these entries (see `Correlator`)."""
        return slice(self.start // LANES, -(-self.stop // LANES))

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.stop - self.start


@final
class Scratch:
    """Arrays that one thread reuses."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array with undefined contents."""
        size = math.prod(shape)
        held = self._arrays.get(name)
        if held is None or held.size < size:
            held = self._arrays[name] = np.empty(size, dtype=dtype)
        return held[:size].reshape(shape)


class Correlator(ABC):
    """Base class: computes factor * (N z)_t for each step t, in order, where z is white noise and N C = I.

    For each step, call `begin(step)`, then `make` for every part, in any order and on any thread, then `end()`. The
    state is an array of shape (strips, rows, LANES). Each row is one model-sized buffer. A strip holds LANES
    consecutive entries of every row, and each part reads and writes only its own strips. If `lookahead` is above 1, the
    noise of several steps is computed at once, and stays in the state until it is requested.
    """

    part: int = PART  # largest number of entries of a part
    lookahead: int = 1
    is_replayed: bool = False  # if True, the state is not saved with a stream but recomputed from z

    def __init__(self, recursion: Recursion, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        self.recursion = recursion
        self.factor = factor
        self.entries = entries
        self.dtype = dtype
        self.step = 0
        self.fresh = 0  # number of steps to compute now; 0 if the noise of this step is already in the state
        self.made = 0  # number of steps computed so far, including steps that have not been requested yet
        self.state = self.allocate(self.state_rows())

    @abstractmethod
    def state_rows(self) -> int:
        """Return the number of model-sized buffers in the state."""

    @abstractmethod
    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Write the step's noise for a part into `out`."""

    def begin(self, step: int) -> None:
        """Begin a step; call this before its first part."""
        self.step = step
        self.fresh = min(self.lookahead, self.recursion.steps - step) if step >= self.made else 0
        self.prepare()

    def prepare(self) -> None:
        """Compute the values that all parts of the step share."""
        return

    def end(self) -> None:
        """End the step; call this after its last part."""
        self.made = max(self.made, self.step + self.fresh)

    def reset(self) -> None:
        """Return to the state before the first step."""
        self.state[:] = 0
        self.made = 0

    def replay_from(self, step: int) -> int:
        """Return the step from which to replay so that the state is correct at `step`."""
        return 0

    def extend(self, recursion: Recursion) -> None:
        """Continue with more steps of the same C."""
        self.recursion = recursion

    def allocate(self, rows: int) -> Noise:
        """Return a state of zeros with this many rows."""
        try:
            return np.zeros((-(-self.entries // LANES), rows, LANES), dtype=self.dtype)
        except (MemoryError, ValueError) as error:
            raise NotEnoughMemory(
                f"The noise state does not fit in memory: {rows} x {self.entries:,} numbers of {self.dtype.name}.",
                hint="choose a strategy with a smaller memory_copies, or shard the model over more workers",
            ) from error


def part_for(lookahead: int) -> int:
    """Return the number of entries of a part: fewer for a large `lookahead`, because z of all these steps is stored."""
    return max(2 * PART // lookahead // LANES * LANES, SMALLEST_PART) if lookahead > 1 else PART


def padded(block: Array, rows: int, columns: int) -> Array:
    """Return the matrix, padded with zeros so that its shape is a multiple of (rows, columns), as kernels require."""
    height, width = (-(-n // m) * m for n, m in zip(block.shape, (rows, columns), strict=True))
    out = np.zeros((height, width))
    out[: block.shape[0], : block.shape[1]] = block
    return out
