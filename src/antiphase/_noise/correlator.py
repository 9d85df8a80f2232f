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
from antiphase._errors import NotEnoughMemory
from antiphase.strategies import Recursion

Noise = NDArray[Any]  # float32 or float64
White = Callable[[int, Noise], None]  # fills an array with a row of z for the part at hand

LANES = 128  # entries of a strip of state; the same as in the kernels, which are not imported before use
PART = 1 << 16  # entries handled at once: few enough for the caches, enough to outweigh the calls
SMALLEST_PART = 1 << 13


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
    array of shape (strips, rows, LANES): each part touches its own strips only. With `lookahead` some steps are made
    at once and wait in the state until they are asked for.
    """

    part: int = PART
    lookahead: int = 1
    is_replayed: bool = False  # whether the state is made again from z rather than saved

    def __init__(self, recursion: Recursion, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        self.recursion = recursion
        self.factor = factor
        self.entries = entries
        self.dtype = dtype
        self.step = 0
        self.fresh = 0  # steps to make now; 0 where this one is waiting in the state
        self.made = 0  # steps made so far, given out or waiting
        self.state = self.allocate(self.state_rows())

    @abstractmethod
    def state_rows(self) -> int:
        """Model-sized buffers to hold."""

    @abstractmethod
    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Write the step's noise for a part into `out`."""

    def begin(self, step: int) -> None:
        """Before the first part of a step."""
        self.step = step
        self.fresh = min(self.lookahead, self.recursion.steps - step) if step >= self.made else 0
        self.prepare()

    def prepare(self) -> None:
        """What all parts of a step have in common."""
        return

    def end(self) -> None:
        """After the last part of a step."""
        self.made = max(self.made, self.step + self.fresh)

    def reset(self) -> None:
        """Back to before the first step."""
        self.state[:] = 0
        self.made = 0

    def replay_from(self, step: int) -> int:
        """The step to begin at so that the state is right when `step` is reached."""
        return 0

    def extend(self, recursion: Recursion) -> None:
        """Go on with more steps of the same C."""
        self.recursion = recursion

    def allocate(self, rows: int) -> Noise:
        """State of this many rows."""
        try:
            return np.zeros((-(-self.entries // LANES), rows, LANES), dtype=self.dtype)
        except (MemoryError, ValueError) as error:
            raise NotEnoughMemory(
                f"The noise state does not fit in memory: {rows} x {self.entries:,} numbers of {self.dtype.name}.",
                hint="choose a strategy with fewer buffers, see memory_copies, or shard the model over more workers",
            ) from error


def part_for(lookahead: int) -> int:
    """Entries handled at once where z of several steps is held."""
    return max(2 * PART // lookahead // LANES * LANES, SMALLEST_PART) if lookahead > 1 else PART


def padded(block: Array, rows: int, columns: int) -> Array:
    """A matrix with zeros appended up to whole multiples, as the kernels want it."""
    height, width = (-(-n // m) * m for n, m in zip(block.shape, (rows, columns), strict=True))
    out = np.zeros((height, width))
    out[: block.shape[0], : block.shape[1]] = block
    return out
