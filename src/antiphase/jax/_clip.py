"""The sum of clipped gradients: what the noise is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax  # type: ignore[import-untyped]

from antiphase import _check

Loss = Callable[..., jax.Array]


def clipped_sum(loss: Loss, clip_norm: float, *, microbatch: int | None = None) -> Callable[..., Any]:
    """From the loss of one example to the sum over a batch of its gradients, each clipped to norm clip_norm.

        sum_i mask_i g_i min(1, clip_norm / |g_i|),   g_i = gradient of loss(params, *example_i)

    The norm is over all leaves together. An example whose gradient is not finite counts as zero.

    **Guarantee**: replacing an example by nothing moves the sum by at most clip_norm, whatever the example holds, up to
    rounding, as long as the loss of an example does not look at the others (no batch normalisation).

    Args:
        loss: (params, *example) -> a number, for one example.
        clip_norm: that of the plan's problem.
        microbatch: examples whose gradients are held at once; None for the whole batch. It must divide the batch.

    Returns:
        (params, batch, mask) -> a tree like params: batch is a tuple of arrays or trees with the examples along
        their first axes, mask says which of them count.

    >>> total = clipped_sum(lambda w, x: w * x, clip_norm=2.0)
    >>> total(jnp.float32(1.0), (jnp.array([1.0, 5.0, 7.0]),), jnp.array([True, True, False])).tolist()
    3.0
    """
    norm = _check.real("clipped_sum", "clip_norm", clip_norm, 1e-300, 1e300, "the largest norm of one contribution")
    size = None if microbatch is None else _check.positive_integer("clipped_sum", "microbatch", microbatch)

    def part(params: Any, batch: tuple[Any, ...], mask: jax.Array) -> Any:
        gradients = jax.vmap(jax.grad(loss), (None, *[0] * len(batch)))(params, *batch)
        return jax.tree.map(lambda g: g.sum(0), jax.vmap(lambda g, used: _clipped(g, used, norm))(gradients, mask))

    def total(params: Any, batch: tuple[Any, ...], mask: Any) -> Any:
        used = jnp.asarray(mask, bool)
        if used.shape[0] == 0:
            return jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)
        if size is None or used.shape[0] <= size:
            return part(params, batch, used)
        if used.shape[0] % size:
            hint = "pad the batch, for instance with antiphase.jax.pad"
            raise _check.refuse("clipped_sum", "microbatch", f"a divisor of the batch, {used.shape[0]}", size, hint)
        parts = jax.tree.map(lambda x: jnp.reshape(x, (-1, size, *jnp.shape(x)[1:])), (batch, used))
        zero = jax.tree.map(lambda p: jnp.zeros_like(p, _wide(p)), params)

        def add(sums: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, sums, part(params, *piece)), None

        return jax.lax.scan(add, zero, parts)[0]

    return total


def _clipped(gradient: Any, used: jax.Array, norm: float) -> Any:
    """One example's gradient, no longer than `norm`; zero where it is padding or not finite."""
    wide = jax.tree.map(lambda g: g.astype(_wide(g)), gradient)
    length = optax.tree.norm(wide)
    counts = used & jnp.isfinite(length)
    factor = jnp.minimum(1.0, norm / jnp.where(length > norm, length, norm))
    return jax.tree.map(lambda g: jnp.where(counts, g, 0) * factor.astype(g.dtype), wide)


def _wide(array: Any) -> Any:
    """At least float32: sums of half precision lose what single examples add."""
    return jnp.promote_types(jnp.result_type(array), jnp.float32)
