"""Recursions: records that describe how to compute the noise N z of a strategy, one step at a time.

Here C is the strategy matrix, N is its left inverse, and z has one row of independent Gaussian draws for each row of C.
Step t completes a row of C if the last non-zero entry of the row is in column t. Each strategy describes its noise by
one of six recursions. Four interpreters compute noise from these records: NumPy (`_stream.py`), the compiled noise
stream (`_noise`), JAX and PyTorch. The interpreters do not use the strategy classes.

| record | the noise of a step |
|---|---|
| `Feedback` | z minus a weighted sum of past outputs |
| `MovingSum` | a weighted sum of the last rows of z |
| `Buffers` | z minus a weighted sum of a few decaying buffers |
| `TreeNodes` | a difference of estimates for nodes of a binary tree |
| `Restart` | the noise of another recursion, which restarts for every block of steps |
| `WholeMatrix` | a row of N times all of z |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array, invalid
from antiphase._errors import InvalidArgument

if TYPE_CHECKING:
    from antiphase.strategies._base import Strategy

# If the absolute values of the scales of a BLT add up to at most this number, float32 noise has errors of a few 1e-6
# times z.
LARGEST_FLOAT32_WEIGHT = 16.0

Steps = NDArray[np.int64]
Entry = Callable[[Steps, Steps], Array]


class Recursion:
    """The base class of the records that describe how to compute N z."""

    steps: int

    @property
    def rows(self) -> int:
        """Number of rows of z drawn over the whole run."""
        return self.steps

    @property
    def memory_copies(self) -> int:
        """Number of model-sized buffers held between steps."""
        raise NotImplementedError

    @property
    def is_causal(self) -> bool:
        """True if no row of z is used before the step that completes the row of C with the same index."""
        return True


@final
@dataclass(frozen=True, eq=False)
class Feedback(Recursion):
    """Forward substitution: y_t = (z_t - sum_{r >= 1} T[t, t - r] y_{t-r}) / T[t, t].

    The noise of step t is scales_t y_t. This computes C^-1 z for C = T diag(1 / scales), where T is lower triangular
    with `bands` diagonals.

    Args:
        steps: number of steps.
        bands: number of diagonals of T, including the main one.
        entry: function that takes an array of columns j and an array of lags r, broadcasts them against each other, and
            returns T[j + r, j].
        is_constant: True if T is Toeplitz. All steps then share one row of coefficients.
        scales: the factor of the noise in each step; None means all ones.

    >>> Feedback.toeplitz(np.array([1.0, 0.5]), 3).block(np.array([1, 2]), np.array([0, 1])).tolist()
    [[0.5, 1.0], [0.0, 0.5]]
    """

    steps: int
    bands: int
    entry: Entry
    is_constant: bool = False
    scales: Array | None = None

    @property
    def memory_copies(self) -> int:
        """`bands` - 1, one buffer for each past output that a step uses."""
        return self.bands - 1

    @classmethod
    def toeplitz(cls, coefficients: Array, steps: int, scales: Array | None = None) -> Feedback:
        """Return the recursion for T[t, s] = coefficients[t - s]."""
        return cls(steps, len(coefficients), lambda columns, lags: coefficients[lags], True, scales)

    def block(self, rows: Steps, columns: Steps) -> Array:
        """Return the entries of C in the given rows and columns, without computing any other entry."""
        lag = rows[:, None] - columns[None, :]
        inside = (lag >= 0) & (lag < self.bands)
        found = np.where(inside, self.entry(columns, np.where(inside, lag, 0)), 0.0)
        return found if self.scales is None else found / self.scales[columns]

    def unscaled_row(self, step: int) -> Array:
        """Return T[t, t - r] for lags r = 0, 1, ..., min(t, bands - 1), where t is `step`."""
        lags = np.arange(min(step + 1, self.bands))
        return self.entry(step - lags, lags)

    def row(self, step: int) -> Array:
        """Return C[t, t - r] for the lags of `unscaled_row`."""
        row = self.unscaled_row(step)
        return row if self.scales is None else row / self.scales[step - np.arange(len(row))]

    def table(self) -> Array:
        """Return the array with entries [t, r] = T[t, t - r], zero where t < r; a single row if T is Toeplitz."""
        lags = np.arange(self.bands)
        if self.is_constant:
            return self.entry(np.zeros_like(lags), lags)[None]
        columns = np.arange(self.steps)[:, None] - lags
        return np.where(columns >= 0, self.entry(np.maximum(columns, 0), np.where(columns >= 0, lags, 0)), 0.0)


@final
@dataclass(frozen=True, eq=False)
class MovingSum(Recursion):
    """A moving sum: the noise of step t is sum_r coefficients_r z_{t-r}, so N is banded Toeplitz.

    Args:
        steps: number of steps.
        coefficients: the first column of N without its trailing zeros.
    """

    steps: int
    coefficients: Array

    @property
    def memory_copies(self) -> int:
        """One less than the number of coefficients, because each step uses that many past rows of z."""
        return len(self.coefficients) - 1


@final
@dataclass(frozen=True, eq=False)
class Buffers(Recursion):
    """One buffer b_j for each decay. Each step returns y = z - sum_j scale_j b_j, and sets b_j to decay_j b_j + y.

    Args:
        steps: number of steps.
        decay: one number in [0, 1] for each buffer, by which each step multiplies the buffer.
        scale: the weight of each buffer in the noise.

    Reference: McMahan, Xu and Zhang 2024, Alg. 3.
    """

    steps: int
    decay: Array
    scale: Array

    @property
    def memory_copies(self) -> int:
        """Number of buffers."""
        return len(self.decay)

    def coefficients(self, count: int) -> Array:
        """Return the first `count` entries of the first column of C: 1, then sum_j scale_j decay_j^(i - 1)."""
        powers = np.power(self.decay[:, None], np.arange(max(count - 1, 0)))
        return np.concatenate([[1.0], self.scale @ powers])[:count]

    def constants(self, dtype: str) -> tuple[Array, Array]:
        """Return (scale, loss) for the rounding-safe form of the recursion; raise if float32 is too inaccurate.

            y = z - scale . b,   b <- b + (y - loss b),   loss = 1 - decay

        This form is equivalent to b <- decay b + y, but a decay such as 1 - 1e-9 is not rounded to 1. The released y is
        also the y that is fed back, so a rounding error in y has the same effect as a change of z. A rounding error in
        a buffer dies out like any other input of the buffer. The decays of C^-1 (`BLT.inverse_decays`) determine how
        fast. Both constants are returned in float64; round them to `dtype` afterwards.

        Args:
            dtype: "float32" or "float64", the dtype of noise and buffers.
        """
        weight = float(np.abs(self.scale).sum())
        if dtype == "float32" and weight > LARGEST_FLOAT32_WEIGHT:
            raise InvalidArgument(
                f"A BLT whose scales cancel each other (their absolute values add up to {weight:.3g}) needs float64 "
                "noise. Got float32 instead.",
                hint="use dtype='float64', or choose a BLT with non-negative scales",
            )
        return self.scale, 1.0 - self.decay


@final
@dataclass(frozen=True)
class TreeNodes(Recursion):
    """The online decoder of the binary tree mechanism (see `Tree`), for a complete tree.

    Each node of the tree stands for the sum of the steps below it. The decoder computes the noise of this sum, called
    the estimate of the node, as w z + (1 - w) (left + right). Here z is the row drawn for the node, left and right are
    the estimates of its children, and w is the `own_weight` of its level. A step completes a node if it is the last
    step of the run below the node.

    In step t, one row of z is drawn for the leaf of the step, and then one for each other node that the step completes,
    from the bottom up. The rows of step t start at row 2t - popcount(t). The noise of step t is the estimate of the
    highest node that step t completes, minus the estimates of some nodes below it: the left siblings of the nodes on
    the path from the leaf to that highest node. The previous prefix sum contains these siblings, and the next one
    contains the highest node instead. Before step t, the state holds one estimate for each bit that is set in t.

    Args:
        steps: number of steps, which are the first leaves of the tree.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    steps: int

    @property
    def rows(self) -> int:
        """Number of nodes."""
        return sum(-(-self.steps >> level) for level in range(self.height + 1))

    @property
    def height(self) -> int:
        """Level of the root; leaves have level 0."""
        return (self.steps - 1).bit_length()

    @property
    def memory_copies(self) -> int:
        """floor(log2 steps), the largest number of completed nodes whose parents are still incomplete."""
        return self.steps.bit_length() - 1

    def completed_level(self, step: int) -> int:
        """Return the level of the highest node that this step completes."""
        if not 0 <= step < self.steps:
            raise invalid("Tree", "step", f"in 0, ..., {self.steps - 1}", step, "the run is over; plan a longer one")
        return self.height if step == self.steps - 1 else (~step & (step + 1)).bit_length() - 1

    def first_row(self, step: int) -> int:
        """Return the row of z for the leaf of this step."""
        return 2 * step - step.bit_count()


