"""Fixed epochs and every step: the patterns are the residue classes of the steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import CLOSED, Bracket, Case, exactly
from antiphase._sensitivity.gram import Indices
from antiphase._sensitivity.semidefinite import worst_contributions
from antiphase._sensitivity.spectral import largest_eigenvalue
from antiphase._sensitivity.toeplitz import column_fits, earliest_square, norms_decrease
from antiphase.strategies import BLT

LARGEST_BLOCKS = 1 << 24  # entries of X on all patterns that are looked at
LARGEST_PROGRAM = 100
LARGEST_SPECTRUM = 1024


def orthogonal(case: Case) -> Bracket:
    """Columns of a pattern do not overlap: the sum of their squared norms."""
    if case.gram.bands > case.period:
        raise NotProved(
            f"Columns {case.period} steps apart overlap: C^T C has {case.gram.bands} bands.",
            hint="use at most as many bands as steps between participations",
        )
    if norms_decrease(case.gram):
        return exactly(earliest_square(case.strategy, case.period, case.count, "signed"))
    return exactly(float(case.class_sums[1].max()))


def nonnegative(case: Case) -> Bracket:
    """X >= 0 on a pattern, if need be after turning some contributions round: the sum of |X|.

    Equal contributions, some with the sign turned, then attain the bound. Where each participation interacts only with
    the next, signs can always be chosen so, one after the other.
    """
    if isinstance(case.strategy, BLT) and (found := _one_pass(case)).kind == "exact":
        return found
    found = row_sum(case)
    if case.gram.bands <= 2 * case.period:
        return exactly(found.upper)
    if found.kind != "exact":
        found = Bracket(max(found.lower, _signed_value(case, found.lower)), found.upper)
    if found.kind != "exact":
        raise NotProved(
            "Two steps of a pattern have a negative product of columns that signs chosen one by one do not remove.",
            hint="method='semidefinite' is exact for patterns of up to some tens of steps",
        )
    return found


def semidefinite(case: Case) -> Bracket:
    """The worst contributions to every pattern that can be the worst one."""
    if case.count > LARGEST_PROGRAM:
        raise NotProved(
            f"The semidefinite program is solved for up to {LARGEST_PROGRAM} participations; here are {case.count}.",
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
    return Bracket(lower, max(solved, float(bounds.max()), lower))  # patterns left out have bounds below `lower`


def row_sum(case: Case) -> Bracket:
    """The sum of |X| on the pattern where it is largest; the sum of X is attained."""
    if isinstance(case.strategy, BLT) and not column_fits(case.strategy):
        return _one_pass(case)
    absolute, plain = case.class_sums[1:]
    return Bracket(float(plain.max()), float(absolute.max()))


def spectral(case: Case) -> Bracket:
    """k times the largest eigenvalue of X on a pattern; of the whole X where the patterns are large."""
    residues = case.gram.residues(case.period)
    if case.count > LARGEST_SPECTRUM or len(residues) * case.count**2 > LARGEST_BLOCKS:
        return Bracket(0.0, case.count * largest_eigenvalue(case.gram))
    blocks = case.gram.class_blocks(case.period, residues)
    sizes = np.array([len(range(int(r), case.steps, case.period)) for r in residues])
    top = np.linalg.eigvalsh(blocks)[:, -1] * (1.0 + 8 * case.count * np.finfo(float).eps)
    return Bracket(0.0, float((sizes * top).max()))


def _one_pass(case: Case) -> Bracket:
    """C and |C| on the first pattern, the worst one of a Toeplitz matrix."""
    lower, upper = (earliest_square(case.strategy, case.period, case.count, signs) for signs in ("signed", "absolute"))
    return Bracket(lower, upper)


def _candidates(case: Case, residues: Indices, bounds: Array, lower: float) -> tuple[Indices, Array]:
    """The patterns whose bound exceeds what another attains (the worst at least), and X on them."""
    kept = residues[(bounds > lower) | (bounds == bounds.max())]
    if len(kept) * case.count**2 > LARGEST_BLOCKS:
        raise NotProved(
            f"{len(kept)} patterns of {case.count} steps are too many to look at one by one.",
            hint="method='row-sum' gives an upper bound",
        )
    return kept, case.gram.class_blocks(case.period, kept)


def _signed_value(case: Case, lower: float) -> float:
    """The largest s^T X s over patterns, s chosen step by step so that each adds what it can."""
    residues, bounds, _ = case.class_sums
    blocks = _candidates(case, residues, bounds, lower)[1]
    signs = np.ones(blocks.shape[:2])
    for j in range(1, blocks.shape[1]):
        pull = np.einsum("pi,pi->p", signs[:, :j], blocks[:, :j, j])
        signs[:, j] = np.where(pull < 0, -1.0, 1.0)
    return float(np.einsum("pi,pij,pj->p", signs, blocks, signs).max())


def _tighten(bounds: Array, blocks: Array, y: Array) -> None:
    """Lower the bounds of other patterns: y, shifted until Diag(y) - X is positive semidefinite, serves them too."""
    left = np.flatnonzero(bounds > 0)
    for chunk in _chunks(left, max(1, (1 << 20) // blocks.shape[1] ** 2)):
        lack = np.linalg.eigvalsh(blocks[chunk] - np.diag(y))[:, -1]
        rounding = 8 * len(y) * np.finfo(float).eps * np.abs(y).max()
        bounds[chunk] = np.minimum(bounds[chunk], y.sum() + len(y) * (lack + rounding))


def _chunks(indices: Indices, size: int) -> Iterator[Indices]:
    return (indices[start : start + size] for start in range(0, len(indices), size))
