"""A small language model: an LSTM that predicts the next character of the Python reference manual.

The text is `pydoc_data.topics` of the standard library. An example is a short sequence of its characters. Per-example
gradients are never materialised. This is possible because the gradient of a weight matrix is a sum of outer products
over the characters. So the norm of this gradient can be computed from two Gram matrices, and the sum of the clipped
gradients is one matrix product. NumPy (BLAS) computes the matrix products, and Numba everything else.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

import numba
import numpy as np

LENGTH, WIDTH = 10, 24
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,()'"
SYMBOLS, GATES = len(ALPHABET), 4 * WIDTH
SIZES = [(SYMBOLS, GATES), (WIDTH, GATES), (GATES,), (WIDTH, SYMBOLS), (SYMBOLS,)]
ENDS = np.cumsum([int(np.prod(size)) for size in SIZES])
PARAMETERS = int(ENDS[-1])
KNOWN_TEXT = "d7d72c6fe44295a6"  # start of the SHA-256 digest of the text that the stored results were measured with
Floats = np.ndarray[Any, np.dtype[np.float32]]


def text() -> str:
    """Return the manual in lower case. Every run of characters outside ALPHABET becomes one space."""
    from pydoc_data.topics import topics

    whole = " ".join(topics[name] for name in sorted(topics)).lower()
    return re.sub(r" +", " ", re.sub(f"[^{re.escape(ALPHABET)}]+", " ", whole))


def make_data(examples: int, tests: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of LENGTH + 1 characters as integers, in random order, as (training set, test set)."""
    whole = text()
    if not hashlib.sha256(whole.encode()).hexdigest().startswith(KNOWN_TEXT):
        print(
            "The manual of this Python version differs from the manual used for the stored results. Do not add new "
            "results to the stored ones.",
            file=sys.stderr,
        )
    numbers = np.array([ALPHABET.index(letter) for letter in whole], np.int32)
    count = len(numbers) // (LENGTH + 1)
    stretches = numbers[: count * (LENGTH + 1)].reshape(count, LENGTH + 1)
    stretches = stretches[np.random.default_rng(8).permutation(count)]
    return stretches[:examples], stretches[examples : examples + tests]


def flat_params(seed: int) -> Floats:
    """Return random initial weights. The biases of the forget gates are 1, so that these gates start open."""
    rng = np.random.default_rng([seed, 7])
    bias = np.zeros(GATES)
    bias[WIDTH : 2 * WIDTH] = 1.0
    parts = [
        rng.standard_normal(SIZES[0]) / 4,
        rng.standard_normal(SIZES[1]) / WIDTH**0.5,
        bias,
        rng.standard_normal(SIZES[3]) / WIDTH**0.5,
        np.zeros(SYMBOLS),
    ]
    return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)


def split(theta: Floats) -> list[Floats]:
    """Return views of the flat parameters, in this order.

    First come the input weights, hidden weights and bias of the gates, then the weights and bias of the logits.
    """
    return [part.reshape(size) for part, size in zip(np.split(theta, ENDS[:-1]), SIZES, strict=True)]


HALF, ONE = np.float32(0.5), np.float32(1.0)


@numba.njit(fastmath=True, cache=True)
def _add_input(gates: Floats, from_input: Floats, bias: Floats, symbols: Any) -> None:
    """Add input and bias to the pre-activations of the gates.

    The pre-activations of the three sigmoid gates are also halved. Then tanh can be applied to all gates, because
    sigmoid(x) = (1 + tanh(x / 2)) / 2.
    """
    for b in range(gates.shape[0]):
        row = from_input[symbols[b]]
        for j in range(gates.shape[1]):
            gates[b, j] += row[j] + bias[j]
        for j in range(3 * WIDTH):
            gates[b, j] *= HALF


@numba.njit(fastmath=True, cache=True)
def _update_cell(gates: Floats, before: Floats, after: Floats) -> None:
    for b in range(gates.shape[0]):
        for j in range(3 * WIDTH):
            gates[b, j] = HALF * gates[b, j] + HALF
        for j in range(WIDTH):
            after[b, j] = gates[b, WIDTH + j] * before[b, j] + gates[b, j] * gates[b, 3 * WIDTH + j]


