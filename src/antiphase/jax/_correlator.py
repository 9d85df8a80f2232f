"""Computes the correlated noise N z of one leaf (one parameter array): (buffers, step, z) -> (noise, new buffers).

N is the noising matrix of the strategy, and each row of z holds independent normals for one step. The recursions are
the same as on the host, computed in the dtype of the noise. If a recursion uses past outputs, it uses them after
rounding. A rounding error of an output then has the same effect as a small change of z.
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

UNROLLED = 16  # a sum is computed in passes over memory, each of which adds this many terms
Draw = Callable[[Any], jax.Array]  # takes the index of a row of z, returns the row for the current leaf


class JaxCorrelator(ABC):
    """Computes (N z)_t for t = 0, 1, 2 and so on."""

    buffer_count: int  # number of buffers, each as large as the model

    @abstractmethod
    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return the noise of a step and the new buffers.

        Args:
            buffers: buffers after the previous step, shape (buffer_count, *leaf shape); zeros before step 0.
            step: index of the step, from 0.
            draw: function that takes the index of a row of z and returns this row.
        """


def correlator(strategy: Strategy, dtype: jnp.dtype) -> JaxCorrelator:
    """Return the correlator of a streaming strategy (one whose noise is computed step by step from a few buffers).

    Args:
        strategy: strategy matrix C. If every step needs all rows of z, only the host can make the noise, and
            `InvalidArgument` is raised.
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
                "add_correlated_noise",
                "source",
                f"'host' for {type(recursion.strategy).__name__}, which needs all rows of z at every step",
                "'device'",
                "use source='host', or plan with a streaming family: banded, toeplitz, blt, banded-inverse, tree",
            )
    if made is None:
        raise TypeError(f"{type(recursion).__name__} is not one of the recursions of antiphase.strategies")
    return made


@final
class JaxFeedback(JaxCorrelator):
    """Computes y_t = (z_t - sum_lag T[t, t - lag] y_{t - lag}) / T[t, t], with lag from 1 to bands - 1.

    T is the banded matrix of the recursion (see `Feedback`). Buffer s mod (bands - 1) holds y_s. The noise of step t is
    scales_t y_t.
    """

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
    """Computes sum_lag coefficients_lag z_{t - lag}, with lag from 0 to L, where L + 1 is the number of coefficients.

    Buffer s mod L holds z_s.
    """

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
    """Computes y = z - sum_i scale_i b_i, then adds y - loss_i b_i to each buffer b_i.

    Here loss_i is 1 minus the decay of buffer i. `Buffers.constants` returns the scales and the losses.
    """

    def __init__(self, recursion: Buffers, dtype: jnp.dtype) -> None:
        self.buffer_count = len(recursion.decay)
        self._scale, self._loss = recursion.constants(dtype.name)

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return the noise of a step and the new buffers. Each buffer is read and updated once."""
        z = draw(step)
        y = z - _weighted_sum(jnp.asarray(self._scale, z.dtype), buffers)
        return y, buffers + (y - _columns(self._loss, z) * buffers)


@final
class JaxTree(JaxCorrelator):
    """Computes the value of the highest tree node that a step completes, minus the values of some left siblings.

    The steps are the leaves of a binary tree (see `TreeNodes`). A step completes a node if the step is the last leaf
    below the node. The value of a leaf is the row of z drawn for the leaf. The value of any other completed node is
    w z + (1 - w) (left + right). Here z is the row drawn for the node, w is the weight of its level, and left and right
    are the values of its children. The left siblings are those of the nodes on the path from the step's leaf up to the
    highest completed node, without this highest node.

    The value of a left child is stored until its parent is completed. If bit l of the step is set, the left sibling at
    level l is in the buffer whose index is the number of set bits above bit l.

    Reference: Honaker 2015; Kairouz et al. 2021, App. B.
    """

    def __init__(self, recursion: TreeNodes) -> None:
        self.buffer_count = max(recursion.memory_copies, 1)
        self._last, self._height = recursion.steps - 1, recursion.height
        self._weights = np.array([own_weight(level) for level in range(recursion.height + 1)])

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Compute the nodes that the step completes, from the leaf up."""
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
    """Computes the noise of each block of steps with the same inner correlator, restarted with new rows of z."""

    def __init__(self, recursion: Restart, inner: JaxCorrelator) -> None:
        self.buffer_count = inner.buffer_count
        self._inner, self._block = inner, recursion.inner

    def step(self, buffers: jax.Array, step: Any, draw: Draw) -> tuple[jax.Array, jax.Array]:
        """Return the inner correlator's noise, with buffers set to zero at the first step of a block."""
        block, inside = step // self._block.steps, step % self._block.steps
        fresh = jnp.where(inside == 0, jnp.zeros_like(buffers), buffers)
        return self._inner.step(fresh, inside, lambda row: draw(block * self._block.rows + row))


def _weighted(row: jax.Array, buffers: jax.Array, step: Any) -> jax.Array:
    """Return sum_{lag >= 1} row[lag] * (value stored lag steps ago)."""
    slots = len(buffers)
    if slots == 0:
        return jnp.zeros(buffers.shape[1:], buffers.dtype)
    lag = (step - 1 - jnp.arange(slots)) % slots + 1
    return _weighted_sum(row[lag], buffers)


def _weighted_sum(weights: jax.Array, buffers: jax.Array) -> jax.Array:
    """Return sum_i weights[i] * buffers[i], added in order of i.

    The sum is not a matrix product, whose bits could depend on the sharding. It is not a reduction over the first axis
    either, because XLA computes such a reduction a thousand times slower on a CPU if leaves have two axes.
    """
    # Without the barrier, XLA would compute the weights again for every element.
    weights = jax.lax.optimization_barrier(weights)  # type: ignore[no-untyped-call]

    def add(start: Any, total: jax.Array, count: int) -> jax.Array:
        for i in range(count):
            total = total + weights[start + i] * buffers[start + i]
        return total

    loops, rest = divmod(len(buffers), UNROLLED)
    total = jax.lax.fori_loop(0, loops, lambda k, total: add(k * UNROLLED, total, UNROLLED), jnp.zeros_like(buffers[0]))
    return add(loops * UNROLLED, total, rest)


def _stored(buffers: jax.Array, step: Any, value: jax.Array) -> jax.Array:
    return buffers.at[step % len(buffers)].set(value) if len(buffers) else buffers


def _columns(weights: Any, like: jax.Array) -> jax.Array:
    """Reshape one weight per buffer so that it broadcasts over buffers shaped like `like`."""
    return jnp.asarray(weights, like.dtype).reshape(-1, *[1] * like.ndim)
