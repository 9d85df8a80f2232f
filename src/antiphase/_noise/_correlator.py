"""What every correlator offers: the noise of a step, part by part, from white noise and the state it keeps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase.strategies import Strategy

Noise = NDArray[Any]  # float32 or float64
White = Callable[[int, Noise], None]  # fills an array with a row of z for the part at hand

LANES = 128  # entries of a strip of state; the same as in the kernels, which are not imported before use
PART = 1 << 16  # entries handled at once: few enough for the caches, enough to outweigh the calls


@final
@dataclass(frozen=True)
class Part:
    """Entries start, ..., stop - 1 of all that the stream holds; starts at a whole strip."""

    start: int
    stop: int

    @property
    def strips(self) -> slice:
        """The strips of the state that hold these entries."""
        return slice(self.start // LANES, -(-self.stop // LANES))

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.stop - self.start


@final
class Scratch:
    """Arrays that one thread uses again and again."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array with undefined contents."""
        size = math.prod(shape)
        held = self._arrays.get(name)
        if held is None or held.size < size:
            held = self._arrays[name] = np.empty(size, dtype=dtype)
        return held[:size].reshape(shape)


class Correlator(ABC):
    """factor (N z)_t for one step after another.

    A step is `begin(step)`, then `make` for every part, in any order and on any thread, then `end()`. State is an
    array of shape (strips, rows, LANES): each part touches its own strips only.
    """

    part: int = PART
    is_replayed: bool = False  # whether the state is made again from z rather than saved

    def __init__(self, strategy: Strategy, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        self.strategy = strategy
        self.factor = factor
        self.entries = entries
        self.dtype = dtype
        self.state = self.allocate(self.state_rows())

    @abstractmethod
    def state_rows(self) -> int:
        """Model-sized buffers to hold."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """What is common to all parts of a step."""

    @abstractmethod
    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Write the step's noise for a part into `out`."""

    def end(self) -> None:
        """After the last part of a step."""
        return

    def reset(self) -> None:
        """Back to before the first step."""
        self.state[:] = 0

    def replay_from(self, step: int) -> int:
        """The step to begin at so that the state is right when `step` is reached."""
        return 0

    @property
    def made(self) -> int:
        """Steps whose noise is already in the state; 0 where none is made in advance."""
        return 0

    @made.setter
    def made(self, steps: int) -> None:
        return

    def extend(self, strategy: Strategy) -> None:
        """Go on with more steps of the same C."""
        self.strategy = strategy

    def allocate(self, rows: int) -> Noise:
        """State of this many rows."""
        return np.zeros((-(-self.entries // LANES), rows, LANES), dtype=self.dtype)


def padded(block: Array, rows: int, columns: int) -> Array:
    """A matrix with zeros appended up to whole multiples, as the kernels want it."""
    height, width = (-(-n // m) * m for n, m in zip(block.shape, (rows, columns), strict=True))
    out = np.zeros((height, width))
    out[: block.shape[0], : block.shape[1]] = block
    return out