@numba.njit(fastmath=True, cache=True)
def _back_through_cell(gates: Floats, cell: Floats, squashed: Floats, by_hidden: Floats, by_cell: Floats) -> None:
    """Replace the gates of one character by the gradients with respect to their pre-activations.

    `by_cell` is updated to the gradient with respect to the cell of the previous character.
    """
    for b in range(gates.shape[0]):
        for j in range(WIDTH):
            into, forget = gates[b, j], gates[b, WIDTH + j]
            out, new, flat = gates[b, 2 * WIDTH + j], gates[b, 3 * WIDTH + j], squashed[b, j]
            into_cell = by_cell[b, j] + by_hidden[b, j] * out * (ONE - flat * flat)
            gates[b, j] = into_cell * new * into * (ONE - into)
            gates[b, WIDTH + j] = into_cell * cell[b, j] * forget * (ONE - forget)
            gates[b, 2 * WIDTH + j] = by_hidden[b, j] * flat * out * (ONE - out)
            gates[b, 3 * WIDTH + j] = into_cell * into * (ONE - new * new)
            by_cell[b, j] = into_cell * forget


@numba.njit(fastmath=True, cache=True)
def _subtract_highest(logits: Floats) -> None:
    for i in range(logits.shape[0]):
        highest = logits[i, 0]
        for j in range(1, logits.shape[1]):
            highest = max(highest, logits[i, j])
        for j in range(logits.shape[1]):
            logits[i, j] -= highest


@numba.njit(fastmath=True, cache=True)
def _errors(errors: Floats, targets: Any) -> None:
    """Replace exp(logits) in `errors` by the gradients of the mean loss per character with respect to the logits."""
    for i in range(errors.shape[0]):
        total = np.float32(0.0)
        for j in range(errors.shape[1]):
            total += errors[i, j]
        scale = ONE / (total * np.float32(LENGTH))
        for j in range(errors.shape[1]):
            errors[i, j] *= scale
        errors[i, targets[i]] -= ONE / np.float32(LENGTH)


@numba.njit(fastmath=True, cache=True)
def _dot(left: Floats, right: Floats) -> Any:
    total = np.float32(0.0)
    for i in range(left.size):
        total += left[i] * right[i]
    return total


@numba.njit(fastmath=True, cache=True)
def _clip(by_gates: Floats, errors: Floats, hidden: Floats, inputs: Any, clip_norm: float) -> None:
    """Scale the backpropagated errors of each example so that the norm of its gradient is at most `clip_norm`."""
    for b in range(by_gates.shape[1]):
        square = np.float32(0.0)
        for s in range(LENGTH):
            for t in range(s + 1):
                twice = ONE if s == t else ONE + ONE
                same = ONE if inputs[s, b] == inputs[t, b] else np.float32(0.0)
                left = _dot(by_gates[s, b], by_gates[t, b]) * (same + _dot(hidden[s, b], hidden[t, b]) + ONE)
                right = _dot(errors[s, b], errors[t, b]) * (_dot(hidden[s + 1, b], hidden[t + 1, b]) + ONE)
                square += twice * (left + right)
        weight = min(ONE, np.float32(clip_norm) / np.sqrt(square + np.float32(1e-20)))
        for s in range(LENGTH):
            for j in range(GATES):
                by_gates[s, b, j] *= weight
            for j in range(SYMBOLS):
                errors[s, b, j] *= weight


@numba.njit(fastmath=True, cache=True)
def _sum_by_input(by_gates: Floats, inputs: Any, out: Floats) -> None:
    out[:] = 0.0
    for i in range(inputs.size):
        row = out[inputs[i]]
        for j in range(row.size):
            row[j] += by_gates[i, j]


