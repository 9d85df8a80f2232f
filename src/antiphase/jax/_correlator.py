"""Correlated noise as pure functions: (buffers, step, z) -> (noise of the step, new buffers), for one leaf.

The same recursions as in the streams on the host, in the dtype of the noise: what is fed back is what is given out, so
rounding it is as if z had been rounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from antiphase._check import invalid
from antiphase.strategies import (
    Buffers,
    Feedback,
    MovingSum,
    Recursion,
    Restart,
    Strategy,
    TreeNodes,
    WholeMatrix,
    own_weight,
)

Draw = Callable[[Any], jax.Array]  # a row of z for the leaf at hand


class Correlator(ABC):
    """(N z)_t for one step after another."""

    rows: int  # model-sized buffers

    @abstractmethod
    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """The noise of a step and the buffers after it; buffers have shape (rows, ...) and begin at zero."""


def correlator(strategy: Strategy, dtype: jnp.dtype) -> Correlator:
    """The correlator of a streaming strategy.

    Args:
        strategy: C; where each step's noise needs all of z, only the run on the host can make it.
        dtype: of the noise.
    """
    return _interpreted(strategy.recursion(), dtype)


def _interpreted(recursion: Recursion, dtype: jnp.dtype) -> Correlator:
    made: Correlator | None = None
    match recursion:
        case Feedback():
            made = PastOutputs(recursion)
        case MovingSum():
            made = PastDraws(recursion)
        case Buffers():
            made = DecayingBuffers(recursion, dtype)
        case TreeNodes():
            made = OnlineTree(recursion)
        case Restart():
            made = Restarted(recursion, _interpreted(recursion.inner, dtype))
        case WholeMatrix():
            raise invalid(
                "add_noise",
                "source",
                f"'host' for {type(recursion.strategy).__name__}, whose every step uses all of z",
                "'device'",
                "or plan with a streaming family: banded, toeplitz, blt, banded-inverse, tree",
            )
    if made is None:
        raise TypeError(f"{type(recursion).__name__} is not one of the recursions of antiphase.strategies")
    return made


@final
class PastOutputs(Correlator):
    """y_t = (z_t - sum_lag T[t, t - lag] y_{t - lag}) / T[t, t]; y_s is kept in row s mod (bands - 1)."""

    def __init__(self, recursion: Feedback) -> None:
        self.rows = recursion.bands - 1
        self._table, self._scales = recursion.table(), recursion.scales

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Forward substitution."""
        z = draw(step)
        table = jnp.asarray(self._table, z.dtype)
        row = table[0] if len(table) == 1 else table[step]
        y = (z - _weighted(row, buffers, step)) / row[0]
        out = y if self._scales is None else y * jnp.asarray(self._scales, z.dtype)[step]
        return out, _kept(buffers, step, y)


@final
class PastDraws(Correlator):
    """sum_lag coefficients_lag z_{t - lag}; z_s is kept in row s mod (bands - 1)."""

    def __init__(self, recursion: MovingSum) -> None:
        self.rows = len(recursion.coefficients) - 1
        self._coefficients = recursion.coefficients

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """The weighted sum of the last rows of z."""
        z = draw(step)
        weights = jnp.asarray(self._coefficients, z.dtype)
        return weights[0] * z + _weighted(weights, buffers, step), _kept(buffers, step, z)


@final
class DecayingBuffers(Correlator):
    """y = z - scale . b, then b <- b + (y - loss b), as `Buffers.constants` explains."""

    def __init__(self, recursion: Buffers, dtype: jnp.dtype) -> None:
        self.rows = len(recursion.decay)
        self._scale, self._loss = recursion.constants(dtype.name)

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Read and write every buffer once."""
        z = draw(step)
        scale, loss = _columns(self._scale, z), _columns(self._loss, z)
        y = z - (scale * buffers).sum(0)
        return y, buffers + (y - loss * buffers)


@final
class OnlineTree(Correlator):
    """node <- w z + (1 - w) (left + node) up the finished levels; the noise is node less what it replaces.

    A finished node of level l whose parent is not finished waits where bit l of the step is set, in the row that
    counts the set bits above it.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    def __init__(self, recursion: TreeNodes) -> None:
        self.rows = max(recursion.waiting, 1)
        self._last, self._height = recursion.steps - 1, recursion.height
        self._weights = np.array([own_weight(level) for level in range(recursion.height + 1)])

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """As many levels as the step completes."""
        t = jnp.asarray(step, jnp.int32)
        first = 2 * t - jax.lax.population_count(t)
        trailing_ones = jax.lax.population_count((~t & (t + 1)) - 1)
        levels = jnp.where(t == self._last, self._height, trailing_ones)
        leaf = draw(first)
        weights = jnp.asarray(self._weights, leaf.dtype)

        def rise(level: Any, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            node, replaced = carried
            waiting = buffers[jax.lax.population_count(t >> (level + 1))]
            left = jnp.where((t >> level) & 1, waiting, jnp.zeros_like(node))
            weight = weights[level + 1]
            node = weight * draw(first + level + 1) + (1 - weight) * (node + left)
            return node, replaced + left

        node, replaced = jax.lax.fori_loop(0, levels, rise, (leaf, jnp.zeros_like(leaf)))
        return node - replaced, buffers.at[jax.lax.population_count(t >> levels)].set(node)


@final
class Restarted(Correlator):
    """The correlator of one block, started again for every block with new rows of z."""

    def __init__(self, recursion: Restart, inner: Correlator) -> None:
        self.rows = inner.rows
        self._inner, self._block = inner, recursion.inner

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """The inner noise, from the rows of this block."""
        block, inside = step // self._block.steps, step % self._block.steps
        fresh = jnp.where(inside == 0, jnp.zeros_like(buffers), buffers)
        return self._inner.step(fresh, inside, lambda row: draw(block * self._block.rows + row))


def _weighted(row: jax.Array, buffers: jax.Array, step: Any) -> jax.Array:
    """sum_lag row[lag] times what was kept lag steps ago; elementwise, so that shards do not change the bits."""
    slots = len(buffers)
    if slots == 0:
        return jnp.zeros(buffers.shape[1:], buffers.dtype)
    lag = (step - 1 - jnp.arange(slots)) % slots + 1
    return (_columns(row[lag], buffers[0]) * buffers).sum(0)


def _kept(buffers: jax.Array, step: Any, value: jax.Array) -> jax.Array:
    return buffers.at[step % len(buffers)].set(value) if len(buffers) else buffers


def _columns(weights: Any, like: jax.Array) -> jax.Array:
    """One number for each buffer, to be multiplied with buffers of the shape of `like`."""
    return jnp.asarray(weights, like.dtype).reshape(-1, *[1] * like.ndim)