@final
@dataclass(frozen=True)
class Restart(Recursion):
    """A recursion that restarts for every block of steps, with new rows of z.

    Args:
        inner: recursion of one block.
        repeats: number of blocks.
    """

    inner: Recursion
    repeats: int

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps in all blocks."""
        return self.repeats * self.inner.steps

    @property
    def rows(self) -> int:
        """Number of rows of z in all blocks."""
        return self.repeats * self.inner.rows

    @property
    def memory_copies(self) -> int:
        """Number of model-sized buffers that one block holds between steps."""
        return self.inner.memory_copies

    @property
    def is_causal(self) -> bool:
        """True if the recursion of one block is causal."""
        return self.inner.is_causal


@final
@dataclass(frozen=True, eq=False)
class WholeMatrix(Recursion):
    """A product with the whole matrix N. The noise of each step uses all of z, so all noise is computed in advance.

    Args:
        strategy: strategy whose `solve` and `noising` apply N.
        is_ordinary: True if the norm of every row of N is known to be between about 1/2 and 2.
    """

    strategy: Strategy
    is_ordinary: bool = False

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps of the strategy."""
        return self.strategy.steps

    @property
    def rows(self) -> int:
        """Number of rows of C."""
        return self.strategy.rows

    @property
    def memory_copies(self) -> int:
        """`steps`, because the noise of every step is stored."""
        return self.steps

    @property
    def is_causal(self) -> bool:
        """Always false: the first step uses all of z."""
        return False


def own_weight(level: int) -> float:
    """Return w_l, the weight of a node's own z in the estimate of a tree node at level l.

    It is also the variance of that estimate, if all steps below the node belong to the run.
    """
    return float(2.0**level / (2.0 ** (level + 1) - 1.0))
