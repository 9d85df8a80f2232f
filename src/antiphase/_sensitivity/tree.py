"""Sensitivity of the binary tree for a minimum separation b, by a dynamic program over subtrees.

A pattern is a set of steps in which one example takes part. The value of a pattern is its squared sensitivity. It is
the sum over all nodes of count^2, where count is the number of participations below the node. A subtree with q
participations affects other subtrees only through q, its value and the number of free steps at each of its two ends,
called gaps. For each q, each value and each gap at the left end, a table holds the largest possible gap at the right
end. All gaps of b - 1 or more are treated as equal. Complete subtrees of the same height share a table, so the work
grows with the logarithm of the number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.min_separation import separation

LARGEST_WORK = 1 << 30  # maximum number of pairs of combined table rows, times the separation
LARGEST_TABLES = 1 << 25  # maximum number of table entries
JOIN_COST = 4096  # fixed cost of each pair of participation counts in `_Forest.join`, in the unit of LARGEST_WORK
Gaps = NDArray[np.int32]


@dataclass(frozen=True)
class GapRows:
    """For each value, the gaps of the patterns with a given number of participations.

    gaps[v - lowest, l] is the largest gap at the right end of a pattern with value v and a gap of at least l at the
    left end, or -1 if there is no such pattern.
    """

    lowest: int
    gaps: Gaps


Table = dict[int, GapRows]  # the key is the number of participations, from 1


@dataclass
class _Forest:
    """Computes tables for a given separation and largest number of participations, and limits work and memory.

    Args:
        separation: minimum separation, b.
        limit: largest number of participations, k.
        work: work that may still be done, in the unit of LARGEST_WORK.
        room: number of table entries that may still be stored.
    """

    separation: int
    limit: int
    work: int = LARGEST_WORK
    room: int = LARGEST_TABLES

    def tree(self, steps: int, height: int, complete: list[Table]) -> Table:
        """Return the table of a tree with 2^height leaves, of which the first `steps` are in the run."""
        if steps == 1 << height:
            return complete[height]
        half = 1 << (height - 1)
        if steps <= half:
            left, right, rest = self.tree(steps, height - 1, complete), {}, 0
        else:
            rest = steps - half
            left, right = complete[height - 1], self.tree(rest, height - 1, complete)
        return self.join(left, steps - rest, right, rest, node=True)

    def complete(self, height: int) -> list[Table]:
        """Return the tables of complete trees of heights 0, ..., height."""
        pairs = sum(min(self.limit, (1 << h) // self.separation) ** 2 for h in range(height))
        if pairs * JOIN_COST > self.work:  # raise before any table is computed
            self._spend(pairs * JOIN_COST, 0)
        self._spend(0, self.separation)
        leaf = np.full((1, self.separation), -1, dtype=np.int32)
        leaf[0, 0] = 0
        tables: list[Table] = [{1: GapRows(1, leaf)}]
        for h in range(height):
            tables.append(self.join(tables[h], 1 << h, tables[h], 1 << h, node=True))
        return tables

    def join(self, left: Table, left_steps: int, right: Table, right_steps: int, *, node: bool) -> Table:
        """Return the table of two adjacent subtrees. If `node`, also count the parent node of both."""
        most = min(self.limit, -(-(left_steps + right_steps) // self.separation))
        self._spend(len(left) * len(right) * JOIN_COST, most * self.separation)
        table: Table = {}
        for q in range(1, most + 1):
            table[q] = _pruned(self._joined(q, left, left_steps, right, right_steps), q * q if node else 0)
            self._spend(0, table[q].gaps.size)
        return table

    def _joined(self, q: int, left: Table, left_steps: int, right: Table, right_steps: int) -> GapRows:
        from antiphase._kernels import join_gaps

        b = self.separation
        parts = [(left[p], right[q - p]) for p in range(1, q) if p in left and q - p in right]
        alone = [_lengthened(left[q], right_steps)] if q in left else []
        alone += [_shifted(right[q], left_steps)] if q in right else []
        lowest = min([x.lowest + y.lowest for x, y in parts] + [x.lowest for x in alone])
        highest = max([_highest(x) + _highest(y) for x, y in parts] + [_highest(x) for x in alone])
        size = (highest - lowest + 1) * b
        self._spend(sum(len(x.gaps) * len(y.gaps) * b for x, y in parts), size)
        self.room += size  # these rows are temporary; `join` counts the rows that remain after pruning
        out = np.full((highest - lowest + 1, b), -1, dtype=np.int32)
        for x in alone:
            here = out[x.lowest - lowest : _highest(x) - lowest + 1]
            np.maximum(here, x.gaps, out=here)
        for x, y in parts:
            join_gaps(x.gaps, y.gaps, out[x.lowest + y.lowest - lowest :])
        return GapRows(lowest, out)

    def _spend(self, work: int, entries: int) -> None:
        self.work -= work
        self.room -= entries
        if min(self.work, self.room) < 0:
            raise NotProved(
                f"The tables for {self.limit} participations at least {self.separation} steps apart are too large.",
                hint="method='levels' gives an upper bound; a smaller max_participations makes the tables smaller",
            )


def dynamic_program(case: Case) -> Bracket:
    """Return the largest value over all patterns, which is the exact squared sensitivity."""
    length, height = _tree(case)
    forest = _Forest(separation(case), case.count)
    block = forest.tree(length, height, forest.complete(length.bit_length() - 1))
    table, steps = block, length
    for _ in range(case.strategy.blocks - 1):
        table = forest.join(table, steps, block, length, node=False)
        steps += length
    return exactly(float(_highest(table[case.count])))


def levels(case: Case) -> Bracket:
    """Return an upper bound: the sum over tree levels h of k * min(k, ceil(2^h / b)).

    A node above 2^h steps has at most ceil(2^h / b) participations, and the counts of a level add up to at most k.
    """
    _, height = _tree(case)
    b, k = separation(case), case.count
    return Bracket(0.0, float(k * sum(min(k, -(-(1 << h) // b)) for h in range(height + 1))))


def _tree(case: Case) -> tuple[int, int]:
    """Return the number of steps and the height of the tree of one block."""
    block = case.strategy.block
    if block.tree_height is None:
        raise NotProved("This method is for Tree, or Stamped with a Tree.", hint="use another method")
    return block.steps, block.tree_height


def _highest(rows: GapRows) -> int:
    return rows.lowest + len(rows.gaps) - 1


def _lengthened(rows: GapRows, steps: int) -> GapRows:
    """Return the rows for the subtree with `steps` free steps added at its right end."""
    b = rows.gaps.shape[1]
    return GapRows(
        rows.lowest, np.where(rows.gaps >= 0, np.minimum(rows.gaps + min(steps, b), b - 1), -1).astype(np.int32)
    )


def _shifted(rows: GapRows, steps: int) -> GapRows:
    """Return the rows for the subtree with `steps` free steps added at its left end."""
    needed = np.maximum(np.arange(rows.gaps.shape[1]) - steps, 0)
    return GapRows(rows.lowest, rows.gaps[:, needed])


def _pruned(rows: GapRows, gain: int) -> GapRows:
    """Return the rows with `gain` added to every value, without redundant rows.

    Only the largest value counts in the end. So if a higher value has a larger gap, this gap is also used for the lower
    value. Rows at the high end are dropped if their values are impossible. Rows at the low end are dropped if the next
    row has the same gaps.
    """
    gaps = np.maximum.accumulate(rows.gaps[::-1], axis=0)[::-1]
    gaps = gaps[: np.flatnonzero(gaps[:, 0] >= 0)[-1] + 1]
    differs = (gaps[:-1] != gaps[1:]).any(axis=1)
    cut = int(differs.argmax()) if differs.any() else len(gaps) - 1
    return GapRows(rows.lowest + gain + cut, gaps[cut:].copy())
