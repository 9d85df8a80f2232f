"""Exact integer sums for `clipped_sum` with a lattice; the gradients are computed one at a time.

A lattice is a grid on which sums and noise are exact integers (docs/lattice-noise.md). A contribution is the gradient
of one example, clipped and truncated to integers, in units of the grid. The proof in docs/lattice-noise.md needs two
properties: the norm of these integers is at most `lattice.norm`, and they depend only on the example itself and on the
noisy sums of earlier steps. If the gradients of a batch were computed together, the second property could fail: the
last bits of one gradient could depend on the batch size and on the position of the example in the batch. Instead, a
loop runs the same compiled program for every example. The compiler does not know the number of iterations, so the
program does not depend on the batch size.

The gradients, their norms and the clipping factors may have floating-point errors. These errors do not matter, because
the exact squared norm of the resulting integers is checked. The check and the sum read the same integers from the state
of a loop, and all operations on these integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from antiphase._errors import Refused
from antiphase._lattice import SHRINKS, Lattice

LIMB_BITS = 24  # squared norms are computed exactly, in limbs (digits) of this many bits
LIMB_MASK = (1 << LIMB_BITS) - 1
LIMBS = 6
LARGEST_INTEGER = 1 << 48  # limit for the integers of a contribution, whose norm is at most 2^47
# If the largest entry of a gradient is in this range, the sum of squares neither overflows nor underflows in float64.
SMALLEST_SQUARED, LARGEST_SQUARED = 1e-100, 1e100


def check_x64() -> None:
    """Raise `Refused` unless JAX has 64-bit integers."""
    if jax.dtypes.canonicalize_dtype(np.int64) != np.int64:
        raise Refused(
            "Lattice noise needs 64-bit integers, which JAX has disabled.",
            hint="call jax.config.update('jax_enable_x64', True) at the start of the program, and make parameters and "
            "data with dtype=jnp.float32",
        )


def check_not_sharded(manual: frozenset[str], explicit: tuple[str, ...]) -> None:
    """Raise `Refused` inside `jax.shard_map`, and on meshes with explicit axes for the examples."""
    if manual or explicit:
        where = "inside jax.shard_map" if manual else "on a mesh with explicit axes"
        raise Refused(
            f"clipped_sum with a lattice was called {where}, where it is not supported.",
            hint="call it under jax.jit, on one device or on a mesh with AxisType.Auto",
        )


def lattice_sum(
    loss: Callable[..., Any], lattice: Lattice, params: Any, arrays: list[Any], used: jax.Array
) -> tuple[Any, jax.Array, Any]:
    """Return the exact sum of the contributions of a batch, and the losses and auxiliary outputs of its examples.

    Args:
        loss: function (params, example) -> (scalar loss, auxiliary outputs) of one example.
        lattice: lattice of the plan.
        params: parameters.
        arrays: arrays with the examples along the first axis.
        used: one flag per example; False for padding.
    """
    value_and_grad = jax.value_and_grad(loss, has_aux=True)

    def outputs(params: Any, example: list[Any]) -> tuple[jax.Array, Any]:
        (value, aux), _ = value_and_grad(params, example)
        return value, jax.tree.map(jnp.asarray, aux)

    one = [jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in arrays]  # type: ignore[no-untyped-call]
    kinds = jax.eval_shape(outputs, params, one)
    each = jax.tree.map(lambda kind: jnp.zeros((len(used), *kind.shape), kind.dtype), kinds)
    sums = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.int64), params)
    if not len(used):
        return (sums, *each)
    # The compiler must not know the number of iterations, so that the loop is the same program for every batch size. If
    # the mask is a constant, or if the loop runs outside of `jax.jit`, `jax.lax.fori_loop` would become a scan of known
    # length, which the compiler may unroll. The barrier and `jax.lax.while_loop` prevent this.
    end = jax.lax.optimization_barrier(jnp.max(jnp.where(used, jnp.arange(1, len(used) + 1), 0), initial=0))  # type: ignore[no-untyped-call]

    def is_left(state: tuple[Any, ...]) -> Any:
        return state[0] < state[1]

    def add(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, end, total, values = state
        example = [jax.lax.dynamic_index_in_dim(array, i, keepdims=False) for array in arrays]
        (value, aux), gradient = value_and_grad(params, example)
        integers = contribution(lattice, gradient)
        total = jax.tree.map(lambda a, b: a + jnp.where(used[i], b, 0), total, integers)

        def put(rows: jax.Array, row: Any) -> jax.Array:
            return rows.at[i].set(jnp.where(used[i], row, jnp.zeros_like(row)))

        return i + 1, end, total, jax.tree.map(put, values, (value, jax.tree.map(jnp.asarray, aux)))

    _, _, sums, (losses, aux) = jax.lax.while_loop(is_left, add, (jnp.zeros_like(end), end, sums, each))
    return sums, losses, aux


def contribution(lattice: Lattice, gradient: Any) -> Any:
    """Clip a gradient, truncate it towards zero to the grid, and return int64 of norm at most `lattice.norm`.

    This is `Lattice.contribution` in JAX. A gradient with an entry that is not finite becomes zero.
    """
    leaves, tree = jax.tree.flatten(gradient)
    wide = [leaf.astype(jnp.float64) for leaf in leaves]
    largest = jnp.stack([jnp.abs(leaf).max(initial=0.0) for leaf in wide]).max()
    counts = jnp.isfinite(largest) & (largest > 0.0)
    # If squares could overflow or underflow, divide all entries by the largest one.
    is_common = (largest > SMALLEST_SQUARED) & (largest < LARGEST_SQUARED)
    size = jnp.where(counts & ~is_common, largest, 1.0)
    scaled = [jnp.where(counts, leaf / size, 0.0) for leaf in wide]
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in scaled))
    unit = 2.0**-lattice.exponent * size  # can be infinite only if the gradient must be clipped anyway
    factor = jnp.where(counts, jnp.minimum(unit, lattice.norm / jnp.where(counts, norm, 1.0)), 0.0)

    def truncated(factor: jax.Array) -> list[jax.Array]:
        products = (jnp.clip(leaf * factor, -float(LARGEST_INTEGER), float(LARGEST_INTEGER)) for leaf in scaled)
        return [jnp.trunc(product).astype(jnp.int64) for product in products]

    def is_too_long(state: tuple[jax.Array, jax.Array, list[jax.Array]]) -> jax.Array:
        return ~is_within(state[2], lattice.norm)

    def shrink(state: tuple[jax.Array, jax.Array, list[jax.Array]]) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        attempt, factor, _ = state
        smaller = factor * (1.0 - jnp.exp2(attempt.astype(jnp.float64) - SHRINKS))
        last = attempt >= SHRINKS  # the last attempt makes all integers zero; this has never happened
        return attempt + 1, smaller, [jnp.where(last, 0, array) for array in truncated(smaller)]

    start = (jnp.zeros((), jnp.int32), factor, truncated(factor))
    _, _, integers = jax.lax.while_loop(is_too_long, shrink, start)
    return jax.tree.unflatten(tree, integers)


def is_within(integers: list[jax.Array], norm: int) -> jax.Array:
    """Return True if the exact squared norm of the integers is at most norm^2 and none exceeds 2^48 in absolute value.

    The squares are added in limbs (digits) of 24 bits. With up to 2^36 integers, the sum of a limb cannot overflow.
    """
    fits = jnp.array(True)
    limbs = [jnp.zeros((), jnp.int64) for _ in range(LIMBS)]
    for leaf in integers:
        fits &= (leaf >= -LARGEST_INTEGER).all() & (leaf <= LARGEST_INTEGER).all()
        size = jnp.abs(leaf)
        high, low = size >> LIMB_BITS, size & LIMB_MASK  # high <= 2^24
        for place, product in ((0, low * low), (1, 2 * high * low), (2, high * high)):
            limbs[place] += (product & LIMB_MASK).sum()
            limbs[place + 1] += (product >> LIMB_BITS).sum()
    for place in range(LIMBS - 1):
        limbs[place + 1] += limbs[place] >> LIMB_BITS
        limbs[place] &= LIMB_MASK
    result = jnp.array(True)
    for place in range(LIMBS):  # the lowest limb comes first, so that the highest limb that differs decides
        allowed = norm**2 >> (LIMB_BITS * place)
        allowed = allowed & LIMB_MASK if place < LIMBS - 1 else allowed
        result = jnp.where(limbs[place] == allowed, result, limbs[place] < allowed)
    return result & fits


def released_values(lattice: Lattice, integers: list[jax.Array], kinds: list[Any]) -> list[jax.Array]:
    """Return noisy integer sums as real numbers, in the given dtypes. This is post-processing and costs no privacy."""
    real = [jnp.ldexp(array.astype(jnp.float64), lattice.exponent) for array in integers]
    return [array.astype(kind) for array, kind in zip(real, kinds, strict=True)]
