"""Gram matrices X = C^T C of strategies C, which are read by diagonals. If C has structure, no dense X is formed.

A pattern is a set of steps in which one example takes part. Its sensitivity is the largest ||C u|| over contributions u
to these steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import InvalidArgument, NotProved

Indices = NDArray[np.int64]
MOST_GRAM_ENTRIES = 1 << 28  # maximum number of entries of X to sum over; above this, products with C are cheaper
LONGEST_ARRAY = 1 << 25  # maximum number of steps for which an array with one entry per step is made
LARGEST_INTEGER = 1 << 53  # float64 represents all integers up to this one exactly
SMALLEST_SQUARE, LARGEST_SQUARE = 1e-270, 1e270  # squared norms outside this range may have lost precision


class Gram(ABC):
    """The Gram matrix X = C^T C.

    Attributes:
        steps: number of steps, n.
        bands: X[i, j] = 0 for |i - j| >= bands.
        first_is_worst: True if shifting a pattern to later steps never increases its sensitivity. The block of X on a
            pattern has the rows and columns of the pattern's steps. Shifting never increases the sensitivity if the
            block on the shifted pattern is a submatrix of the block on the original pattern, or equals the original
            block minus a positive semidefinite matrix.
        norms_decrease: True if each column of C consists of the first entries of every earlier column, shifted down, so
            that column norms never increase. Among all patterns at whose steps the columns of C are orthogonal to each
            other, the one with the earliest steps then has the largest sensitivity.
    """

    steps: int
    bands: int
    first_is_worst = False
    norms_decrease = False

    @abstractmethod
    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return X[i, i + lag] for i = start, ..., stop - 1; by default, up to the end of the diagonal."""

    def diagonals(self, start: int, stop: int) -> Array:
        """Return all diagonals for rows `start` to `stop - 1`.

        Entry [i - start, r] is X[i, i + r], or 0 if i + r >= steps.
        """
        out = np.zeros((stop - start, self.bands))
        for lag in range(self.bands):
            last = min(stop, self.steps - lag)
            if last > start:
                out[: last - start, lag] = self.diagonal(lag, start, last)
        return out

    def largest_square(self) -> float:
        """Return the largest squared column norm of C, which is the largest entry of the main diagonal."""
        return float((self.diagonal(0, 0, 1) if self.first_is_worst else self.diagonal(0)).max())

    def envelope(self) -> Array:
        """Return an upper bound on |X[i, i + lag]| over all i, for each lag < bands."""
        return np.array([np.abs(self.diagonal(lag)).max() for lag in range(self.bands)])

    def squares(self, weights: Array) -> tuple[float, float] | None:
        """Return ||C w||^2 and an upper bound on sum_ij w_i |X_ij| w_j, for weights w >= 0.

        The two numbers are equal if C has no negative entry. Returns None if they are expensive to compute.
        """
        return None

    def eigenvalue_bound(self) -> float | None:
        """Return an upper bound on the eigenvalues of X that holds for any number of steps; None if none is known."""
        return None

    def residues(self, period: int) -> Indices:
        """Return the residues r for which the pattern r, r + period, ... can have the largest sensitivity."""
        count = 1 if self.first_is_worst else min(period, self.steps)
        _check_length(count)
        return np.arange(count)

    def class_sums(self, period: int) -> tuple[Indices, Array, Array]:
        """Return `residues(period)`, and the sums of |X_ij| and of X_ij over the pattern of each of these residues.

        The pattern of residue r is r, r + period, r + 2 period, and so on. Both i and j run over its steps. The sums
        are computed from the diagonals of X at multiples of the period or, if these are many, from C itself. In the
        second case, if C has entries of both signs, the returned sums of |X_ij| are upper bounds.
        """
        residues = self.residues(period)
        lags = range(0, self.bands, period)
        if len(lags) * self.steps > MOST_GRAM_ENTRIES and len(lags) > max(2, len(residues)):
            _check_length(self.steps)
            found = [self.squares(_indicator(r, period, self.steps)) for r in residues]
            sums = np.array([pair for pair in found if pair is not None])
            if len(sums):
                return residues, sums[:, 1], sums[:, 0]
        absolute, plain = np.zeros(len(residues)), np.zeros(len(residues))
        for lag in lags:
            entries, times = self.diagonal(lag), 1.0 if lag == 0 else 2.0
            absolute += times * _folded(np.abs(entries), period)[residues]
            plain += times * _folded(entries, period)[residues]
        return residues, absolute, plain

    def class_blocks(self, period: int, residues: Indices) -> Array:
        """Return the block of X on the pattern of each residue, padded with zeros, shape (residues, k, k).

        Here k is the number of steps of the longest pattern.
        """
        k = -(-self.steps // period)
        out = np.zeros((len(residues), k, k))
        for m, lag in enumerate(range(0, self.bands, period)):
            padded = np.zeros(k * period)
            padded[: self.steps - lag] = self.diagonal(lag)
            entries = padded.reshape(k, period)[: k - m, residues].T
            i = np.arange(k - m)
            out[:, i, i + m] = out[:, i + m, i] = entries
        return out

    def folded(self, period: int) -> Array:
        """Return the Gram matrix of the matrix whose column r is the sum of columns r, r + period, ... of C.

        The result has the shape (period, period).
        """
        out = np.zeros((period, period))
        i = np.arange(period)
        for lag in range(self.bands):
            sums = _folded(self.diagonal(lag), period)  # X[t, t + lag] belongs to the residues of t and t + lag
            out[i, (i + lag) % period] += sums
            if lag:
                out[(i + lag) % period, i] += sums
        return out

    def dense(self) -> Array:
        """Return X as a dense array, for small cases."""
        upper = np.zeros((self.steps, self.steps))
        for lag in range(self.bands):
            i = np.arange(self.steps - lag)
            upper[i, i + lag] = self.diagonal(lag)
        return upper + np.triu(upper, 1).T


class DenseGram(Gram):
    """The Gram matrix of a matrix without structure."""

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix
        self.steps = matrix.shape[1]
        self.bands = _row_width(matrix)

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the diagonal, computed from products of columns."""
        stop = self.steps - lag if stop is None else stop
        matrix = self._matrix
        return np.einsum("ti,ti->i", matrix[:, start:stop], matrix[:, start + lag : stop + lag])

    def diagonals(self, start: int, stop: int) -> Array:
        """Return all diagonals, computed from one matrix product."""
        product = self._matrix[:, start:stop].T @ self._matrix[:, start:]
        out = np.zeros((stop - start, self.bands))
        for lag in range(self.bands):
            entries = np.diagonal(product, lag)
            out[: len(entries), lag] = entries
        return out

    def envelope(self) -> Array:
        """Return the largest absolute entry of each diagonal, computed in chunks of rows."""
        chunk, out = 512, np.zeros(self.bands)
        for start in range(0, self.steps, chunk):
            rows = self.diagonals(start, min(start + chunk, self.steps))
            out = np.maximum(out, np.abs(rows).max(axis=0))
        return out

    def folded(self, period: int) -> Array:
        """Return the Gram matrix of the sums of the columns r, r + period, ... of C, for each r < period."""
        rows, steps = self._matrix.shape
        padded = np.zeros((rows, -(-steps // period) * period))
        padded[:, :steps] = self._matrix
        sums = padded.reshape(rows, -1, period).sum(axis=1)
        return sums.T @ sums


class BandedGram(Gram):
    """The Gram matrix of a banded lower-triangular C, given as columns[j, r] = C[j + r, j]."""

    def __init__(self, columns: Array) -> None:
        used = np.flatnonzero(np.abs(columns).max(axis=0))[-1] + 1
        self._columns = columns[:, :used]
        self.steps, self.bands = self._columns.shape

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the inner products of column i, without its first `lag` entries, and column i + lag."""
        stop = self.steps - lag if stop is None else stop
        left = self._columns[start:stop, lag:]
        return np.einsum("ir,ir->i", left, self._columns[start + lag : stop + lag, : left.shape[1]])


class TreeGram(Gram):
    """The Gram matrix of the binary tree. X[i, j] is the number of nodes above both steps i and j."""

    def __init__(self, steps: int) -> None:
        self.steps = self.bands = steps
        self.levels = (steps - 1).bit_length() + 1

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return, for each pair of steps, the number of levels from the lowest node above both steps up to the root."""
        stop = self.steps - lag if stop is None else stop
        _check_length(stop - start)
        i = np.arange(start, stop)
        return self.levels - _bit_length(i ^ (i + lag))

    def envelope(self) -> Array:
        """Return X[0, lag] for each lag: of all pairs of steps `lag` apart, steps 0 and `lag` share the most nodes."""
        _check_length(self.steps)
        return self.levels - _bit_length(np.arange(self.steps))

    def squares(self, weights: Array) -> tuple[float, float]:
        """Return ||C w||^2 twice: both numbers of `Gram.squares` are equal, because C has no negative entry."""
        total, sums = 0.0, weights
        for _ in range(self.levels):
            total += float(sums @ sums)
            sums = np.add.reduceat(sums, np.arange(0, len(sums), 2))
        return total, total

    def largest_square(self) -> float:
        """Return the number of levels: every step is below one node of each level."""
        return float(self.levels)

    def class_sums(self, period: int) -> tuple[Indices, Array, Array]:
        """Return the residues, and the sums of |X_ij| and of X_ij over their patterns, as defined in `Gram.class_sums`.

        If there are many diagonals, each sum is computed as the sum of count^2 over all nodes, where `count` is the
        number of pattern steps below a node. Within a level, the counts of complete nodes differ by at most one, so
        their total determines the sum of squares. The time grows with the logarithm of the number of steps.
        """
        residues = self.residues(period)
        if -(-self.steps // period) * self.steps < 8 * self.levels * len(residues):
            return super().class_sums(period)
        in_run = _count_before(self.steps, residues, period)
        total = np.zeros(len(residues))
        for level in range(self.levels):
            nodes, least = self.steps >> level, (1 << level) // period
            in_nodes = _count_before(nodes << level, residues, period)
            larger = in_nodes - nodes * least  # nodes with `least` + 1 pattern steps; the others have `least`
            total += (
                float(nodes * least**2) + larger * (2.0 * least + 1.0) + (in_run - in_nodes).astype(np.float64) ** 2
            )
        upper = total if total.max() <= LARGEST_INTEGER else total * (1.0 + 2.0**-44)  # larger sums may be rounded
        return residues, upper, total


class BlockGram(Gram):
    """The Gram matrix of a `Stamped` strategy: the Gram matrix of one block, repeated along the diagonal."""

    def __init__(self, block: Gram, repeats: int) -> None:
        self.block, self.repeats = block, repeats
        self.steps, self.bands = block.steps * repeats, block.bands

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the diagonal, with zeros where the two steps are in different blocks."""
        stop = self.steps - lag if stop is None else stop
        _check_length(stop - start)
        once = np.zeros(self.block.steps)
        if lag < self.block.steps:
            once[: self.block.steps - lag] = self.block.diagonal(lag)
        return once[np.arange(start, stop) % self.block.steps]

    def largest_square(self) -> float:
        """Return the largest squared column norm of one block."""
        return self.block.largest_square()

    def envelope(self) -> Array:
        """Return the `envelope` of one block."""
        return self.block.envelope()

    def squares(self, weights: Array) -> tuple[float, float] | None:
        """Return the two numbers of `Gram.squares`, summed over the blocks."""
        parts = [self.block.squares(w) for w in weights.reshape(self.repeats, -1)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return sum(part[0] for part in known), sum(part[1] for part in known)

    def eigenvalue_bound(self) -> float | None:
        """Return the bound for one block, which holds for every block."""
        return self.block.eigenvalue_bound()


def check_square(value: float) -> None:
    """Raise `InvalidArgument` if a squared norm is so small or large that it may have underflowed or overflowed."""
    if not SMALLEST_SQUARE <= value <= LARGEST_SQUARE:
        raise InvalidArgument(
            f"A squared norm of this strategy is {value:.3g}, which is outside the supported floating-point range.",
            hint="scale the strategy: divide C by its largest column norm",
        )


def _check_length(steps: int) -> None:
    """Raise `NotProved` if an array with one entry per step would take minutes or would not fit in memory."""
    if steps > LONGEST_ARRAY:
        raise NotProved(
            f"{steps:,} steps are too many to examine one by one. The limit is {LONGEST_ARRAY:,} steps.",
            hint="use fewer steps",
        )


def _count_before(step: int, residues: Indices, period: int) -> Indices:
    """Return the number of steps r, r + period, r + 2 period, ... before `step`, for each residue r < period."""
    return (step - residues + (period - 1)) // period


def _indicator(residue: int, period: int, steps: int) -> Array:
    out = np.zeros(steps)
    out[residue::period] = 1.0
    return out


def _folded(values: Array, period: int) -> Array:
    """Return the sums of the values whose indices are equal modulo `period`, shape (period,)."""
    padded = np.zeros(-(-len(values) // period) * period)
    padded[: len(values)] = values
    return padded.reshape(-1, period).sum(axis=0)


def _bit_length(values: Indices) -> Array:
    return np.frexp(values.astype(np.float64))[1].astype(np.float64)


def _row_width(matrix: Array) -> int:
    """Return the largest distance between two non-zero entries of the same row, plus one."""
    used = matrix != 0
    rows = used.any(axis=1)
    first, last = used.argmax(axis=1), matrix.shape[1] - 1 - used[:, ::-1].argmax(axis=1)
    return int((last - first)[rows].max()) + 1
