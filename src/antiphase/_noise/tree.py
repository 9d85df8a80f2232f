"""The online tree: estimates of finished nodes whose parents are not finished, one for each bit of the step.

Step t draws rows 2t - popcount(t), ... of z: the leaf first, then each node that the step completes. A longer tree
draws the same rows for the same nodes, except at the last step of a tree whose number of steps is not a power
of two. That step closes the tree: it completes nodes that in a longer tree would go on to cover later steps. Their
noise must not be used again for those longer sums, so such a tree can be extended only before its last step.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import Recursion, TreeNodes, own_weight

DOUBLE = np.dtype(np.float64)


@final
class TreeCorrelator(Correlator):
    """node <- w z + (1 - w) (left + node) up the finished levels; the step's noise is node less what it replaces.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    recursion: TreeNodes

    def state_rows(self) -> int:
        """As many as the tree says; one at least, so that a tree of one step can be extended."""
        return max(self.recursion.waiting, 1)

    def prepare(self) -> None:
        """Which rows of the state the step replaces, level by level."""
        step = self.step
        self._row = self.recursion.first_row(step)
        waiting = step.bit_count()
        self._lefts = []
        for level in range(self.recursion.completed_level(step)):
            waiting -= step >> level & 1
            self._lefts.append(waiting if step >> level & 1 else -1)
        self._kept = waiting

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Level by level, in float64 until the node is kept."""
        from antiphase._kernels import tree_level_step, write_row, write_scaled

        held = self.state[part.strips]
        node: Any = scratch.array("node", (part.size,), DOUBLE)
        replaced: Any = scratch.array("replaced", (part.size,), DOUBLE)
        white(self._row, out)
        node[:] = out
        replaced[:] = 0.0
        for level, left in enumerate(self._lefts, start=1):
            white(self._row + level, out)
            tree_level_step(held, left, own_weight(level), out, node, replaced)
        write_row(node, held, self._kept)
        node -= replaced
        write_scaled(self.factor, node, out)

    def extend(self, recursion: Recursion) -> None:
        """A taller tree may need more rows."""
        super().extend(recursion)
        taller = self.allocate(self.state_rows())
        taller[:, : self.state.shape[1]] = self.state
        self.state = taller