class LanguageModel:
    """Computes clipped gradients, accuracy and loss of the LSTM on one set of sequences."""

    def __init__(self, stretches: np.ndarray, clip_norm: float) -> None:
        self._stretches, self._clip_norm = stretches, clip_norm
        self._buffers: dict[str, Floats] = {}

    def _buffer(self, name: str, *shape: int) -> Floats:
        size, kept = int(np.prod(shape)), self._buffers.get(name)
        if kept is None or kept.size < size:
            kept = self._buffers[name] = np.empty(size + size // 8, np.float32)
        return kept[:size].reshape(shape)

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of a batch, each of shape (characters, examples)."""
        rows = self._stretches[indices]
        return np.ascontiguousarray(rows[:, :-1].T), np.ascontiguousarray(rows[:, 1:].T)

    def _forward(self, theta: Floats, inputs: np.ndarray) -> tuple[Floats, Floats, Floats, Floats]:
        """Return gates, hidden states, cell states and the tanh of the cell states for all characters."""
        from_input, from_hidden, bias, _, _ = split(theta)
        size = inputs.shape[1]
        gates = self._buffer("gates", LENGTH, size, GATES)
        hidden, cells = (self._buffer(name, LENGTH + 1, size, WIDTH) for name in ("hidden", "cells"))
        squashed = self._buffer("squashed", LENGTH, size, WIDTH)
        hidden[0] = cells[0] = 0.0
        for t in range(LENGTH):
            np.matmul(hidden[t], from_hidden, out=gates[t])
            _add_input(gates[t], from_input, bias, inputs[t])
            np.tanh(gates[t], out=gates[t])
            _update_cell(gates[t], cells[t], cells[t + 1])
            np.tanh(cells[t + 1], out=squashed[t])
            np.multiply(gates[t, :, 2 * WIDTH : 3 * WIDTH], squashed[t], out=hidden[t + 1])
        return gates, hidden, cells, squashed

    def _logits(self, theta: Floats, hidden: Floats) -> Floats:
        weights, bias = split(theta)[3:]
        states = hidden[1:].reshape(-1, WIDTH)
        logits = self._buffer("logits", len(states), SYMBOLS)
        np.matmul(states, weights, out=logits)
        logits += bias
        return logits

    def clipped_sum(self, theta: Floats, batch: Any, out: Floats) -> None:
        """Write the sum of the clipped per-example gradients of the mean loss per character to `out`."""
        inputs, targets = batch
        size = inputs.shape[1]
        if not size:
            out[:] = 0.0
            return
        _, from_hidden, _, weights, _ = split(theta)
        gates, hidden, cells, squashed = self._forward(theta, inputs)
        errors = self._logits(theta, hidden)
        _subtract_highest(errors)
        np.exp(errors, out=errors)
        _errors(errors, targets.reshape(-1))
        by_hidden = self._buffer("by_hidden", LENGTH, size, WIDTH)
        np.matmul(errors, weights.T, out=by_hidden.reshape(-1, WIDTH))
        by_cell = np.zeros((size, WIDTH), np.float32)
        for t in range(LENGTH - 1, -1, -1):
            if t < LENGTH - 1:
                by_hidden[t] += gates[t + 1] @ from_hidden.T
            _back_through_cell(gates[t], cells[t], squashed[t], by_hidden[t], by_cell)
        _clip(gates, errors.reshape(LENGTH, size, SYMBOLS), hidden, inputs, self._clip_norm)
        flat, states = gates.reshape(-1, GATES), hidden[1:].reshape(-1, WIDTH)
        into_input, into_hidden, into_bias, into_weights, into_last = split(out)
        _sum_by_input(flat, inputs.reshape(-1), into_input)
        np.matmul(hidden[:-1].reshape(-1, WIDTH).T, flat, out=into_hidden)
        into_bias[:] = flat.sum(0)
        np.matmul(states.T, errors, out=into_weights)
        into_last[:] = errors.sum(0)

    def evaluate(self, theta: Floats) -> tuple[float, float]:
        """Return the fraction of characters predicted correctly, and the mean loss per character in nats."""
        inputs, targets = self.gather(np.arange(len(self._stretches)))
        _, hidden, _, _ = self._forward(theta, inputs)
        logits = self._logits(theta, hidden).astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        right = logits[np.arange(len(logits)), targets.reshape(-1)]
        losses = np.log(np.exp(logits).sum(1)) - right
        return float((logits.argmax(1) == targets.reshape(-1)).mean()), float(losses.mean())
