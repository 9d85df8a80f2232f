"""TreeAgg (binary-tree noise) as the papers evaluate it: with complete nodes only, and with the optimal decoder.

The leaves of the tree are steps. A node is complete if the run reaches all leaves below it. If the number of steps n is
not a power of two, the complete nodes form several complete trees, and the strategy matrix C is block diagonal. For
n = 2052, the trees have 2048 and 4 leaves. `strategies.Tree` also includes the nodes that are incomplete at the end of
the run, so its sensitivity is larger.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import antiphase as ap
from antiphase._check import Array
from antiphase.strategies import Tree


class TreeAggregation:
    """TreeAgg as a list of complete binary trees, one for each 1 in the binary representation of n.

    Args:
        steps: number of steps, n.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._sizes = [1 << i for i in reversed(range(steps.bit_length())) if steps >> i & 1]

    @cached_property
    def per_step(self) -> Array:
        """Variance of each prefix sum with the optimal decoder, for noise of standard deviation 1."""
        parts, before = [], 0.0
        for size in self._sizes:
            own = ap.error(Tree(size, "full"), ap.PrefixSum()).per_step
            parts.append(before + own)
            before += float(own[-1])
        return np.concatenate(parts)

    @property
    def rms(self) -> float:
        """Root mean square over the steps of the standard deviation of the prefix sums."""
        return float(np.sqrt(self.per_step.mean()))

    @property
    def single_sensitivity(self) -> float:
        """Sensitivity for a single participation, which is that of the largest tree."""
        return float(np.sqrt(self._sizes[0].bit_length()))

    def earliest_sensitivity(self, count: int, separation: int) -> float:
        """Return |C u|, where u is 1 at the first `count` of the steps 0, b, 2b, ... for separation b.

        This is a lower bound on the sensitivity under minimum separation.
        """
        return self.pattern_norm(np.arange(count, dtype=np.int64) * separation)

    def pattern_norm(self, pattern: NDArray[np.int64]) -> float:
        """Return |C u|, where u is 1 at the steps in `pattern` and 0 elsewhere."""
        u = np.zeros(self.steps)
        u[pattern[pattern < self.steps]] = 1.0
        total, at = 0.0, 0
        for size in self._sizes:
            total += float((Tree(size, "full").multiply(u[at : at + size, None]) ** 2).sum())
            at += size
        return float(np.sqrt(total))

    def separated_sensitivity(self, separation: int) -> float:
        """Return the exact sensitivity of the largest tree under minimum separation."""
        return ap.sensitivity(Tree(self._sizes[0]), ap.MinSeparation(separation)).value
