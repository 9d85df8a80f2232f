"""A mark that stands for the first parameters and all noisy sums: states of steps taken again are known by it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SALTS = (0x9E3779B9, 0x7F4A7C15)  # two words: by chance two marks agree once in 2^64 times


def first_mark(params: Any) -> jax.Array:
    """The mark of the parameters that training begins with."""
    return next_mark(jnp.zeros(2, jnp.uint32), jax.tree.leaves(params))


def next_mark(mark: jax.Array, arrays: list[Any]) -> jax.Array:
    """The mark after a step.

    Words are mixed each by itself and added, so that neither shards nor the order of the sum change the mark. It is
    made for mistakes, not for forgers, and tells no more than the noisy sums do.

    Args:
        mark: before the step, two words.
        arrays: the sums of the step with their noise.
    """
    for leaf in arrays:
        wide = jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32))
        bits = jax.lax.bitcast_convert_type(wide, jnp.uint32)
        sums = jnp.stack([_mixed(bits ^ np.uint32(salt)).sum(dtype=jnp.uint32) for salt in SALTS])
        mark = _mixed(mark * np.uint32(5) + sums + np.uint32(1))
    return mark


def mark_bytes(mark: Any) -> bytes:
    """As the run takes it."""
    return np.asarray(mark).astype("<u4").tobytes()


def _mixed(words: jax.Array) -> jax.Array:
    """One to one, each bit of the result dependent on all (the end of MurmurHash3)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)
