"""Estimates the curvatures of a JAX loss on public data, for planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._objective import Curvatures, Steps
from antiphase._spectrum import curvatures_from_spectrum


def curvatures(
    loss: Callable[[Any], jax.Array],
    params: Any,
    *,
    learning_rate: float,
    clip_factor: float = 1.0,
    iterations: int = 20,
    probes: int = 4,
    seed: int = 0,
    steps: Steps | float = "last",
) -> Curvatures:
    """Estimate the curvatures (Hessian eigenvalues) of a loss, to pass to `Problem(objective=...)`.

    The method is stochastic Lanczos quadrature. Use public data only. The result and any plan made with it depend on
    the data, and the privacy guarantee does not cover what they reveal about the data.

    Args:
        loss: function that maps the parameters to the mean loss over a public batch.
        params: parameters, a tree of arrays.
        learning_rate: largest learning rate of the private run.
        clip_factor: factor, at most 1, by which clipping shrinks the mean gradient.
        iterations: number of Hessian-vector products per probe.
        probes: number of random vectors to average over.
        seed: seed for the random vectors.
        steps: steps whose noise counts in the objective, as in `Curvatures`.

    >>> import jax.numpy as jnp
    >>> scales = jnp.array([1.0, 2.0, 4.0])
    >>> found = curvatures(lambda w: ((scales * w) ** 2).sum() / 2, jnp.ones(3), learning_rate=0.1)
    >>> [round(float(h), 3) for h in sorted(set(found.values.round(5)))]
    [0.1, 0.4, 1.6]
    """
    flat, restore = ravel_pytree(params)
    if not flat.size:
        raise InvalidArgument("The tree of parameters has no arrays.", hint="pass the parameters that are trained")
    gradient = jax.grad(lambda vector: loss(restore(vector)))

    @jax.jit
    def product(vector: jax.Array) -> jax.Array:
        return jax.jvp(gradient, (flat,), (vector,))[1]

    def multiply(vector: Array) -> Array:
        return np.asarray(product(np.asarray(vector, flat.dtype)), np.float64)

    return curvatures_from_spectrum(
        multiply,
        int(flat.size),
        owner="curvatures",
        learning_rate=learning_rate,
        clip_factor=clip_factor,
        iterations=iterations,
        probes=probes,
        seed=seed,
        steps=steps,
    )
