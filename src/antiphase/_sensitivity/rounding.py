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


def roundings(case: Case, method: str) -> float:
    """The most roundings on any way from the entries of C to the square that the method gives."""
    entries = _entries(case.strategy, case.count, method)
    if entries == (0.0, 0.0) and method != "spectral":
        return 0.0  # sums of small integers
    size = case.steps if method == "spectral" else case.count
    total = entries.relative + size * (entries.absolute + _transforms(case, method)) + SUMS * case.count + OTHERS
    if method in ("earliest", "majorant", "blocks"):
        return total + _differences(_block(case.strategy), case)
    return total


def _square_reaches(root: float, square: float) -> bool:
    """Whether root^2 >= square, without rounding."""
    a, b = root.as_integer_ratio()
    c, d = square.as_integer_ratio()
    return a * a * d >= c * b * b


def _entries(strategy: Strategy, count: int, method: str) -> Entries:
    match strategy:
        case Identity() | Tree():
            return Entries(0.0, 0.0)
        case Stamped():
            return _entries(strategy.strategy, count, method)
        case Toeplitz():
            # The scales of normalised columns are roots of the same sums, and two of them divide.
            chain = (2 * strategy.bands + 8) if strategy.column_normalized else strategy.bands + 1
            return _by_sign(strategy.coefficients, chain)
        case Banded():
            return _by_sign(strategy.columns, strategy.columns.shape[1] + 1)
        case Dense():
            return _by_sign(strategy.matrix, len(strategy.matrix) + 1)
        case BLT():
            return _buffers(strategy, count, method)
        case BandedInverse():
            return _inverse(strategy)
        case Fourier():
            return Entries(0.0, 8.0 * math.log2(2 * strategy.steps) + 8.0)
    return Entries(0.0, strategy.rows + 1.0)


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
    """Substitution: (N + E) c = e with |E| <= (bands + 2) u |N|, so c errs by C E c, of norm |c|_1 |n|_1 ||c|| at most."""
    column = coefficients(strategy)
    lost = 2.0 * (strategy.bands + 3) * float(np.abs(column).sum() * np.abs(strategy.coefficients).sum())
    relative, absolute = _by_sign(column, strategy.steps + 1)
    return Entries(relative, absolute + lost)


def _block(strategy: Strategy) -> Strategy:
    return strategy.strategy if isinstance(strategy, Stamped) else strategy


def _differences(strategy: Strategy, case: Case) -> float:
    """Of sums over k blocks of coefficients taken as differences of sums over all blocks, in `earliest_blocks`.

    The larger sums are at most blocks / k + 1 times the largest difference, for coefficients that do not increase. There
    are as many differences as blocks of steps, whose errors add up as squares.
    """
    if not isinstance(strategy, (Toeplitz, BLT, BandedInverse)):
        return 0.0
    if isinstance(strategy, BLT) and strategy.scale.min() >= 0.0:
        return 0.0
    assert isinstance(case.participation, MinSeparation)
    b = min(case.participation.separation, strategy.steps)
    length = strategy.bands if isinstance(strategy, Toeplitz) else strategy.steps
    blocks, rows = -(-length // b), -(-strategy.steps // b)
    chain = float(min(b, length) + rows + 4)
    if blocks == 1:
        return chain
    return chain + 4.0 * blocks * math.sqrt(rows) * (blocks / case.count + 1.0)


def _transforms(case: Case, method: str) -> float:
    """Of the Fourier transforms that long columns take: relative to ||c||_1, the largest value of a spectrum."""
    strategy = _block(case.strategy)
    steps, period = strategy.steps, case.period
    match strategy:
        case Toeplitz():
            column = strategy.coefficients
        case BLT() | BandedInverse() if column_fits(strategy):
            column = coefficients(strategy)
        case Fourier() if method == "spectral":
            return 8.0 * math.log2(256 * steps)  # relative to the sum of |g|, at most n g_0
        case _:
            return 0.0
    dear = -(-len(column) // period) * steps > DEAR
    if method == "spectral" or (method in ("row-sum", "nonnegative", "semidefinite", "blocks") and dear):
        taken = True
    else:
        taken = method in ("row-sum", "blocks") and len(column) > DIRECT
    return 16.0 * math.log2(256 * steps) * float(np.abs(column).sum() / np.linalg.norm(column)) if taken else 0.0
