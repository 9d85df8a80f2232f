"""Bounds on how far the floating-point result of a sensitivity method can be below the true value.

X = C^T C is the Gram matrix of C, a pattern is a set of steps in which one example takes part, and k is the number of
these steps. Every method adds up products of entries of C. In floating point, the relative error of an operation is at
most u = 2^-53. A sum of m products of non-negative numbers therefore has a relative error of at most m u, in any order
of summation. This holds to first order, and the factor 2 in `outward` covers the higher orders. With entries of both
signs, the error of entry (i, j) of X is at most m u times the sum of the absolute values of its terms, and hence at
most m u ||C e_i|| ||C e_j||. Over a pattern of k steps, these errors add up to at most

    m u (sum_i ||C e_i||)^2 <= k m u sum_i ||C e_i||^2 <= k m u sens^2,

where i runs over the steps of the pattern. The last inequality holds because sens^2 is at least sum_i ||C e_i||^2. If
the contributions of an example in the k steps are orthogonal unit vectors, they change C x by this squared norm.
Two numbers in units of u therefore describe the rounding errors of a strategy. `relative` bounds the error of an entry
of X relative to the entry itself. `absolute` bounds the error relative to ||C e_i|| ||C e_j||, and is multiplied by k
in the error of the result. The error of an eigenvalue routine is added where the routine is called.

The table in `table.py` has a `RoundingRule` for each strategy.

Reference: Higham 2002, Lemma 3.1 and section 3.1 (sums and products), Thm 8.5 (substitution), Thm 24.2 (transforms).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antiphase._check import Array
from antiphase._sensitivity.bracket import Case
from antiphase._sensitivity.toeplitz import coefficients, earliest_square, has_column, one_pass
from antiphase.strategies import (
    BLT,
    MOST_EXACT_BANDS,
    MOST_GRAM_ENTRIES,
    BandedInverse,
    Fourier,
    Strategy,
    Toeplitz,
)

UNIT = 2.0**-53
STEPS_PER_ANCHOR = 4096  # the pass over the steps of a BLT recomputes the powers of its decays after this many steps
PER_PARTICIPATION = 8  # error for each participation, in every method, in units of UNIT
PER_RESULT = 16  # error of all other operations, in units of UNIT
ONE_PASS_METHODS = ("column-norm", "earliest", "nonnegative")  # need no column of C for a BLT with scales >= 0


class Entries(NamedTuple):
    """Bounds on the rounding errors of the entries of X = C^T C, in units of 2^-53.

    Args:
        relative: bound on the error of an entry divided by the entry.
        absolute: bound on the error of entry (i, j) divided by ||C e_i|| ||C e_j||, the norms of two columns of C.
    """

    relative: float
    absolute: float


class Transformed(NamedTuple):
    """A column of C to which a method applies a Fourier transform, and the number by which its entries are divided."""

    column: Array
    divisor: float


@dataclass(frozen=True)
class RoundingRule:
    """Functions that bound the rounding errors of one class of strategies.

    Args:
        entries: maps the strategy, the number of participations and the method to the rounding errors of X.
        transformed: maps the strategy and the method to the column that the method transforms, or to None.
        spectrum: maps the strategy to the first column of X if X is symmetric Toeplitz and the method "spectral"
            transforms this column; otherwise to None.
    """

    entries: Callable[[Any, int, str], Entries]
    transformed: Callable[[Any, str], Transformed | None] = lambda strategy, method: None
    spectrum: Callable[[Any], Array | None] = lambda strategy: None


def outward(square: float, roundings: float) -> float:
    """Return an upper bound on the square root of an exact value, given its computed value `square`.

    The relative error of `square` is at most `roundings` * 2^-53, to first order.

    >>> outward(4.0, 0), outward(2.0, 0) ** 2 > 2.0, outward(4.0, 10) > 2.0
    (2.0, True, True)
    """
    raised = square * (1.0 + 2.0 * roundings * UNIT)
    raised = math.nextafter(raised, math.inf) if roundings else raised
    root = math.sqrt(raised)
    # The root is rounded to nearest. If it is too small, the next larger number is large enough.
    return root if _square_reaches(root, raised) else math.nextafter(root, math.inf)


def roundings(case: Case, rule: RoundingRule, method: str, square: float) -> float:
    """Return an upper bound on the relative rounding error of the result of a method, in units of 2^-53.

    Args:
        case: strategy and participation.
        rule: rounding rule of the strategy or, for `Stamped`, of the strategy that it repeats.
        method: name of the method.
        square: result of the method, the squared sensitivity.
    """
    entries = rule.entries(case.strategy.block, case.count, method)
    if entries == (0.0, 0.0) and method != "spectral":
        return 0.0  # sums of small integers are exact
    size = case.steps if method == "spectral" else case.count
    total = entries.relative + size * entries.absolute + PER_PARTICIPATION * case.count + PER_RESULT
    total += _transforms(case, rule, method, square)
    if method in ("earliest", "majorant", "blocks"):
        return total + _differences(case, square)
    return total


def _square_reaches(root: float, square: float) -> bool:
    """Return whether root^2 >= square, in exact arithmetic."""
    a, b = root.as_integer_ratio()
    c, d = square.as_integer_ratio()
    return a * a * d >= c * b * b


def _by_sign(entries: Array, chain: float) -> Entries:
    return Entries(chain, 0.0) if entries.min() >= 0.0 else Entries(0.0, chain)


def _toeplitz(strategy: Toeplitz, count: int, method: str) -> Entries:
    """Return bounds on the rounding errors in X for a `Toeplitz`.

    If columns are normalised, each entry is also divided by the scales of its two columns. A scale is the square root
    of a sum of up to `bands` squares.
    """
    chain = (2 * strategy.bands + 8) if strategy.column_normalized else strategy.bands + 1
    return _by_sign(strategy.coefficients, chain)


def _buffers(strategy: BLT, count: int, method: str) -> Entries:
    """Return bounds on the rounding errors in X for a `BLT`.

    Rounding occurs in the powers of the decays and in their weighted sum. The pass over the steps multiplies by each
    decay once per step, and recomputes the powers every `STEPS_PER_ANCHOR` steps. If the scales have both signs, the
    errors in the first column c of C are relative to a larger column a >= |c|, which is computed from the absolute
    values of the scales. The error of entry (i, j) of X, relative to ||C e_i|| ||C e_j||, is then at most ||a||^2 times
    as large as for scales >= 0, because the diagonal of C is 1, so that no column of C has a norm below 1.
    """
    n, d = strategy.steps, strategy.buffers
    one_pass = 3.0 * min(n, STEPS_PER_ANCHOR) + 8 * (n // STEPS_PER_ANCHOR + count) + 4 * d + 16
    by_column = n + 2.0 * d + 8 if _uses_column(strategy, method) else 0.0
    if strategy.scale.min() >= 0.0:
        return Entries(max(one_pass, by_column), 0.0)
    signed = max(one_pass, n + 2.0 * d + 8)
    return Entries(0.0, signed * earliest_square(strategy, n, 1, "absolute"))


def _inverse(strategy: BandedInverse, count: int, method: str) -> Entries:
    """Return bounds on the rounding errors in X for a `BandedInverse`.

    The first column c of C is computed from N c = e_0 by forward substitution. The computed column solves
    (N + E) c = e_0 instead, with |E| <= (bands + 2) u |N|. To first order, the error of c is C E c. Products with C and
    N are convolutions, so the norm of this error is at most (bands + 2) u ||c||_1 ||n||_1 ||c||_2, where n is the first
    column of N.
    """
    column = coefficients(strategy)
    lost = 2.0 * (strategy.bands + 3) * float(np.abs(column).sum() * np.abs(strategy.coefficients).sum())
    relative, absolute = _by_sign(column, strategy.steps + 1)
    return Entries(relative, absolute + lost)


def _fourier(strategy: Fourier, count: int, method: str) -> Entries:
    return Entries(0.0, 8.0 * math.log2(2 * strategy.steps) + 8.0)


def _toeplitz_transformed(strategy: Toeplitz, method: str) -> Transformed:
    divisor = abs(float(strategy.coefficients[0])) if strategy.column_normalized else 1.0
    return Transformed(strategy.coefficients, divisor)


def _computed_transformed(strategy: Strategy, method: str) -> Transformed | None:
    return Transformed(coefficients(strategy), 1.0) if _uses_column(strategy, method) else None


def _uses_column(strategy: Strategy, method: str) -> bool:
    return has_column(strategy) and method not in ONE_PASS_METHODS


UNKNOWN = RoundingRule(lambda strategy, count, method: Entries(0.0, strategy.rows + 1.0))
INTEGERS = RoundingRule(lambda strategy, count, method: Entries(0.0, 0.0))
DENSE = RoundingRule(lambda strategy, count, method: _by_sign(strategy.matrix, len(strategy.matrix) + 1))
BANDED = RoundingRule(lambda strategy, count, method: _by_sign(strategy.columns, strategy.columns.shape[1] + 1))
TOEPLITZ = RoundingRule(_toeplitz, _toeplitz_transformed)
BUFFERS = RoundingRule(_buffers, _computed_transformed)
INVERSE = RoundingRule(_inverse, _computed_transformed)
FOURIER = RoundingRule(_fourier, spectrum=lambda strategy: strategy.gram_column())


def _differences(case: Case, square: float) -> float:
    """Return the rounding error of `earliest_blocks`, relative to `square`, in units of 2^-53.

    `earliest_blocks` splits the coefficients and the steps into blocks as long as the separation. It computes each sum
    over k blocks of coefficients as a difference of two cumulative sums. A cumulative sum has one rounding for each
    block of coefficients, relative to the sum over all blocks of coefficients. There is one difference for each block
    of steps, and the squares of the errors of these differences add up.
    """
    strategy = case.strategy.block
    buffers = one_pass(strategy)
    if buffers is not None and buffers.scale.min() >= 0.0:
        return 0.0  # the pass over the steps of a BLT forms no differences
    column = strategy.toeplitz_column() if has_column(strategy) else None
    if column is None:
        return 0.0
    b = min(case.participation.spacing(case.steps), strategy.steps)
    column = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    blocks, rows = -(-len(column) // b), -(-strategy.steps // b)
    chain = float(min(b, len(column)) + rows + 4)
    if blocks == 1:
        return chain
    sums = np.pad(column, (0, blocks * b - len(column))).reshape(blocks, b).sum(axis=0)
    smallest = square / case.strategy.blocks  # squared sensitivity of one repeat of `case.strategy.block`, on average
    return chain + 4.0 * blocks * math.sqrt(rows * float(sums @ sums) / smallest)


def _transforms(case: Case, rule: RoundingRule, method: str, square: float) -> float:
    """Return the error of Fourier transforms of long columns, relative to `square`, in units of 2^-53.

    A transform of a column c has an error of about log2(size) * 2^-53 * ||c||_1. In a spectrum, this is the error of
    each value. In a convolution of c with k ones, the norm of the error is sqrt(k) times as large. In an
    autocorrelation, the error is ||c||_2 times as large, and k^2 of its values are added up.
    """
    strategy, k = case.strategy.block, case.count
    levels = 24.0 * math.log2(256 * strategy.steps)
    symmetric = rule.spectrum(strategy) if method == "spectral" else None
    if symmetric is not None:
        return levels * k * float(np.abs(symmetric).sum()) / square
    transformed = rule.transformed(strategy, method)
    if transformed is None:
        return 0.0
    column, divisor = transformed
    size, total = float(np.abs(column).sum()) / divisor, 0.0
    if method == "spectral" or -(-len(column) // case.period) * strategy.steps > MOST_GRAM_ENTRIES:
        total += levels * size * math.sqrt(k / square)
    if method in ("row-sum", "blocks") and len(column) > MOST_EXACT_BANDS:
        total += levels * k**2 * size * float(np.linalg.norm(column)) / divisor / square
    return total
