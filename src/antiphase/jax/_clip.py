"""The sum of clipped gradients: what the noise is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from antiphase import _check

Loss = Callable[..., jax.Array]
SMALLEST_NORM, LARGEST_NORM = 1e-30, 1e30
TINY, HUGE = 1e-37, 1e37  # what is beyond, float32 rounds to zero or infinity, if not itself then its reciprocal
MARGIN = 2.0**-16  # room for rounding: a norm of millions of numbers, added in a tree, is off by a few times 2^-24


def clipped_sum(loss: Loss, clip_norm: float, *, microbatch: int | None = None) -> Callable[..., Any]:
    """From the loss of one example to the sum over a batch of its gradients, each clipped to norm clip_norm.

        sum_i mask_i g_i min(1, clip_norm / |g_i|),   g_i = gradient of loss(params, *example_i)

    The norm is over all leaves together; 1/65,536 of clip_norm is left as room for its rounding. An example whose
    gradient is not finite, or holds numbers beyond 1e37, counts as zero.

    **Guarantee**: what an example adds has a norm of at most clip_norm, whatever the example holds, as long as its loss
    does not look at the others (no batch normalisation). The sum of them is rounded as sums of float32 are.

    Args:
        loss: (params, *example) -> a number, for one example.
        clip_norm: that of the plan's problem, between 1e-30 and 1e30.
        microbatch: examples whose gradients are held at once; None for the whole batch. It must divide the batch.

    Returns:
        (params, batch, mask) -> a tree like params: batch is a tuple of arrays or trees with the examples along
        their first axes, mask says which of them count.

    >>> total = clipped_sum(lambda w, x: w * x, clip_norm=2.0)
    >>> round(total(jnp.float32(1.0), (jnp.array([1.0, 5.0, 7.0]),), jnp.array([True, True, False])).item(), 4)
    3.0
    """
    hint = "the largest norm of one contribution; scale the loss where float32 does not reach"
    norm = _check.real("clipped_sum", "clip_norm", clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)
    size = None if microbatch is None else _check.positive_integer("clipped_sum", "microbatch", microbatch)

    def part(params: Any, batch: tuple[Any, ...], mask: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, *[0] * len(batch)))(params, *batch)
        return jax.tree.map(lambda g: g.sum(0), jax.vmap(lambda g, used: _clipped(g, used, norm))(gradients, mask))

    def total(params: Any, batch: tuple[Any, ...], mask: Any) -> Any:
        used = _flags(mask)
        if used.shape[0] == 0:
            return jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)
        if size is None or used.shape[0] <= size:
            return part(params, batch, used)
        if used.shape[0] % size:
            hint = "pad the batch, for instance with antiphase.jax.pad"
            raise _check.invalid("clipped_sum", "microbatch", f"a divisor of the batch, {used.shape[0]}", size, hint)
        parts = jax.tree.map(lambda x: jnp.reshape(x, (-1, size, *jnp.shape(x)[1:])), (batch, used))
        zero = jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)

        def add(sums: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, part(params, *piece)), None

        return jax.lax.scan(add, zero, parts)[0]

    return total


def _clipped(gradient: Any, used: jax.Array, norm: float) -> Any:
    """One example's gradient, no longer than `norm`; zero where it is padding or not finite.

    The gradient is `largest` times `scaled`, whose largest number is 1: squares of small numbers would vanish, and the
    norm seem shorter than it is.
    """
    wide = jax.tree.map(lambda g: g.astype(_wide(g)), gradient)
    largest = jnp.stack([jnp.abs(g).max(initial=0) for g in jax.tree.leaves(wide)]).max()
    counts = used & (largest <= HUGE)  # false for NaN
    scaled = jax.tree.map(lambda g: g / jnp.where(counts & (largest >= TINY), largest, 1), wide)
    length = optax.tree.norm(scaled)
    allowed = norm * (1 - MARGIN) / jnp.maximum(length, 1)

    def clip(g: jax.Array, s: jax.Array) -> jax.Array:
        kept = jnp.where(largest <= allowed, g, s * allowed)
        return jnp.where(counts & jnp.isfinite(length), kept, 0).astype(g.dtype)

    return jax.tree.map(clip, wide, scaled)


def _flags(mask: Any) -> jax.Array:
    used = jnp.asarray(mask, bool)
    if used.ndim != 1:
        raise _check.invalid(
            "clipped_sum", "mask", "one flag for each example", f"shape {used.shape}", "batches gives one"
        )
    return used


def _wide(array: Any) -> Any:
    """At least float32: sums of half precision lose what single examples add."""
    return jnp.promote_types(jnp.result_type(array), jnp.float32)
