"""Iterates over the diagonals of the Gram matrix X = C^T C, in windows of rows that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase.strategies import Gram

LARGEST_WINDOW = 1 << 25  # maximum number of entries in one window
LARGEST_PASS = 1 << 31  # maximum number of entries in all windows


def windows(gram: Gram) -> Iterator[tuple[Array, int, int, int]]:
    """Yield (diagonals, offset, start, stop), with diagonals[i - offset, r] = X[i, i + r].

    Each window has the rows `start` to `stop - 1` of X. It also has the earlier rows `offset` to `start - 1`, which
    have entries in columns `start` to `stop - 1`. Raises `NotProved` if X has too many entries.
    """
    size = LARGEST_WINDOW // gram.bands - gram.bands
    if gram.steps * gram.bands <= LARGEST_WINDOW:
        size = gram.steps
    if size < gram.bands or gram.steps * gram.bands > LARGEST_PASS:
        raise NotProved(
            f"{gram.bands} diagonals of the Gram matrix C^T C for {gram.steps} steps have too many entries.",
            hint="method='row-sum' bounds each diagonal by its largest entry instead",
        )
    return _passes(gram, size)


def _passes(gram: Gram, size: int) -> Iterator[tuple[Array, int, int, int]]:
    for start in range(0, gram.steps, size):
        stop, offset = min(start + size, gram.steps), max(start - gram.bands + 1, 0)
        yield gram.diagonals(offset, stop), offset, start, stop
