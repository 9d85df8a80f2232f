"""Sensitivity for epochs in a fixed order and for shuffled epochs.

A pattern is a set of steps in which one example takes part. With a fixed order, the steps of a pattern are all equal
modulo the epoch length (the period). So there is one pattern for each residue 0, ..., period - 1.

X = C^T C is the Gram matrix of C, and k is the largest number of participations. The sum of X over a pattern is the sum
of X[i, j] over all pairs of steps i and j of the pattern, including i = j.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import CLOSED, Bracket, Case, exactly
from antiphase._sensitivity.norms import largest_eigenvalue
from antiphase._sensitivity.semidefinite import worst_contributions
from antiphase._sensitivity.toeplitz import earliest_square, has_column, one_pass
from antiphase._sensitivity.windows import windows
from antiphase.strategies import Indices

MOST_BLOCK_ENTRIES = 1 << 24  # maximum number of entries of X on a pattern, summed over all patterns that are examined
LARGEST_PROGRAM = 100  # maximum number of participations in a semidefinite program
LARGEST_SPECTRUM = 1024  # maximum number of participations for which the eigenvalues of X on each pattern are computed


def orthogonal(case: Case) -> Bracket:
    """Return the largest sum of squared column norms over a pattern, if the columns of each pattern are orthogonal."""
    if case.gram.bands > case.period:
        raise NotProved(
            f"Columns {case.period} steps apart overlap, because C^T C has {case.gram.bands} bands.",
            hint="use a strategy with at most as many bands as there are steps between participations",
        )
    if case.gram.norms_decrease:
        return exactly(earliest_square(case.strategy, case.period, case.count, "signed"))
    return exactly(float(case.class_sums[1].max()))


def nonnegative(case: Case) -> Bracket:
    """Return the largest sum of |X| over a pattern, if X >= 0 on the pattern after suitable sign flips.

    Flipping the sign of the contribution in step i flips the signs of row i and column i of X. Contributions that are
    equal up to these signs reach the sum of |X|. If X is tridiagonal on a pattern, each participation interacts only
    with the previous and the next one. Suitable signs then always exist, because they can be chosen one after another.
    """
    if one_pass(case.strategy) is not None and (found := _first_pattern(case)).kind == "exact":
        return found
    found = row_sum(case)
    if case.gram.bands <= 2 * case.period:
        return exactly(found.upper)
    if found.kind != "exact":
        found = Bracket(max(found.lower, _signed_value(case, found.lower)), found.upper)
    if found.kind != "exact":
        raise NotProved(
            "X = C^T C has a negative entry on a pattern, and flipping the signs of contributions does not remove it.",
            hint="method='semidefinite' is exact for patterns of a few dozen steps",
        )
    return found


def semidefinite(case: Case) -> Bracket:
    """Return a bracket from semidefinite programs, one for each pattern that may be the worst."""
    if case.count > LARGEST_PROGRAM:
        raise NotProved(
            f"The semidefinite program is solved only for up to {LARGEST_PROGRAM} participations. Got {case.count}.",
            hint="method='row-sum' or 'spectral' gives an upper bound",
        )
    residues, bounds, plain = case.class_sums
    lower = float(plain.max())
    residues, blocks = _candidates(case, residues, bounds, lower)
    bounds = np.abs(blocks).sum(axis=(1, 2))
    solved = 0.0
    while bounds.max() > max(solved, lower) * (1.0 + CLOSED / 4):
        worst = int(bounds.argmax())
        size = len(range(int(residues[worst]), case.steps, case.period))
        found, y = worst_contributions(blocks[worst, :size, :size])
        bounds[worst], lower = 0.0, max(lower, found.lower)
        solved = max(solved, found.upper)
        _tighten(bounds, blocks, np.pad(y, (0, blocks.shape[1] - size)))
    return Bracket(lower, max(solved, float(bounds.max()), lower))  # no skipped pattern has a bound above `lower`


def row_sum(case: Case) -> Bracket:
    """Return a bracket whose upper bound is the largest sum of |X| over a pattern.

    The lower bound is the largest sum of X, which equal contributions in all steps of the pattern reach.
    """
    if one_pass(case.strategy) is not None and not has_column(case.strategy):
        return _first_pattern(case)
    absolute, plain = case.class_sums[1:]
    return Bracket(float(plain.max()), float(absolute.max()))


def spectral(case: Case) -> Bracket:
    """Return an upper bound: the number of steps of a pattern times the largest eigenvalue of X on the pattern.

    The pattern is the one with the largest product. For large or many patterns, the bound is k times the largest
    eigenvalue of the whole X.
    """
    residues = case.gram.residues(case.period)
    if case.count > LARGEST_SPECTRUM or len(residues) * case.count**2 > MOST_BLOCK_ENTRIES:
        return Bracket(0.0, case.count * largest_eigenvalue(case.gram))
    blocks = case.gram.class_blocks(case.period, residues)
    sizes = np.array([len(range(int(r), case.steps, case.period)) for r in residues])
    top = np.linalg.eigvalsh(blocks)[:, -1] * (1.0 + 8 * case.count * np.finfo(float).eps)
    return Bracket(0.0, float((sizes * top).max()))


def shuffled_dynamic_program(case: Case) -> Bracket:
    """Return the largest sum of |X| over patterns with one step per epoch, by a dynamic program over the epochs.

    If only adjacent epochs interact (bands <= steps_per_epoch + 1, or two epochs), X on a pattern is tridiagonal.
    Flipping the signs of contributions one after another makes X non-negative on the pattern. Contributions then reach
    the sum of |X|, so the result is exact. Otherwise the result is an upper bound: if steps i and j are in epochs that
    are not adjacent, |X[i, j]| is replaced by its largest value over the epoch of j.
    """
    from antiphase._kernels import shuffled_chain

    epoch, rows = _epoch_length(case), windows(case.gram)  # raises if there are too many steps for the arrays below
    value, largest = np.zeros(case.steps), np.zeros(case.count)
    far = 0.0
    for diagonals, offset, start, stop in rows:
        far = max(far, shuffled_chain(diagonals, offset, start, stop, case.steps, epoch, value, largest))
    upper = float(largest[-1])
    return Bracket(upper if far == 0.0 else 0.0, upper)


def shuffled_row_sum(case: Case) -> Bracket:
    """Return an upper bound in which each diagonal of X is replaced by its largest absolute entry.

    If the diagonal for a larger lag has a larger entry, that entry is used instead. Let b be the number of steps per
    epoch. A step at position o of an epoch is at least m b - o steps before every step of the m-th epoch after it, and
    at least (m - 1) b + o + 1 steps after every step of the m-th epoch before it. Once the largest entries of all
    diagonals are known, the bound takes O(n) time.
    """
    b, k = _epoch_length(case), case.count
    largest = case.gram.envelope()
    envelope = np.zeros(k * b)
    envelope[: len(largest)] = largest
    envelope = np.maximum.accumulate(envelope[::-1])[::-1]
    place, distance = np.arange(b), np.arange(1, k)[:, None]
    later = np.vstack([np.zeros(b), envelope[distance * b - place].cumsum(axis=0)])
    earlier = np.vstack([np.zeros(b), envelope[(distance - 1) * b + place + 1].cumsum(axis=0)])
    rows = envelope[0] + later[::-1] + earlier  # row e is for epoch e, with e epochs before it and k - 1 - e after it
    return Bracket(0.0, float(rows.max(axis=1).sum()))


def _epoch_length(case: Case) -> int:
    return min(case.participation.spacing(case.steps), case.steps)


def _first_pattern(case: Case) -> Bracket:
    """Return the squared norms of C u and |C| u as a bracket, where u is 1 on the first pattern and 0 elsewhere.

    The first pattern is 0, period, 2 period, and so on. It is the worst pattern of a Toeplitz matrix.
    """
    lower, upper = (earliest_square(case.strategy, case.period, case.count, signs) for signs in ("signed", "absolute"))
    return Bracket(lower, upper)


def _candidates(case: Case, residues: Indices, bounds: Array, lower: float) -> tuple[Indices, Array]:
    """Return the residues of patterns whose bound is the largest or exceeds `lower`, and X on these patterns."""
    kept = residues[(bounds > lower) | (bounds == bounds.max())]
    if len(kept) * case.count**2 > MOST_BLOCK_ENTRIES:
        raise NotProved(
            f"{len(kept)} patterns of {case.count} steps are too many to examine one by one.",
            hint="method='row-sum' gives an upper bound",
        )
    return kept, case.gram.class_blocks(case.period, kept)


def _signed_value(case: Case, lower: float) -> float:
    """Return the largest s^T X s over patterns, where s holds the signs of the contributions, chosen greedily."""
    residues, bounds, _ = case.class_sums
    blocks = _candidates(case, residues, bounds, lower)[1]
    signs = np.ones(blocks.shape[:2])
    for j in range(1, blocks.shape[1]):
        pull = np.einsum("pi,pi->p", signs[:, :j], blocks[:, :j, j])
        signs[:, j] = np.where(pull < 0, -1.0, 1.0)
    return float(np.einsum("pi,pij,pj->p", signs, blocks, signs).max())


def _tighten(bounds: Array, blocks: Array, y: Array) -> None:
    """Lower the bounds of the remaining patterns in place, using the dual solution y of another pattern.

    The dual solution comes from `worst_contributions`. For each pattern, all entries of y are raised until
    Diag(y) - X is positive semidefinite. The sum of the raised entries is then an upper bound.
    """
    left = np.flatnonzero(bounds > 0)
    for chunk in _chunks(left, max(1, (1 << 20) // blocks.shape[1] ** 2)):
        lack = np.linalg.eigvalsh(blocks[chunk] - np.diag(y))[:, -1]
        rounding = 8 * len(y) * np.finfo(float).eps * np.abs(y).max()
        bounds[chunk] = np.minimum(bounds[chunk], y.sum() + len(y) * (lack + rounding))


def _chunks(indices: Indices, size: int) -> Iterator[Indices]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
