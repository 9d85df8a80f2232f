"""`clipped_sum`: per-example gradients, clipped and summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from antiphase import _check

Loss = Callable[..., jax.Array]
SMALLEST_NORM, LARGEST_NORM = 1e-30, 1e30
SMALLEST_ENTRY, LARGEST_ENTRY = 1e-37, 1e37  # outside, float32 rounds the entry or its reciprocal to zero or infinity
ROUNDING_MARGIN = 2.0**-16  # the norm of millions of numbers, summed in a tree, is off by a few times 2^-24


def clipped_sum(loss: Loss, clip_norm: float, *, microbatch: int | None = None) -> Callable[..., Any]:
    """Return a function that sums the per-example gradients of a batch, each clipped to norm clip_norm.

        sum_i mask_i g_i min(1, clip_norm / |g_i|),   g_i = gradient of loss(params, *example_i)

    The norm is taken over all leaves together, with a margin of 1/65,536 of clip_norm for rounding. An example whose
    gradient is not finite, or has an entry above 1e37, contributes zero.

    **Guarantee**: each example contributes a vector of norm at most clip_norm, whatever its data, provided that its
    loss does not depend on other examples (no batch normalisation). Their sum is subject to float32 rounding.

    Args:
        loss: (params, *example) -> the scalar loss of one example.
        clip_norm: clipping norm of the plan's problem, between 1e-30 and 1e30.
        microbatch: number of per-example gradients in memory at once; None for the whole batch. It must divide the
            batch size.

    Returns:
        (params, batch, mask) -> a tree like params. batch is a tuple of arrays or trees with the examples along the
        first axis; mask is False for padding.

    >>> total = clipped_sum(lambda w, x: w * x, clip_norm=2.0)
    >>> round(total(jnp.float32(1.0), (jnp.array([1.0, 5.0, 7.0]),), jnp.array([True, True, False])).item(), 4)
    3.0
    """
    hint = "use the plan's clip_norm; scale the loss to bring it into the range of float32"
    norm = _check.real("clipped_sum", "clip_norm", clip_norm, SMALLEST_NORM, LARGEST_NORM, hint)
    size = None if microbatch is None else _check.positive_integer("clipped_sum", "microbatch", microbatch)

    def microbatch_sum(params: Any, batch: tuple[Any, ...], mask: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, *[0] * len(batch)))(params, *batch)
        return jax.tree.map(lambda g: g.sum(0), jax.vmap(lambda g, used: _clipped(g, used, norm))(gradients, mask))

    def total(params: Any, batch: tuple[Any, ...], mask: Any) -> Any:
        used = _flags(mask)
        if used.shape[0] == 0:
            return jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)
        if size is None or used.shape[0] <= size:
            return microbatch_sum(params, batch, used)
        if used.shape[0] % size:
            hint = "pad the batch, for example with antiphase.jax.pad"
            raise _check.invalid(
                "clipped_sum", "microbatch", f"a divisor of the batch size, {used.shape[0]}", size, hint
            )
        microbatches = jax.tree.map(lambda x: jnp.reshape(x, (-1, size, *jnp.shape(x)[1:])), (batch, used))
        zero = jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)

        def add(sums: Any, microbatch: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, microbatch_sum(params, *microbatch)), None

        return jax.lax.scan(add, zero, microbatches)[0]

    return total


def _clipped(gradient: Any, used: jax.Array, norm: float) -> Any:
    """Return one example's gradient with norm at most `norm`; zero for padding and gradients that are not finite.

    The norm is computed of `scaled`, the gradient divided by its largest entry. Squares of small entries would
    underflow, and the norm would come out too small.
    """
    wide = jax.tree.map(lambda g: g.astype(_wide(g)), gradient)
    largest = jnp.stack([jnp.abs(g).max(initial=0) for g in jax.tree.leaves(wide)]).max()
    counts = used & (largest <= LARGEST_ENTRY)  # false for NaN
    scaled = jax.tree.map(lambda g: g / jnp.where(counts & (largest >= SMALLEST_ENTRY), largest, 1), wide)
    scaled_norm = optax.tree.norm(scaled)
    allowed = norm * (1 - ROUNDING_MARGIN) / jnp.maximum(scaled_norm, 1)

    def clip(g: jax.Array, s: jax.Array) -> jax.Array:
        kept = jnp.where(largest <= allowed, g, s * allowed)
        return jnp.where(counts & jnp.isfinite(scaled_norm), kept, 0).astype(g.dtype)

    return jax.tree.map(clip, wide, scaled)


def _flags(mask: Any) -> jax.Array:
    used = jnp.asarray(mask, bool)
    if used.ndim != 1:
        raise _check.invalid(
            "clipped_sum",
            "mask",
            "a vector with one flag per example",
            f"shape {used.shape}",
            "use the mask from batches",
        )
    return used


def _wide(array: Any) -> Any:
    """Return a dtype of at least float32: half-precision sums lose the contributions of single examples."""
    return jnp.promote_types(jnp.result_type(array), jnp.float32)
