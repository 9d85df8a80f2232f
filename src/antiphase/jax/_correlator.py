"""Correlated noise as pure functions: (buffers, step, z) -> (noise of the step, new buffers), for one leaf.

These are the recursions of the host, in the dtype of the noise. The values fed back are the rounded values that were
returned, so rounding has the same effect as rounding z.
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

Draw = Callable[[Any], jax.Array]  # row -> that row of z, for the current leaf


class JaxCorrelator(ABC):
    """Computes (N z)_t, step by step."""

    buffer_count: int  # number of model-sized buffers

    @abstractmethod
    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return a step's noise and the new buffers, of shape (buffer_count, ...), which start at zero."""


def correlator(strategy: Strategy, dtype: jnp.dtype) -> JaxCorrelator:
    """Return the correlator of a streaming strategy.

    Args:
        strategy: C. If a step's noise needs all of z, only the host can make it, and this raises.
        dtype: dtype of the noise.
    """
    return _correlator_for(strategy.recursion(), dtype)


def _correlator_for(recursion: Recursion, dtype: jnp.dtype) -> JaxCorrelator:
    made: JaxCorrelator | None = None
    match recursion:
        case Feedback():
            made = JaxFeedback(recursion)
        case MovingSum():
            made = JaxMovingSum(recursion)
        case Buffers():
            made = JaxBuffers(recursion, dtype)
        case TreeNodes():
            made = JaxTree(recursion)
        case Restart():
            made = JaxRestart(recursion, _correlator_for(recursion.inner, dtype))
        case WholeMatrix():
            raise invalid(
                "add_noise",
                "source",
                f"'host' for {type(recursion.strategy).__name__}, which needs all of z at every step",
                "'device'",
                "use source='host', or plan with a streaming family: banded, toeplitz, blt, banded-inverse, tree",
            )
    if made is None:
        raise TypeError(f"{type(recursion).__name__} is not one of the recursions of antiphase.strategies")
    return made


@final
class JaxFeedback(JaxCorrelator):
    """y_t = (z_t - sum_lag T[t, t - lag] y_{t - lag}) / T[t, t]; buffer s mod (bands - 1) holds y_s."""

    def __init__(self, recursion: Feedback) -> None:
        self.buffer_count = recursion.bands - 1
        self._table, self._scales = recursion.table(), recursion.scales

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Take one step of forward substitution."""
        z = draw(step)
        table = jnp.asarray(self._table, z.dtype)
        row = table[0] if len(table) == 1 else table[step]
        y = (z - _weighted(row, buffers, step)) / row[0]
        out = y if self._scales is None else y * jnp.asarray(self._scales, z.dtype)[step]
        return out, _stored(buffers, step, y)


@final
class JaxMovingSum(JaxCorrelator):
    """sum_lag coefficients_lag z_{t - lag}; buffer s mod (bands - 1) holds z_s."""

    def __init__(self, recursion: MovingSum) -> None:
        self.buffer_count = len(recursion.coefficients) - 1
        self._coefficients = recursion.coefficients

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return the weighted sum of the last rows of z."""
        z = draw(step)
        weights = jnp.asarray(self._coefficients, z.dtype)
        return weights[0] * z + _weighted(weights, buffers, step), _stored(buffers, step, z)


@final
class JaxBuffers(JaxCorrelator):
    """y = z - scale . b, then b <- b + (y - loss b); see `Buffers.constants`."""

    def __init__(self, recursion: Buffers, dtype: jnp.dtype) -> None:
        self.buffer_count = len(recursion.decay)
        self._scale, self._loss = recursion.constants(dtype.name)

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Read and update every buffer once."""
        z = draw(step)
        scale, loss = _columns(self._scale, z), _columns(self._loss, z)
        y = z - (scale * buffers).sum(0)
        return y, buffers + (y - loss * buffers)


@final
class JaxTree(JaxCorrelator):
    """node <- w z + (1 - w) (left + node), up the levels that the step completes; noise = node - the nodes it replaces.

    If bit l of the step is set, a completed node of level l waits for its parent. Its buffer index is the number of set
    bits above bit l.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    def __init__(self, recursion: TreeNodes) -> None:
        self.buffer_count = max(recursion.waiting, 1)
        self._last, self._height = recursion.steps - 1, recursion.height
        self._weights = np.array([own_weight(level) for level in range(recursion.height + 1)])

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Climb the levels that the step completes."""
        t = jnp.asarray(step, jnp.int32)
        first = 2 * t - jax.lax.population_count(t)
        trailing_ones = jax.lax.population_count((~t & (t + 1)) - 1)
        levels = jnp.where(t == self._last, self._height, trailing_ones)
        leaf = draw(first)
        weights = jnp.asarray(self._weights, leaf.dtype)

        def climb(level: Any, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            node, replaced = carried
            waiting = buffers[jax.lax.population_count(t >> (level + 1))]
            left = jnp.where((t >> level) & 1, waiting, jnp.zeros_like(node))
            weight = weights[level + 1]
            node = weight * draw(first + level + 1) + (1 - weight) * (node + left)
            return node, replaced + left

        node, replaced = jax.lax.fori_loop(0, levels, climb, (leaf, jnp.zeros_like(leaf)))
        return node - replaced, buffers.at[jax.lax.population_count(t >> levels)].set(node)


@final
class JaxRestart(JaxCorrelator):
    """Restarts the correlator of one block for every block, with new rows of z."""

    def __init__(self, recursion: Restart, inner: JaxCorrelator) -> None:
        self.buffer_count = inner.buffer_count
        self._inner, self._block = inner, recursion.inner

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return the inner noise, from the rows of this block."""
        block, inside = step // self._block.steps, step % self._block.steps
        fresh = jnp.where(inside == 0, jnp.zeros_like(buffers), buffers)
        return self._inner.step(fresh, inside, lambda row: draw(block * self._block.rows + row))


def _weighted(row: jax.Array, buffers: jax.Array, step: Any) -> jax.Array:
    """Return sum_lag row[lag] x the value stored lag steps ago, elementwise: sharding must not change the bits."""
    slots = len(buffers)
    if slots == 0:
        return jnp.zeros(buffers.shape[1:], buffers.dtype)
    lag = (step - 1 - jnp.arange(slots)) % slots + 1
    return (_columns(row[lag], buffers[0]) * buffers).sum(0)


def _stored(buffers: jax.Array, step: Any, value: jax.Array) -> jax.Array:
    return buffers.at[step % len(buffers)].set(value) if len(buffers) else buffers


def _columns(weights: Any, like: jax.Array) -> jax.Array:
    """Reshape one weight per buffer so that it broadcasts over buffers shaped like `like`."""
    return jnp.asarray(weights, like.dtype).reshape(-1, *[1] * like.ndim)
