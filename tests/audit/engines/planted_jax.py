"""Mistakes planted in antiphase.jax: in clipping, masks, host noise, device noise and shards."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from tests.audit.engines.jax_audits import audit, mesh
from tests.audit.engines.models import CLIP
from tests.audit.engines.planted import Bug, patched
from tests.audit.engines.planted_numpy import DRAWS, POISSON, shuffled

HOST = "antiphase.jax._host_noise.unit_noise"
CLIPPED = "antiphase.jax._clip._clipped"
MANY = {"quiet": 1024}


def scaled(factor):
    return lambda right: lambda run, step: [factor * part for part in right(run, step)]


def first_row(right):
    """Draws the first row of z in every step."""
    return lambda key, leaves, leaf, row, like, dtype: right(key, leaves, leaf, 0 * row, like, dtype)


def five_percent_small(right):
    return lambda *given: 0.95 * right(*given)


def no_flags(right):
    return lambda mask: jnp.ones(jnp.shape(mask), bool)


def copies_of_the_first(right):
    return lambda array, indices, mask: np.asarray(array)[indices]


def model_leaves_only(right):
    """Clips the leaves of the model, and forgets one."""
    return lambda gradient, used, norm: {
        **right(gradient, used, norm),
        "canary": jnp.where(used, gradient["canary"], 0),
    }


def each_leaf(right):
    """Clips to the norm of the leaf with the smallest norm."""

    def clip(gradient, used, norm):
        smallest = jnp.stack([jnp.linalg.norm(leaf) for leaf in jax.tree.leaves(gradient)]).min()
        factor = jnp.minimum(1.0, norm / jnp.maximum(smallest, 1e-6))
        return jax.tree.map(lambda leaf: jnp.where(used, factor * leaf, 0), gradient)

    return clip


def too_large(right):
    return lambda gradient, used, norm: right(gradient, used, 1.05 * norm)


def first_shard(right):
    """Every device reads the noise of the first one."""

    def reader(noise, leaf, shape, sharding):
        read = right(noise, leaf, shape, sharding)
        return lambda device, *position: read(np.zeros_like(device), *position)

    return reader


def not_scaled(right):
    return lambda updates, noise, scale, history: right(updates, noise, scale / CLIP, history)


BUGS = {
    "host noise 5 % small": Bug(audit, patched((HOST, scaled(0.95))), MANY, "noise: scale"),
    "device noise 5 % small": Bug(
        audit,
        patched(("antiphase.jax._transformation.standard_normals", five_percent_small)),
        {"source": "device", **MANY},
        "noise: scale",
    ),
    "device noise of the first row in every step": Bug(
        audit,
        patched(("antiphase.jax._transformation.standard_normals", first_row)),
        {"source": "device"},
        "noise: ",
    ),
    "noise not scaled by the clipping norm": Bug(
        audit, patched(("antiphase.jax._transformation._sum", not_scaled)), {}, "noise: scale"
    ),
    "same noise on all shards": Bug(
        audit,
        patched(("antiphase.jax._host_noise._shard_reader", first_shard)),
        {"mesh": mesh, "quiet": 300},
        "noise: directions",
    ),
    "padding repeats an example, and is not masked": Bug(
        audit,
        patched(("antiphase.jax._clip._flags", no_flags), ("antiphase.jax._batches._rows", copies_of_the_first)),
        {"canaries": 120},
        "other steps",
        tries=4,
    ),
    "one leaf not clipped": Bug(audit, patched((CLIPPED, model_leaves_only)), {}, "size"),
    "norm of one leaf": Bug(audit, patched((CLIPPED, each_leaf)), {}, "size"),
    "clipping norm 5 % large": Bug(audit, patched((CLIPPED, too_large)), {}, "size"),
    "batches shuffled instead of drawn": Bug(
        audit, patched((DRAWS["poisson"], shuffled)), {"given": POISSON}, "participation: counts", slow=True
    ),
}


def made(bug):
    """A mesh is made only when it is needed: it starts JAX."""
    options = {name: value() if value is mesh else value for name, value in bug.options.items()}
    return replace(bug, options=options)
