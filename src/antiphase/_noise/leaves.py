"""Leaves: the arrays of a model, and the region of each array that a stream generates noise for.

The address of a noise entry consists of the name of its leaf and its flat index in the whole, unsharded leaf (in C
order). So the noise does not depend on how the leaf is sharded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from antiphase._check import invalid, text
from antiphase._record import record

Leaves = Sequence[Sequence[int]] | Mapping[str, Any]
LARGEST = 1 << 60  # maximum number of entries of a leaf, so that a 64-bit counter can number its blocks


@final
@record
class Leaf:
    """One array of the model, and the region of the array that this process holds.

    Args:
        global_shape: shape of the whole array.
        region: a slice or a pair (start, stop) for each dimension; None for the whole array. The region may be empty.

    >>> Leaf((6, 4), (slice(0, 3), (1, 4))).shape
    (3, 3)
    """

    global_shape: tuple[int, ...]
    region: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        shape = _shape(self.global_shape)
        object.__setattr__(self, "global_shape", shape)
        object.__setattr__(self, "region", _region(shape, self.region))

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The region as one pair (start, stop) for each dimension."""
        assert self.region is not None  # set in __post_init__
        return self.region

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the region."""
        return tuple(stop - start for start, stop in self.box)

    @property
    def size(self) -> int:
        """Number of entries in the region."""
        return math.prod(self.shape)


def named(leaves: Leaves) -> dict[str, Leaf]:
    """Return the leaves as a dict from names to `Leaf`. Shapes in a list get the names "0", "1", ...

    >>> named([(2, 3)])["0"].size
    6
    """
    if isinstance(leaves, Mapping):
        items = list(leaves.items())
    elif isinstance(leaves, Sequence) and not isinstance(leaves, (str, bytes)):
        items = [(str(i), leaf) for i, leaf in enumerate(leaves)]
    else:
        raise invalid(
            "NoiseStream",
            "leaves",
            "a list of shapes or a dict of Leaf",
            leaves,
            "pass a list such as [(784, 10), (10,)]",
        )
    if not all(isinstance(name, str) for name, _ in items):
        raise invalid(
            "NoiseStream",
            "leaves",
            "a dict whose keys are strings",
            list(leaves),
            "use strings as names of the leaves, because noise keys depend on these names",
        )
    names = [
        text("NoiseStream", "leaves", name, "use plain strings, because noise keys depend on leaf names")
        for name, _ in items
    ]
    if len(set(names)) < len(names):
        raise invalid(
            "NoiseStream",
            "leaves",
            "a dict in which no two names are equal",
            names,
            "rename leaves, because leaves with the same name would get the same noise",
        )
    return {name: leaf if isinstance(leaf, Leaf) else Leaf(leaf) for name, (_, leaf) in zip(names, items, strict=True)}


@dataclass(frozen=True)
class Stretches:
    """Ranges of the flattened whole leaf. Range i (0 <= i < rows) has `width` entries from start + i * stride on."""

    start: int
    width: int
    rows: int
    stride: int


@final
class Walk:
    """Iterates over the region of a leaf, in C order, as stretches: contiguous ranges of the flattened whole leaf.

    Let d be the last dimension in which the region is smaller than the leaf, or 0 if there is none. A stretch has
    `width` entries: those of the region at one index in each dimension before d. A plate is a group of `count`
    stretches that differ only in their index in dimension d - 1, so they start `stride` entries apart. There is one
    plate for each combination of indices in the dimensions before d - 1.
    """

    def __init__(self, leaf: Leaf) -> None:
        strides = [math.prod(leaf.global_shape[i + 1 :]) for i in range(len(leaf.global_shape))]
        partial = [i for i, (box, n) in enumerate(zip(leaf.box, leaf.global_shape, strict=True)) if box != (0, n)]
        cut = partial[-1] if partial else 0
        self.width = math.prod(leaf.shape[cut:])
        self.count = leaf.shape[cut - 1] if cut > 0 else 1
        self.stride = strides[cut - 1] if cut > 0 else self.width
        self._origin = sum(start * stride for (start, _), stride in zip(leaf.box, strides, strict=True))
        self._outer = list(zip(leaf.shape, strides, strict=True))[: max(cut - 1, 0)]

    def runs(self, start: int, stop: int) -> Iterator[Stretches]:
        """Yield the stretches that consist of entries `start` to `stop - 1` of the region."""
        while start < stop:
            stretch, skipped = divmod(start, self.width)
            plate, row = divmod(stretch, self.count)
            rows = min(self.count - row, (stop - start) // self.width)
            first = self._plate(plate) + row * self.stride + skipped
            if skipped or rows == 0:
                width = min(self.width - skipped, stop - start)
                yield Stretches(first, width, 1, self.stride)
                start += width
            else:
                yield Stretches(first, self.width, rows, self.stride)
                start += rows * self.width

    def _plate(self, plate: int) -> int:
        offset = self._origin
        for size, stride in reversed(self._outer):
            plate, index = divmod(plate, size)
            offset += index * stride
        return offset


def _shape(given: Any) -> tuple[int, ...]:
    hint = "pass a tuple of non-negative integers, such as (784, 10)"
    try:
        shape = tuple(given)
    except TypeError:
        raise invalid("Leaf", "global_shape", "a tuple of integers", given, hint) from None
    if not all(_is_count(n) for n in shape) or math.prod(map(int, shape)) > LARGEST:
        raise invalid("Leaf", "global_shape", f"non-negative integers with a product of at most {LARGEST}", given, hint)
    return tuple(map(int, shape))


def _region(shape: tuple[int, ...], given: Any) -> tuple[tuple[int, int], ...]:
    if given is None:
        return tuple((0, n) for n in shape)
    hint = "pass a slice without a step or a pair (start, stop) for each dimension"
    try:
        region = tuple(_interval(part, n) for part, n in zip(given, shape, strict=True))
    except (TypeError, ValueError):
        raise invalid("Leaf", "region", f"{len(shape)} intervals within {shape}", given, hint) from None
    return region


def _interval(part: Any, size: int) -> tuple[int, int]:
    if isinstance(part, slice):
        if part.step not in (None, 1):
            raise ValueError
        part = (0 if part.start is None else part.start, size if part.stop is None else part.stop)
    start, stop = part
    if not (_is_count(start) and _is_count(stop) and start <= stop <= size):
        raise ValueError
    return int(start), int(stop)


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0
