"""Adding the noise of a step to a model's gradients, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise.correlator import Noise, Part
from antiphase._noise.worker import Layout

OWNER = "NoiseStream.add_to"


@final
class Addition:
    """Adds a part's noise to the places in the buffers where it belongs; all are checked before any is touched."""

    def __init__(self, layout: Layout, dtype: np.dtype[Any], buffers: Sequence[NDArray[Any]]) -> None:
        shapes = [leaf.shape for leaf in layout.leaves]
        got = [getattr(buffer, "shape", type(buffer).__name__) for buffer in buffers]
        if got != shapes:
            raise invalid(OWNER, "buffers", f"arrays of shapes {shapes}", got, "one for each leaf, in order")
        for buffer in buffers:
            _check_buffer(buffer, dtype)
        places = sorted((buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes) for buffer in buffers if buffer.size)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise InvalidArgument("Two of the buffers share memory.", hint="shared weights are one leaf")
        self._layout = layout
        # A subclass may keep two dimensions, and a slice of it would be broadcast: plain arrays only.
        self._flats = [np.asarray(buffer).reshape(-1) for buffer in buffers]

    def __call__(self, part: Part, noise: Noise) -> None:
        """Add."""
        for piece in self._layout.pieces(part):
            here = self._flats[piece.leaf][piece.start : piece.stop]
            added = noise[piece.done : piece.done + piece.stop - piece.start]
            assert here.shape == added.shape, "noise must never be broadcast"
            np.add(here, added, out=here)


def _check_buffer(buffer: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Other precision is refused: the low bits of a wider sum would have no noise, a narrower one is rounded first."""
    must = f"writeable, C-contiguous NumPy arrays of {dtype}, as the stream"
    if not isinstance(buffer, np.ndarray) or buffer.dtype != dtype:
        kind = getattr(buffer, "dtype", type(buffer).__name__)
        raise invalid(OWNER, "buffers", must, f"{kind}", 'for float64 make the stream with dtype="float64"')
    if not (buffer.flags.c_contiguous and buffer.flags.writeable and buffer.flags.aligned):
        raise invalid(OWNER, "buffers", must, "a read-only or strided one", "use next() and add it yourself")
