"""Names and shapes of the arrays in a parameter tree, which a run makes noise for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise import Leaf


def leaves(params: Any) -> dict[str, Leaf]:
    """Return the names and shapes of all arrays of a tree, in JAX's order, for `Run.open`.

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
                "leaves", "params", "a tree of floating-point arrays", f"{kind} at {name}", "pass only what is trained"
            )
    return {jax.tree_util.keystr(path): Leaf(jnp.shape(leaf)) for path, leaf in found}


def check_leaves(owned: dict[str, Leaf], given: Any, what: str) -> None:
    """Raise if a tree does not have the leaves that the run was opened with."""
    found = leaves(given)
    if list(found.items()) != list(owned.items()):
        raise InvalidArgument(
            f"The run makes noise for the arrays {_listed(owned)}. The {what} have {_listed(found)}.",
            hint="open the run with leaves=antiphase.jax.leaves(params), where params is everything that is trained",
        )


def _listed(leaves: dict[str, Leaf]) -> str:
    return ", ".join(f"{name} {leaf.global_shape}" for name, leaf in leaves.items())
