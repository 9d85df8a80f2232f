"""Kernels that correlate noise across steps, separately for each entry of the noise vector and in a fixed order.

They compute the noise of a step, y, from its white noise, z, and from past outputs or past rows of z.

The state is an array state[strip, row, lane]. Each strip holds LANES entries of the noise vector. The rows of a strip
are contiguous, so they stay together in the CPU cache. Every sum runs over the rows in a fixed order with one rounding
per term. The bits of the result therefore depend neither on the number of entries in a call nor on the number of steps
that are computed together. Sums over past outputs or past rows of z are computed in float64. They are rounded once, to
the dtype of the stream, when they are stored. The noise of a BLT is computed in the dtype of the stream throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._kernels.compiled import compiled
from antiphase._kernels.ieee import fma

LANES = 128
PANEL = 16  # number of history rows that are converted to float64 at once
State = NDArray[Any]  # float32 or float64, like Noise
Noise = NDArray[Any]
Slots = NDArray[np.int64]
Coefficients = tuple[Any, ...]  # a tuple, so that its length is known at compile time and loops are unrolled


@compiled(nogil=True, error_model="numpy")
def scale_noise(factor: float, out: Noise) -> None:
    """Multiply `out` by `factor`."""
    for i in range(out.shape[0]):
        out[i] = factor * np.float64(out[i])


@compiled(nogil=True, error_model="numpy")
def add_multiple(coefficient: float, z: Noise, total: Array) -> None:
    """Add `coefficient` times z to `total`."""
    for i in range(z.shape[0]):
        total[i] = fma(coefficient, np.float64(z[i]), total[i])


@compiled(nogil=True, error_model="numpy")
def write_scaled(factor: float, total: Array, out: Noise) -> None:
    """Write `factor` times `total` to `out`."""
    for i in range(out.shape[0]):
        out[i] = factor * total[i]


@compiled(nogil=True, error_model="numpy")
def read_row(state: State, row: int, factor: float, out: Noise) -> None:
    """Copy a row of the state, times `factor`, to `out`."""
    for strip in range(state.shape[0]):
        part = out[strip * LANES : (strip + 1) * LANES]
        line = state[strip, row]
        for i in range(part.shape[0]):
            part[i] = factor * np.float64(line[i])


@compiled(nogil=True, error_model="numpy")
def write_row(z: Noise, state: State, row: int) -> None:
    """Store z in a row of the state."""
    for strip in range(state.shape[0]):
        part = z[strip * LANES : (strip + 1) * LANES]
        state[strip, row, : part.shape[0]] = part


@compiled(nogil=True, error_model="numpy")
def buffers_step(state: State, loss: Coefficients, weight: Coefficients, factor: float, out: Noise) -> None:
    """Compute one step of a BLT: y = z - weight . b, then b <- b + (y - loss b). Each buffer b is a row of the state.

    `out` holds z and is overwritten with `factor` times y. The loss is 1 - decay, which is accurate even in float32 if
    the decay is near 1. All constants, including `factor`, can therefore have the dtype of the stream.
    """
    for strip in range(state.shape[0]):
        part, held = out[strip * LANES : (strip + 1) * LANES], state[strip].reshape(-1)
        for i in range(part.shape[0]):
            y = part[i]
            for j in range(len(loss)):
                y = fma(-weight[j], held[j * LANES + i], y)
            for j in range(len(loss)):
                held[j * LANES + i] += fma(-loss[j], held[j * LANES + i], y)
            part[i] = factor * y


@compiled(nogil=True, error_model="numpy")
def moving_sum_step(state: State, slots: Slots, coefficients: Array, newest: int, factor: float, out: Noise) -> None:
    """Compute one step of a moving sum: replace z in `out` by factor * (coefficients . (history, z)), and store z.

    Args:
        state: holds the last rows of z, called the history.
        slots: rows of the state that hold the history, oldest first.
        coefficients: one for each row of the history, then one for z.
        newest: row of the state in which to store z, or -1 to store nothing.
        factor: number that the sum is multiplied by.
        out: holds z at first, and then the result.
    """
    y = np.empty(LANES)
    for strip in range(state.shape[0]):
        part = out[strip * LANES : (strip + 1) * LANES]
        held = state[strip]
        lanes = part.shape[0]
        y[:] = 0.0
        for r in range(slots.shape[0]):
            line, c = held[slots[r]], coefficients[r]
            for i in range(lanes):
                y[i] = fma(c, np.float64(line[i]), y[i])
        last = coefficients[slots.shape[0]]
        if newest >= 0:
            held[newest, :lanes] = part
        for i in range(lanes):
            part[i] = factor * fma(last, np.float64(part[i]), y[i])


@compiled(nogil=True, error_model="numpy")
def tree_level_step(state: State, left: int, weight: float, z: Noise, node: Array, replaced: Array) -> None:
    """Replace the estimate of a tree node by its parent's estimate: node <- weight z + (1 - weight) (node + left).

    Args:
        state: holds the estimates of completed left siblings.
        left: row of the state that holds the left sibling's estimate, which is also added to `replaced`; -1 if there is
            no left sibling.
        weight: weight of z.
        z: row of white noise that belongs to the parent.
        node: estimate of the node, overwritten with the parent's estimate.
        replaced: sum of the estimates of all left siblings so far.
    """
    for strip in range(state.shape[0]):
        here = slice(strip * LANES, (strip + 1) * LANES)
        fresh, parent, gone = z[here], node[here], replaced[here]
        if left >= 0:
            line = state[strip, left]
            for i in range(fresh.shape[0]):
                value = np.float64(line[i])
                parent[i] += value
                gone[i] += value
        for i in range(fresh.shape[0]):
            parent[i] = fma(weight, np.float64(fresh[i]), (1.0 - weight) * parent[i])


@compiled(nogil=True, error_model="numpy")
def _add_panel(coefficients: Array, first: int, panel: Array, rows: int, outputs: int, total: Array) -> None:
    """Add sum_r coefficients[k, first + r] panel[r] to total[k], two outputs k and four rows r at a time.

    `panel` and `total` are flat arrays in which row r starts at r LANES. The number of outputs is rounded up to a
    multiple of two, and the number of rows to a multiple of four. The caller must pad `coefficients` and `panel` with
    zeros, and `total` with unused rows, to these sizes.
    """
    for k in range(0, outputs, 2):
        even, odd, both = coefficients[k], coefficients[k + 1], total[k * LANES : (k + 2) * LANES]
        s, t = both[:LANES], both[LANES:]
        for r in range(0, rows, 4):
            c, four = first + r, panel[r * LANES : (r + 4) * LANES]
            v0, v1, v2, v3 = four[:LANES], four[LANES:], four[2 * LANES :], four[3 * LANES :]
            a0, a1, a2, a3 = even[c], even[c + 1], even[c + 2], even[c + 3]
            b0, b1, b2, b3 = odd[c], odd[c + 1], odd[c + 2], odd[c + 3]
            for i in range(LANES):
                s[i] = fma(a3, v3[i], fma(a2, v2[i], fma(a1, v1[i], fma(a0, v0[i], s[i]))))
                t[i] = fma(b3, v3[i], fma(b2, v2[i], fma(b1, v1[i], fma(b0, v0[i], t[i]))))


@compiled(nogil=True, error_model="numpy")
def feedback_steps(
    state: State, z: Noise, slots: Slots, past: Array, inside: Array, pivot: Array, new: Slots, total: Array
) -> None:
    """Compute several steps of forward substitution: y_k = pivot_k (z_k + past_k . history + inside_k . (y_0, ...)).

    Args:
        state: holds the last outputs, called the history, and receives the new outputs y_k.
        z: rows of z, one for each step k.
        slots: rows of the state that hold the history, oldest first.
        past: entries of -C for the history, padded as `_add_panel` requires.
        inside: entries of -C for the outputs y_0, ..., y_{k-1} of this call.
        pivot: 1 divided by the diagonal entry of C, for each step.
        new: the row of the state in which each y_k is stored.
        total: work space.
    """
    panel = np.empty(PANEL * LANES)
    steps = new.shape[0]
    for strip in range(state.shape[0]):
        held, start = state[strip], strip * LANES
        lanes = min(LANES, z.shape[1] - start)
        total[:] = 0.0
        for k in range(steps):
            fresh, row = z[k, start : start + lanes], total[k * LANES : (k + 1) * LANES]
            for i in range(lanes):
                row[i] = np.float64(fresh[i])
        for first in range(0, slots.shape[0], PANEL):
            rows = min(PANEL, slots.shape[0] - first)
            for r in range(rows):
                line, copy = held[slots[first + r]], panel[r * LANES : (r + 1) * LANES]
                for i in range(LANES):
                    copy[i] = np.float64(line[i])
            panel[rows * LANES : -(-rows // 4) * 4 * LANES] = 0.0
            _add_panel(past, first, panel, rows, steps, total)
        for k in range(steps):
            line, row = held[new[k]], total[k * LANES : (k + 1) * LANES]
            for i in range(LANES):
                line[i] = row[i] * pivot[k]
            for later in range(k + 1, steps):
                c, row = inside[later, k], total[later * LANES : (later + 1) * LANES]
                for i in range(LANES):
                    row[i] = fma(c, np.float64(line[i]), row[i])


@compiled(nogil=True, error_model="numpy")
def matrix_product(state: State, z: Noise, matrix: Array, outputs: int, total: Array) -> None:
    """Store the product of `matrix` and z in the first `outputs` rows of the state.

    The outputs are computed in blocks of as many rows as fit into `total`, the work space. The matrix must be padded as
    `_add_panel` requires.
    """
    panel = np.empty(PANEL * LANES)
    block = total.shape[0] // LANES
    for strip in range(state.shape[0]):
        start = strip * LANES
        lanes = min(LANES, z.shape[1] - start)
        for k in range(0, outputs, block):
            count = min(block, outputs - k)
            total[:] = 0.0
            for first in range(0, z.shape[0], PANEL):
                rows = min(PANEL, z.shape[0] - first)
                panel[:] = 0.0
                for r in range(rows):
                    fresh, copy = z[first + r, start : start + lanes], panel[r * LANES : (r + 1) * LANES]
                    for i in range(lanes):
                        copy[i] = np.float64(fresh[i])
                _add_panel(matrix[k:], first, panel, rows, count, total)
            for q in range(count):
                line, row = state[strip, k + q], total[q * LANES : (q + 1) * LANES]
                for i in range(LANES):
                    line[i] = row[i]
