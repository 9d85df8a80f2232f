"""The student network of the training benchmark on one core, with NumPy (BLAS) and Numba.

Network, clipping and optimizer are the same as in `_student.py`, but this version is about twice as fast. Each weight
matrix and its bias form one matrix, and the images have a column of ones after the pixels. The order of the parameters
in the flat vector is also the same as in `_student.py`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

PIXELS, WIDTH, CLASSES = 64, 64, 10
SPLIT = (PIXELS + 1) * WIDTH
PARAMETERS = SPLIT + (WIDTH + 1) * CLASSES
Floats = np.ndarray[Any, np.dtype[np.float32]]


def views(theta: Floats) -> tuple[Floats, Floats]:
    """Return the two weight matrices with their biases, as views of the flat parameters."""
    return theta[:SPLIT].reshape(PIXELS + 1, WIDTH), theta[SPLIT:].reshape(WIDTH + 1, CLASSES)


def with_ones(images: np.ndarray) -> Floats:
    """Return the images with a column of ones for the bias."""
    return np.concatenate([images, np.ones((len(images), 1))], axis=1).astype(np.float32)


@numba.njit(fastmath=True, cache=True)
def _relu(hidden: Floats, norms: Floats) -> None:
    """Apply ReLU in place. To `norms`, write the squared norm of each column, plus 1 for the entry of the bias."""
    norms[:] = 1.0
    for j in range(hidden.shape[0] - 1):
        row = hidden[j]
        for i in range(row.size):
            row[i] = max(row[i], np.float32(0.0))
            norms[i] += row[i] * row[i]
    hidden[-1] = 1.0


@numba.njit(fastmath=True, cache=True)
def _highest(logits: Floats, out: Floats) -> None:
    out[:] = logits[0]
    for j in range(1, logits.shape[0]):
        for i in range(out.size):
            out[i] = max(out[i], logits[j, i])
    for j in range(logits.shape[0]):
        for i in range(out.size):
            logits[j, i] -= out[i]


@numba.njit(fastmath=True, cache=True)
def _errors(back: Floats, labels: Any, norms: Floats, scratch: Floats) -> None:
    """Replace exp(logits) in `back` by the gradients with respect to the logits, and write their squared norms."""
    scratch[:] = 0.0
    for j in range(back.shape[0]):
        for i in range(scratch.size):
            scratch[i] += back[j, i]
    for i in range(scratch.size):
        scratch[i] = np.float32(1.0) / scratch[i]
    norms[:] = 0.0
    for j in range(back.shape[0]):
        for i in range(scratch.size):
            back[j, i] = back[j, i] * scratch[i] - np.float32(labels[i] == j)
            norms[i] += back[j, i] * back[j, i]


@numba.njit(fastmath=True, cache=True)
def _clip(back_hidden: Floats, back: Floats, hidden: Floats, known: Any, clip_norm: float) -> None:
    """Scale the backpropagated errors of each example so that the norm of its gradient is at most `clip_norm`."""
    image_norms, hidden_norms, back_norms, scratch = known
    scratch[:] = 0.0
    for j in range(back_hidden.shape[0]):
        for i in range(scratch.size):
            value = back_hidden[j, i] if hidden[j, i] > 0.0 else np.float32(0.0)
            back_hidden[j, i] = value
            scratch[i] += value * value
    limit = np.float32(clip_norm)
    for i in range(scratch.size):
        square = back_norms[i] * hidden_norms[i] + scratch[i] * image_norms[i]
        scratch[i] = min(np.float32(1.0), limit / np.sqrt(square + np.float32(1e-20)))
    for j in range(back_hidden.shape[0]):
        for i in range(scratch.size):
            back_hidden[j, i] *= scratch[i]
    for j in range(back.shape[0]):
        for i in range(scratch.size):
            back[j, i] *= scratch[i]


class Student:
    """Computes clipped gradients and the accuracy of the student on one set of images."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, clip_norm: float) -> None:
        self._images, self._labels, self._clip_norm = with_ones(images), labels, clip_norm
        self._norms = np.square(self._images).sum(1)
        self._buffers: dict[str, Floats] = {}

    def _buffer(self, name: str, rows: int, columns: int) -> Floats:
        """Return a reusable array. Allocating large new arrays in every step would be slow."""
        kept = self._buffers.get(name)
        if kept is None or kept.size < rows * columns:
            kept = self._buffers[name] = np.empty(rows * columns + rows * 64, np.float32)
        return kept[: rows * columns].reshape(rows, columns)

    def gather(self, indices: np.ndarray) -> Any:
        """Return the images, labels and squared image norms of a batch. The next call overwrites the images."""
        images = self._buffer("images", len(indices), PIXELS + 1)
        np.take(self._images, indices, axis=0, out=images, mode="clip")
        return images, self._labels[indices], self._norms[indices]

    def clipped_sum(self, theta: Floats, batch: Any, out: Floats) -> None:
        """Write the sum of the clipped gradients of a batch to `out`."""
        x, labels, image_norms = batch
        size = len(labels)
        if not size:
            out[:] = 0.0
            return
        (w, v), (into_w, into_v) = views(theta), views(out)
        hidden = self._buffer("hidden", WIDTH + 1, size)
        back, back_hidden = self._buffer("back", CLASSES, size), self._buffer("back_hidden", WIDTH, size)
        hidden_norms, back_norms, scratch = self._buffer("norms", 3, size)
        np.matmul(w.T, x.T, out=hidden[:-1])
        _relu(hidden, hidden_norms)
        np.matmul(v.T, hidden, out=back)
        _highest(back, scratch)
        np.exp(back, out=back)
        _errors(back, labels, back_norms, scratch)
        np.matmul(v[:-1], back, out=back_hidden)
        _clip(back_hidden, back, hidden, (image_norms, hidden_norms, back_norms, scratch), self._clip_norm)
        np.matmul(x.T, back_hidden.T, out=into_w)
        np.matmul(hidden, back.T, out=into_v)

    def accuracy(self, theta: Floats) -> float:
        """Return the fraction of all images that are classified correctly."""
        w, v = views(theta)
        hidden = np.maximum(self._images @ w, 0.0)
        return float(((hidden @ v[:-1] + v[-1]).argmax(1) == self._labels).mean())
