"""The correlator of the online tree.

The leaves of a binary tree are the steps. A node stands for the sum of the steps below it, and its estimate is the
noise of this sum. A step completes a node if it is the last step of the run below the node. The state holds the
estimates of the completed nodes whose parents are not yet complete.

Step t draws consecutive rows of the white noise z, starting at row 2t - popcount(t), where popcount counts the bits
that are set. One row is for the leaf of the step, and one for each other node that the step completes. A longer tree
draws the same rows for the same nodes, except at the last step of a tree whose number of steps is not a power of two.
That step also completes nodes that would have later steps below them in a longer tree. The noise of these nodes must
not be used again for the longer sums, so such a tree can be extended only before its last step.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import Recursion, TreeNodes, own_weight

DOUBLE = np.dtype(np.float64)


@final
class TreeCorrelator(Correlator):
    """Computes node <- w z + (1 - w) (left + node) for each level that a step completes.

    On the right-hand side, node and left are the estimates of the children of the new node. If there is only one child,
    left is absent. z is the row of white noise drawn for the new node, and w is its weight. The noise of the step is
    the estimate of the highest node that the step completes, minus the stored estimates that this estimate replaces.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    recursion: TreeNodes

    def state_rows(self) -> int:
        """Return the largest number of stored nodes, but at least 1, so that a tree of one step can be extended."""
        return max(self.recursion.memory_copies, 1)

    def prepare(self) -> None:
        """Find the rows of the state that the step replaces, level by level."""
        step = self.step
        self._row = self.recursion.first_row(step)
        waiting = step.bit_count()
        self._lefts = []
        for level in range(self.recursion.completed_level(step)):
            waiting -= step >> level & 1
            self._lefts.append(waiting if step >> level & 1 else -1)
        self._slot = waiting

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Compute the highest completed node level by level in float64, store it and write the step's noise."""
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
        write_row(node, held, self._slot)
        node -= replaced
        write_scaled(self.factor, node, out)

    def extend(self, recursion: Recursion) -> None:
        """Continue with a larger tree, which may need more rows of state."""
        super().extend(recursion)
        taller = self.allocate(self.state_rows())
        taller[:, : self.state.shape[1]] = self.state
        self.state = taller
