"""Draws matrices as images: negative entries are blue, zeros white, positive entries orange, on a square-root scale."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._escape import html_text

MAX_CELLS = 192
NEGATIVE, POSITIVE = np.array([0, 90, 160.0]), np.array([200, 80, 0.0])


@dataclass(frozen=True)
class HeatMap:
    """A matrix to draw."""

    title: str
    matrix: Array

    @property
    def summary(self) -> str:
        """A description of the matrix for screen readers."""
        rows, columns = self.matrix.shape
        below = 100.0 * float((self.matrix < 0).mean())
        return (
            f"{rows} by {columns} matrix, entries from {self.matrix.min():.4g} to {self.matrix.max():.4g}; "
            f"{below:.0f} % are below zero."
        )


def draw_heat_map(heat: HeatMap, name: str, width: int | None = None) -> str:
    """Return the matrix as an image in an SVG element, with a description for screen readers.

    Args:
        heat: matrix to draw.
        name: prefix of the ids of the SVG elements; must be unique on the page.
        width: width in pixels, for a standalone file; None inside an HTML page.
    """
    size = "" if width is None else f' width="{width}"'
    data = base64.b64encode(png(colours(condensed(heat.matrix)))).decode()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heat" viewBox="0 0 100 100" role="img"{size} '
        f'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">{html_text(heat.title)}</title>'
        f'<desc id="{name}-text">{html_text(heat.summary)}</desc>'
        f'<image width="100" height="100" preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/></svg>'
    )


def condensed(matrix: Array, most: int = MAX_CELLS) -> Array:
    """Reduce a matrix to at most `most` rows and columns. Each cell is the entry of largest magnitude in its block.

    >>> condensed(np.diag([1.0, 2.0, -3.0, 0.5]), 2).tolist()
    [[2.0, 0.0], [0.0, -3.0]]
    """
    for axis in (0, 1):
        matrix = np.moveaxis(matrix, axis, 0)
        edges = np.linspace(0, len(matrix), min(len(matrix), most) + 1).round().astype(int)
        parts = [matrix[a:b] for a, b in pairwise(edges)]
        chosen = [np.take_along_axis(p, np.abs(p).argmax(axis=0)[None], axis=0)[0] for p in parts]
        matrix = np.moveaxis(np.array(chosen), 0, axis)
    return matrix


def colours(matrix: Array) -> NDArray[np.uint8]:
    """Return the RGB values of every cell. The entry of largest magnitude has the strongest colour."""
    largest = float(np.abs(matrix).max()) or 1.0
    share = np.sqrt(np.abs(matrix) / largest)[..., None]
    full = np.where(matrix[..., None] < 0, NEGATIVE, POSITIVE)
    return (255.0 + share * (full - 255.0)).round().astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG file with 8 bits per channel and no filter."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
