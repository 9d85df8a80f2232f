"""The leaves of a tree of parameters by name: what a run makes noise for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise import Leaf


def leaves(params: Any) -> dict[str, Leaf]:
    """Names and shapes of all arrays of a tree, in JAX's order, for `Run.open`.

    Args:
        params: a pytree of floating-point arrays.

    >>> {name: leaf.shape for name, leaf in leaves({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}).items()}
    {"['b']": (3,), "['w']": (2, 3)}
    """
    found = jax.tree_util.tree_leaves_with_path(params)
    if not found:
        raise invalid("leaves", "params", "a tree with at least one array", params, "pass the model's parameters")
    for path, leaf in found:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            name, kind = jax.tree_util.keystr(path), jnp.result_type(leaf).name
            raise invalid(
                "leaves", "params", "made of floating-point arrays", f"{kind} at {name}", "leave the rest out"
            )
    return {jax.tree_util.keystr(path): Leaf(jnp.shape(leaf)) for path, leaf in found}


def check_leaves(owned: dict[str, Leaf], given: Any, what: str) -> None:
    """Refuse a tree whose arrays are not those that the noise is for."""
    found = leaves(given)
    if list(found.items()) != list(owned.items()):
        raise InvalidArgument(
            f"The noise is for arrays {_shown(owned)}. The {what} have {_shown(found)}.",
            hint="open the run with leaves=antiphase.jax.leaves(params) of the parameters that are trained",
        )


def _shown(leaves: dict[str, Leaf]) -> str:
    return ", ".join(f"{name} {leaf.global_shape}" for name, leaf in leaves.items())
