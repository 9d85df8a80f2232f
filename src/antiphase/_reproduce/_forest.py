"""TreeAgg as the papers evaluate it: only nodes that the run completes, read off by the pseudo-inverse.

For n that is no power of two these nodes are several complete trees side by side, 2048 + 4 for n = 2052, and C is
block diagonal. (`strategies.Tree` keeps the nodes that the end of the run cuts; its sensitivity is larger.)
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import antiphase as ap
from antiphase._check import Array
from antiphase.strategies import Tree


class Forest:
    """Complete binary trees over the binary digits of n."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._sizes = [1 << i for i in reversed(range(steps.bit_length())) if steps >> i & 1]

    @cached_property
    def per_step(self) -> Array:
        """Variance of every prefix sum with the optimal decoder, for sigma = 1."""
        parts, before = [], 0.0
        for size in self._sizes:
            own = ap.error(Tree(size, "full"), ap.PrefixSum()).per_step
            parts.append(before + own)
            before += float(own[-1])
        return np.concatenate(parts)

    @property
    def rms(self) -> float:
        """Root mean square of the errors."""
        return float(np.sqrt(self.per_step.mean()))

    @property
    def single_sensitivity(self) -> float:
        """Of one participation, in the largest tree."""
        return float(np.sqrt(self._sizes[0].bit_length()))

    def earliest_sensitivity(self, count: int, separation: int) -> float:
        """The norm of C u for the steps 0, b, 2b, ...: a lower bound on the sensitivity under minimum separation."""
        return self.pattern_norm(np.arange(count, dtype=np.int64) * separation)

    def pattern_norm(self, pattern: NDArray[np.int64]) -> float:
        """The norm of C u for a set of steps."""
        u = np.zeros(self.steps)
        u[pattern[pattern < self.steps]] = 1.0
        total, at = 0.0, 0
        for size in self._sizes:
            total += float((Tree(size, "full").multiply(u[at : at + size, None]) ** 2).sum())
            at += size
        return float(np.sqrt(total))

    def separated_sensitivity(self, separation: int) -> float:
        """Under minimum separation, of the largest tree; the exact worst pattern."""
        return ap.sensitivity(Tree(self._sizes[0]), ap.MinSeparation(separation)).value
