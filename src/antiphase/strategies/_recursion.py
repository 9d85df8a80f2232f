"""How the noise N z of a strategy is made: the records that every interpreter reads.

A strategy describes its noise by one of six recursions. NumPy (`_stream.py`), the compiled noise stream (`_noise`), JAX
and PyTorch each interpret these records and know no strategy class.

| record | the noise of a step |
|---|---|
| `Feedback` | z less a weighted sum of past outputs |
| `MovingSum` | a weighted sum of the last draws of z |
| `Buffers` | z less a weighted sum of a few decaying buffers |
| `TreeNodes` | differences of estimates of the nodes of a binary tree |
| `Restart` | that of another recursion, started over for every block of steps |
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

LARGEST_FLOAT32_WEIGHT = 16.0  # of the absolute scales: float32 noise then errs by a few units in 1e-6 of z

Steps = NDArray[np.int64]
Entry = Callable[[Steps, Steps], Array]


class Recursion:
    """How N z is made, one step after another."""

    steps: int

    @property
    def rows(self) -> int:
        """Number of rows of z that the whole run draws."""
        return self.steps

    @property
    def is_causal(self) -> bool:
        """Whether the noise of a step uses only rows of z that the steps up to it complete."""
        return True


@final
@dataclass(frozen=True, eq=False)
class Feedback(Recursion):
    """y_t = (z_t - sum_{r >= 1} T[t, t - r] y_{t-r}) / T[t, t]; the noise of step t is scales_t y_t.

    This is forward substitution with C = T diag(1 / scales), for a lower-triangular T of `bands` diagonals.

    Args:
        steps: number of steps.
        bands: number of diagonals of T, the main one included.
        entry: from arrays of columns j and lags r, which broadcast, to T[j + r, j].
        is_constant: whether T is Toeplitz, so that one row of it serves all steps.
        scales: one number per step; None for ones.

    >>> Feedback.toeplitz(np.array([1.0, 0.5]), 3).block(np.array([1, 2]), np.array([0, 1])).tolist()
    [[0.5, 1.0], [0.0, 0.5]]
    """

    steps: int
    bands: int
    entry: Entry
    is_constant: bool = False
    scales: Array | None = None

    @classmethod
    def toeplitz(cls, coefficients: Array, steps: int, scales: Array | None = None) -> Feedback:
        """T[t, s] = coefficients[t - s]."""
        return cls(steps, len(coefficients), lambda columns, lags: coefficients[lags], True, scales)

    def block(self, rows: Steps, columns: Steps) -> Array:
        """The entries of C in the given rows and columns, without making the rest of C."""
        lag = rows[:, None] - columns[None, :]
        inside = (lag >= 0) & (lag < self.bands)
        found = np.where(inside, self.entry(columns, np.where(inside, lag, 0)), 0.0)
        return found if self.scales is None else found / self.scales[columns]

    def unscaled_row(self, step: int) -> Array:
        """T[t, t - r] for lags r = 0, 1, ..., as many as there are bands and past steps."""
        lags = np.arange(min(step + 1, self.bands))
        return self.entry(step - lags, lags)

    def row(self, step: int) -> Array:
        """C[t, t - r] for the same lags."""
        row = self.unscaled_row(step)
        return row if self.scales is None else row / self.scales[step - np.arange(len(row))]

    def table(self) -> Array:
        """T[t, t - r] by step t and lag r, zero where t < r; a single row where T is Toeplitz."""
        lags = np.arange(self.bands)
        if self.is_constant:
            return self.entry(np.zeros_like(lags), lags)[None]
        columns = np.arange(self.steps)[:, None] - lags
        return np.where(columns >= 0, self.entry(np.maximum(columns, 0), np.where(columns >= 0, lags, 0)), 0.0)


@final
@dataclass(frozen=True, eq=False)
class MovingSum(Recursion):
    """sum_r coefficients_r z_{t-r}: N is banded Toeplitz.

    Args:
        steps: number of steps.
        coefficients: the first column of N without its trailing zeros.
    """

    steps: int
    coefficients: Array


@final
@dataclass(frozen=True, eq=False)
class Buffers(Recursion):
    """y = z - scale . b, then b <- decay b + y, with one buffer for each decay.

    Args:
        steps: number of steps.
        decay: theta_j in [0, 1].
        scale: omega_j.

    Reference: McMahan, Xu and Zhang 2024, Alg. 3.
    """

    steps: int
    decay: Array
    scale: Array

    def coefficients(self, count: int) -> Array:
        """The first `count` entries of the first column of C: 1, then scale . decay^(i - 1)."""
        powers = np.power(self.decay[:, None], np.arange(max(count - 1, 0)))
        return np.concatenate([[1.0], self.scale @ powers])[:count]

    def constants(self, dtype: str) -> tuple[Array, Array]:
        """(scale, loss) of the form that makes noise in a dtype; refused where float32 would lose its digits.

            y = z - scale . b,   b <- b + (y - loss b),   loss = 1 - decay

        This is b <- decay b + y, but a decay of 1 - 1e-9 is not rounded to 1. The y that is fed back is the y that is
        released, so rounding it is as if z had been rounded. The rounding of a buffer dies out with the decays of C^-1,
        like everything that enters it. Both constants are computed in float64; round them to `dtype` afterwards.

        Args:
            dtype: "float32" or "float64", of noise and buffers.
        """
        weight = float(np.abs(self.scale).sum())
        if dtype == "float32" and weight > LARGEST_FLOAT32_WEIGHT:
            raise InvalidArgument(
                f"The noise of a BLT whose scales cancel (their absolute sum is {weight:.3g}) needs float64. "
                "Got float32 instead.",
                hint="make the noise with dtype='float64', or choose a BLT with non-negative scales",
            )
        return self.scale, 1.0 - self.decay


@final
@dataclass(frozen=True)
class TreeNodes(Recursion):
    """The online decoder of a complete binary tree: node <- w z + (1 - w) (left + right), up the finished levels.

    Step t draws rows 2t - popcount(t), ... of z: the leaf first, then each node that the step completes. Its noise is
    the highest node it completes less the left neighbours that this node replaces. Those nodes wait, one for each bit
    set in the step.

    Args:
        steps: number of leaves that belong to the run.

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
    def waiting(self) -> int:
        """The largest number of finished nodes that wait for their parents."""
        return self.steps.bit_length() - 1

    def completed_level(self, step: int) -> int:
        """Level of the highest node that this step completes."""
        if not 0 <= step < self.steps:
            raise invalid("Tree", "step", f"in 0, ..., {self.steps - 1}", step, "the run is over")
        return self.height if step == self.steps - 1 else (~step & (step + 1)).bit_length() - 1

    def first_row(self, step: int) -> int:
        """Row of z for the leaf of this step."""
        return 2 * step - step.bit_count()


@final
@dataclass(frozen=True)
class Restart(Recursion):
    """Another recursion, started over for every block with new rows of z.

    Args:
        inner: recursion of one block.
        repeats: number of blocks.
    """

    inner: Recursion
    repeats: int

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps of all blocks."""
        return self.repeats * self.inner.steps

    @property
    def rows(self) -> int:
        """Number of rows of z of all blocks."""
        return self.repeats * self.inner.rows

    @property
    def is_causal(self) -> bool:
        """As for one block."""
        return self.inner.is_causal


@final
@dataclass(frozen=True, eq=False)
class WholeMatrix(Recursion):
    """Every step's noise uses all of z, so the noise of all steps is made before the first.

    Args:
        strategy: its `solve` and `noising` give N.
        is_ordinary: whether every row of N is known to have a norm within a factor of two or so of 1.
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
    def is_causal(self) -> bool:
        """Never."""
        return False


def own_weight(level: int) -> float:
    """w_l, also the variance of the estimate from below of a tree node whose steps are all in the run."""
    return float(2.0**level / (2.0 ** (level + 1) - 1.0))
