"""Finds names and shapes of the arrays in a parameter tree, whatever wrappers a library puts around the arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey, keystr

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise import Leaf

WRAPPED = GetAttrKey("value")  # last key of an array inside a Variable of Flax NNX, or inside a box of Flax Linen
SCALARS = (bool, int, float, complex)


def leaves(params: Any) -> dict[str, Leaf]:
    """Return the names and shapes of all trained arrays in a tree, in the order of `jax.tree.leaves`, for `Run.open`.

    A name is the path of the array, as `jax.tree_util.keystr` prints it. Names do not depend on wrappers: an array has
    the same name inside and outside a Variable of Flax NNX or a box of Flax Linen. It also has the same name in a dict,
    a `FrozenDict` and a `FlatMap` of Haiku. Functions and strings are left out. Inside an Equinox module, everything
    that `equinox.is_inexact_array` rejects is also left out.

    **Guarantee**: raises an error if two arrays of the tree would get the same name.

    Args:
        params: a pytree of floating-point arrays, such as the parameters of Flax Linen or Haiku, an Equinox module, or
            nnx.state(model, nnx.Param).

    >>> {name: leaf.shape for name, leaf in leaves({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}).items()}
    {"['b']": (3,), "['w']": (2, 3)}
    """
    return _checked(_named_arrays(params), params)


def _checked(found: list[tuple[str, Any]], params: Any, *, integers: bool = False) -> dict[str, Leaf]:
    """Return named leaves. Raise an error if there are none, if two share a name, or if one is not floating-point.

    If `integers` is True, the dtype of the leaves is not checked.
    """
    if not found:
        raise invalid("leaves", "params", "a tree with at least one array", params, "pass the model's parameters")
    for name, leaf in found:
        if not integers and not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            hint = "pass only trained arrays, such as nnx.state(model, nnx.Param) for a model of Flax NNX"
            got = f"{jnp.result_type(leaf).name} at {name}"
            raise invalid("leaves", "params", "a tree of floating-point arrays", got, hint)
    named = {name: Leaf(jnp.shape(leaf)) for name, leaf in found}
    if len(named) < len(found):
        names = [name for name, _ in found]
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid("leaves", "params", "a tree with distinct names", f"two arrays named {twice}", "rename the keys")
    return named


def check_leaves(owned: dict[str, Leaf], given: Any, what: str, *, integers: bool = False) -> None:
    """Raise `InvalidArgument` if a tree does not have the leaves that the run was opened with.

    Args:
        owned: leaves that the run was opened with, by name.
        given: tree to check.
        what: plural noun for the tree in the error message, such as "updates".
        integers: if True, the arrays may have any dtype, such as the int64 of sums on a lattice.
    """
    found = _checked(_named_arrays(given, _is_array if integers else _is_trained), given, integers=integers)
    if list(found.items()) != list(owned.items()):
        raise InvalidArgument(
            f"The run makes noise for the arrays {_listed(owned)}. The {what} have the arrays {_listed(found)}.",
            hint="open the run with leaves=antiphase.jax.leaves(params), where params has all trained arrays",
        )


def unwrapped(tree: Any) -> Any:
    """Return the tree with the values of Flax NNX Variables in place of the Variables, as `nnx.as_pure` does."""
    variable = _class("flax.nnx", "Variable")
    if variable is None:
        return tree
    return jax.tree.map(
        lambda part: part.get_value() if isinstance(part, variable) else part,
        tree,
        is_leaf=lambda part: isinstance(part, variable),
    )


def trained_arrays(tree: Any) -> list[Any]:
    """Return the arrays that `leaves` gives names to, in the order of these names."""
    return [leaf for _, leaf in _named_arrays(tree)]


def arrays_of(tree: Any) -> list[Any]:
    """Return the arrays and numbers of a tree, in JAX's order, without its functions, strings and other objects.

    Numbers inside an Equinox module are settings, so they are left out too.
    """
    return [leaf for _, leaf in _named_arrays(tree, in_equinox=_is_array)]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _is_trained(leaf: Any) -> bool:
    return _is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _named_arrays(tree: Any, in_equinox: Callable[[Any], bool] = _is_trained) -> list[tuple[str, Any]]:
    """Return all named arrays and numbers in a tree; in Equinox modules, only those that `in_equinox` accepts."""
    module = _class("flax.nnx", "Module")
    if module is not None and isinstance(tree, module):
        tree = sys.modules["flax.nnx"].state(tree)  # a tree of dicts, as nnx.Optimizer uses
    equinox_module = _class("equinox", "Module")
    found: list[tuple[str, Any]] = []

    def walk(part: Any, above: tuple[Any, ...], *, inside: bool) -> None:
        def is_special(node: Any) -> bool:
            return node is not part and (_is_unkeyed_mapping(node) or _is_a(node, equinox_module))

        for path, leaf in jax.tree_util.tree_leaves_with_path(part, is_leaf=is_special):
            where = (*above, *path)
            if _is_unkeyed_mapping(leaf):
                walk(_as_dict(leaf), where, inside=inside)
            elif _is_a(leaf, equinox_module):
                walk(leaf, where, inside=True)
            elif in_equinox(leaf) if inside else _is_array(leaf) or isinstance(leaf, SCALARS):
                found.append((keystr(where[:-1] if where and where[-1] == WRAPPED else where), leaf))

    walk(_as_dict(tree) if _is_unkeyed_mapping(tree) else tree, (), inside=_is_a(tree, equinox_module))
    return found


def _is_unkeyed_mapping(node: Any) -> bool:
    """Return whether a node is a mapping whose keys JAX does not know, such as a `FlatMap` of Haiku."""
    if not isinstance(node, Mapping) or isinstance(node, dict):
        return False
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(node)]
    return any(isinstance(key, jax.tree_util.FlattenedIndexKey) for path in paths for key in path[:1])


def _as_dict(node: Any) -> Any:
    """Convert a mapping to dicts, or return it unchanged if the conversion would change the order of the leaves.

    Each leaf gets its noise by position, so names must be in the order of `jax.tree.leaves`.
    """

    def convert(part: Any) -> Any:
        return {key: convert(value) for key, value in part.items()} if isinstance(part, Mapping) else part

    made = convert(node)
    before, after = jax.tree.leaves(node), jax.tree.leaves(made)
    same = len(before) == len(after) and all(one is other for one, other in zip(before, after, strict=True))
    return made if same else node


def _is_a(node: Any, kind: Any) -> bool:
    return kind is not None and isinstance(node, kind)


def _class(module: str, name: str) -> Any:
    """Return a class of a library; None if the program has not imported the library."""
    return getattr(sys.modules.get(module), name, None)


def _listed(leaves: dict[str, Leaf]) -> str:
    return ", ".join(f"{name} {leaf.global_shape}" for name, leaf in leaves.items())
