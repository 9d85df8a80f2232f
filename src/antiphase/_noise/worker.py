"""The position of each entry of a stream in the model's arrays (leaves), and the random generator of each thread.

A stream has one entry for each entry of the regions of all leaves. The region of a leaf is what this process holds of
it. A part is a range of entries of the stream. A stretch is a contiguous range of entries of a flattened whole leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from antiphase._noise.correlator import Noise, Part, Scratch, White
from antiphase._noise.leaves import Leaf, Stretches, Walk

MOST_CACHED = 64  # a part's list of stretches is cached up to this length; a longer list is computed again each time


@final
@dataclass(frozen=True)
class Piece:
    """The entries that a part has in common with leaf number `leaf`: entries `start` to `stop - 1` of its region.

    Entry `start` of the region is entry `done` of the part.
    """

    leaf: int
    start: int
    stop: int
    done: int


@final
class Layout:
    """The entries of a stream, which are the regions of all leaves, flattened and concatenated."""

    def __init__(self, leaves: dict[str, Leaf]) -> None:
        self.leaves = list(leaves.values())
        self.walks = [Walk(leaf) for leaf in self.leaves]
        ends = np.cumsum([0, *(leaf.size for leaf in self.leaves)])
        self.starts: list[int] = ends[:-1].tolist()
        self.entries = int(ends[-1])
        self._pieces: dict[Part, list[Piece]] = {}
        self._stretches: dict[Part, list[tuple[int, int, Stretches]]] = {}

    def parts(self, size: int) -> list[Part]:
        """Split all entries into parts of at most `size` entries."""
        return [Part(start, min(start + size, self.entries)) for start in range(0, self.entries, size)]

    def pieces(self, part: Part) -> list[Piece]:
        """Return the pieces of a part, leaf by leaf."""
        if part not in self._pieces:
            self._pieces[part] = list(self._find_pieces(part))
        return self._pieces[part]

    def stretches(self, part: Part) -> list[tuple[int, int, Stretches]]:
        """Return the stretches that contain the entries of a part, as a list of (offset, leaf, stretches).

        The offset is the index in the part of the first entry of the stretches. `leaf` is the number of the leaf.
        """
        found = self._stretches.get(part)
        if found is None:
            found = list(self._find_stretches(part))
            if len(found) <= MOST_CACHED:
                self._stretches[part] = found
        return found

    def _find_pieces(self, part: Part) -> Iterator[Piece]:
        first = int(np.searchsorted(self.starts, part.start, side="right")) - 1
        done = 0
        for i in range(max(first, 0), len(self.leaves)):
            start = max(part.start - self.starts[i], 0)
            stop = min(part.stop - self.starts[i], self.leaves[i].size)
            if start < stop:
                yield Piece(i, start, stop, done)
                done += stop - start
            if done == part.size:
                return

    def _find_stretches(self, part: Part) -> Iterator[tuple[int, int, Stretches]]:
        for piece in self.pieces(part):
            done = piece.done
            for run in self.walks[piece.leaf].runs(piece.start, piece.stop):
                yield done, piece.leaf, run
                done += run.rows * run.width


class DrawSource(Protocol):
    """Generates white noise z by address (leaf, row, index): `Normals`, or `ExactDraws` for lattice noise."""

    def fill(self, leaf: int, row: int, start: int, out: Noise) -> None:
        """Fill `out` with a row of z, for the entries of the flattened whole leaf from `start` on."""

    def fill_rows(self, leaf: int, row: int, start: int, stride: int, out: Noise) -> None:
        """Fill out[i] with a row of z, for the entries of the flattened whole leaf from start + i * stride on."""


@final
class Worker:
    """The random generator and buffers of one thread."""

    def __init__(self, layout: Layout, draws: DrawSource) -> None:
        self._layout = layout
        self._draws = draws
        self.scratch = Scratch()

    def white(self, part: Part) -> White:
        """Return a function that fills an array with a row of z for this part."""
        stretches, draws = self._layout.stretches(part), self._draws

        def fill(row: int, out: Noise) -> None:
            for done, leaf, run in stretches:
                here = out[done : done + run.rows * run.width]
                if run.rows == 1:
                    draws.fill(leaf, row, run.start, here)
                else:
                    draws.fill_rows(leaf, row, run.start, run.stride, here.reshape(run.rows, run.width))

        return fill
