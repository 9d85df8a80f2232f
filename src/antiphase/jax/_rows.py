"""White noise on the device, by address: (key, leaf, row of z) -> standard normals, always the same."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from antiphase._check import invalid

GENERATOR = "threefry2x32"
LARGEST = 1 << 31  # addresses: rows of z times leaves


def check_addresses(rows: int, leaves: int) -> None:
    """Refuse a strategy with more rows of z than the generator has addresses."""
    if rows * leaves >= LARGEST:
        raise invalid(
            "add_noise", "source", "'host' for so many steps and leaves", "'device'", "the device counts to 2^31"
        )


def normals(key: jax.Array, leaves: int, leaf: int, row: jax.Array, like: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """A row of z for one leaf.

    The address row x leaves + leaf is encrypted under the key, which is one to one: no two rows or leaves ever share a
    stream. A draw is the scaled sum of two: one float32 draw of `jax.random.normal` ends at -5.42 and 5.22 standard
    deviations, and a step with a small noise multiplier would show by a value beyond it that an example took part. The
    sum ends at -7.66 and 7.38 (float64: 11.54). What that adds to delta is not proved: reports state as an assumption
    that draws are normal.

    Args:
        key: two words.
        leaves: how many leaves there are.
        leaf: which one.
        row: of z.
        like: has the shape and, on an explicit mesh, the sharding of the leaf.
        dtype: of the noise.
    """
    address = row * leaves + leaf
    here = jax.random.fold_in(jax.random.wrap_key_data(key, impl=GENERATOR), address)
    both = jax.random.normal(here, (2, *jnp.shape(like)), dtype, out_sharding=_twice(like))
    return (both[0] + both[1]) * jnp.asarray(math.sqrt(0.5), dtype)


def _twice(like: jax.Array) -> NamedSharding | None:
    """The sharding of two of `like`, where its type has one; otherwise the compiler finds it."""
    at = jax.typeof(like).sharding
    if at.mesh.empty or not at.mesh.are_all_axes_explicit:
        return None
    return NamedSharding(at.mesh, PartitionSpec(None, *at.spec))  # type: ignore[no-untyped-call]
