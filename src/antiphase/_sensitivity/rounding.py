"""Rounding outward: how far below the true value the arithmetic of any method can end.

Every method adds up products of entries of C. In floating point each operation errs by at most u = 2^-53 of its result,
so a sum of m products of non-negative numbers errs by at most m u of itself, in whatever order it is taken (to first
order; the second is covered by the factor 2 in `outward`). With signs the error of an entry of X = C^T C is m u of the
sum of absolute values, hence of ||C e_i|| ||C e_j||. Over a pattern of k steps that makes at most

    m u (sum_i ||C e_i||)^2 <= k m u sum_i ||C e_i||^2 <= k m u sens^2,

since contributions that are orthogonal to each other attain sum_i ||C e_i||^2. So two numbers describe what a strategy
adds: `relative`, roundings of each entry of X by itself, and `absolute`, roundings in units of column norms, which
count k times. What eigenvalue routines add is added where they are called.

Reference: Higham 2002, Lemma 3.1 and section 3.1 (sums and products), Thm 8.5 (substitution), Thm 24.2 (transforms).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from antiphase._check import Array
from antiphase._participation import MinSeparation
from antiphase._sensitivity.bracket import Case
from antiphase._sensitivity.gram import DEAR
from antiphase._sensitivity.toeplitz import DIRECT, coefficients, column_fits, earliest_square
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

UNIT = 2.0**-53
ANCHOR = 4096  # steps after which the one pass over a BLT starts from a fresh power
SUMS = 8  # additions and products for each participation, in every method
OTHERS = 16
ONE_PASS = ("column-norm", "earliest", "nonnegative")  # for a BLT with non-negative scales


class Entries(NamedTuple):
    """Roundings in the entries of X: relative to each entry, and to the norms of its two columns."""

    relative: float
    absolute: float


def outward(square: float, roundings: float) -> float:
    """A number not below the root of `square` as it would be without `roundings` roundings in it.

    >>> outward(4.0, 0), outward(2.0, 0) ** 2 > 2.0, outward(4.0, 10) > 2.0
    (2.0, True, True)
    """
    raised = square * (1.0 + 2.0 * roundings * UNIT)
    raised = math.nextafter(raised, math.inf) if roundings else raised
    root = math.sqrt(raised)
    # The root is rounded to nearest, so that only its last bit may be missing.
    return root if _square_reaches(root, raised) else math.nextafter(root, math.inf)


def roundings(case: Case, method: str, square: float) -> float:
    """The most roundings on any way from the entries of C to the square that the method gives."""
    entries = _entries(case.strategy, case.count, method)
    if entries == (0.0, 0.0) and method != "spectral":
        return 0.0  # sums of small integers
    size = case.steps if method == "spectral" else case.count
    total = entries.relative + size * entries.absolute + SUMS * case.count + OTHERS + _transforms(case, method, square)
    if method in ("earliest", "majorant", "blocks"):
        return total + _differences(case, square)
    return total


def _square_reaches(root: float, square: float) -> bool:
    """Whether root^2 >= square, without rounding."""
    a, b = root.as_integer_ratio()
    c, d = square.as_integer_ratio()
    return a * a * d >= c * b * b


def _entries(strategy: Strategy, count: int, method: str) -> Entries:
    found = Entries(0.0, strategy.rows + 1.0)
    match strategy:
        case Identity() | Tree():
            found = Entries(0.0, 0.0)
        case Stamped():
            found = _entries(strategy.strategy, count, method)
        case Toeplitz():
            # The scales of normalised columns are roots of the same sums, and two of them divide.
            chain = (2 * strategy.bands + 8) if strategy.column_normalized else strategy.bands + 1
            found = _by_sign(strategy.coefficients, chain)
        case Banded():
            found = _by_sign(strategy.columns, strategy.columns.shape[1] + 1)
        case Dense():
            found = _by_sign(strategy.matrix, len(strategy.matrix) + 1)
        case BLT():
            found = _buffers(strategy, count, method)
        case BandedInverse():
            found = _inverse(strategy)
        case Fourier():
            found = Entries(0.0, 8.0 * math.log2(2 * strategy.steps) + 8.0)
    return found


def _by_sign(entries: Array, chain: float) -> Entries:
    return Entries(chain, 0.0) if entries.min() >= 0.0 else Entries(0.0, chain)


def _buffers(strategy: BLT, count: int, method: str) -> Entries:
    """Entries of a BLT: powers, their weighted sum, and in the one pass a product for each step since the last anchor.

    With scales of both signs relative to the column a >= |c| of their absolute values; ||c|| >= c_0 = 1.
    """
    n, d = strategy.steps, strategy.buffers
    one_pass = 3.0 * min(n, ANCHOR) + 8 * (n // ANCHOR + count) + 4 * d + 16
    by_column = n + 2.0 * d + 8 if column_fits(strategy) and method not in ONE_PASS else 0.0
    if strategy.scale.min() >= 0.0:
        return Entries(max(one_pass, by_column), 0.0)
    signed = max(one_pass, n + 2.0 * d + 8)
    return Entries(0.0, signed * earliest_square(strategy, n, 1, "absolute"))


def _inverse(strategy: BandedInverse) -> Entries:
    """Substitution: (N + E) c = e with |E| <= (bands + 2) u |N|, so that c errs by C E c.

    Convolution bounds that by (bands + 2) u ||c||_1 ||n||_1 ||c||_2.
    """
    column = coefficients(strategy)
    lost = 2.0 * (strategy.bands + 3) * float(np.abs(column).sum() * np.abs(strategy.coefficients).sum())
    relative, absolute = _by_sign(column, strategy.steps + 1)
    return Entries(relative, absolute + lost)


def _block(strategy: Strategy) -> Strategy:
    return strategy.strategy if isinstance(strategy, Stamped) else strategy


def _differences(case: Case, square: float) -> float:
    """Of sums over k blocks of coefficients taken as differences of sums over all blocks, in `earliest_blocks`.

    Each difference errs by as many roundings as there are blocks, of the sums over all of them; there are as many
    differences as blocks of steps, whose errors add up as squares.
    """
    strategy = _block(case.strategy)
    if not isinstance(strategy, (Toeplitz, BLT, BandedInverse)):
        return 0.0
    if isinstance(strategy, BLT) and (strategy.scale.min() >= 0.0 or not column_fits(strategy)):
        return 0.0  # one pass without differences
    assert isinstance(case.participation, MinSeparation)
    b = min(case.participation.separation, strategy.steps)
    column = np.maximum.accumulate(np.abs(coefficients(strategy))[::-1])[::-1]
    blocks, rows = -(-len(column) // b), -(-strategy.steps // b)
    chain = float(min(b, len(column)) + rows + 4)
    if blocks == 1:
        return chain
    sums = np.pad(column, (0, blocks * b - len(column))).reshape(blocks, b).sum(axis=0)
    smallest = square / getattr(case.strategy, "repeats", 1)  # of a block, or of a mean one
    return chain + 4.0 * blocks * math.sqrt(rows * float(sums @ sums) / smallest)


def _transforms(case: Case, method: str, square: float) -> float:
    """Of the Fourier transforms that long columns take; each errs by log2 of its size, in units of ||c||_1.

    A convolution with k ones errs in norm by sqrt(k) times as much, a spectrum in each value, and an autocorrelation,
    from which k^2 entries of X are taken, by ||c||_2 times as much.
    """
    strategy, k = _block(case.strategy), case.count
    levels = 24.0 * math.log2(256 * strategy.steps)
    scale = 1.0
    match strategy:
        case Fourier() if method == "spectral":
            return levels * k * float(np.abs(strategy.gram_column()).sum()) / square
        case Toeplitz():
            column = strategy.coefficients
            scale = abs(float(column[0])) if strategy.column_normalized else 1.0
        case BLT() | BandedInverse() if column_fits(strategy) and method not in ONE_PASS:
            column = coefficients(strategy)
        case _:
            return 0.0
    size, total = float(np.abs(column).sum()) / scale, 0.0
    if method == "spectral" or -(-len(column) // case.period) * strategy.steps > DEAR:
        total += levels * size * math.sqrt(k / square)
    if method in ("row-sum", "blocks") and len(column) > DIRECT:
        total += levels * k**2 * size * float(np.linalg.norm(column)) / scale / square
    return total
