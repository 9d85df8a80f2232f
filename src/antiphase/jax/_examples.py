"""Finds the axis of the examples in each array of a batch, and the mesh axes over which the examples are sharded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from antiphase import _check


@dataclass(frozen=True)
class SplitExamples:
    """A batch, separated into arrays with one row per example and arrays that all examples share.

    Args:
        arrays: arrays with the examples along the first axis.
        rebuild: function that maps one row of each array to the arguments of the loss.
    """

    arrays: list[Any]
    rebuild: Callable[[list[Any]], Any]


def split_examples(batch: Any, batch_axis: Any, keep_batch_axis: bool, count: int) -> SplitExamples:
    """Return the arrays of the examples, and a function that rebuilds the loss's arguments from one row of each array.

    Args:
        batch: tuple of arrays or trees.
        batch_axis: as for `clipped_sum`.
        keep_batch_axis: True if each example keeps a batch axis of size 1.
        count: number of examples, which is the length of the mask.
    """
    if not isinstance(batch, (tuple, list)):
        hint = "pass a tuple of the loss's arguments after the parameters, such as (x, y)"
        raise _check.invalid("clipped_sum", "batch", "a tuple", type(batch).__name__, hint)
    leaves, tree = jax.tree.flatten(tuple(batch))
    axes = _axis_of_each(batch_axis, tuple(batch), len(leaves))
    arrays = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None:
            continue
        array = jnp.asarray(leaf)
        if not -array.ndim <= axis < array.ndim or array.shape[axis] != count:
            raise _check.invalid(
                "clipped_sum",
                "batch",
                f"arrays with {count} examples along axis {axis}, as many as the mask has",
                f"an array of shape {array.shape}",
                "pass the mask of this batch; if the examples are along a different axis, set batch_axis",
            )
        arrays.append(jnp.moveaxis(array, axis, 0))

    def rebuild(example: list[Any]) -> Any:
        rows = iter(example)

        def argument(leaf: Any, axis: int | None) -> Any:
            if axis is None:
                return leaf
            row = next(rows)
            return jnp.expand_dims(row, axis) if keep_batch_axis else row

        return jax.tree.unflatten(tree, [argument(leaf, axis) for leaf, axis in zip(leaves, axes, strict=True)])

    return SplitExamples(arrays, rebuild)


def _axis_of_each(batch_axis: Any, batch: tuple[Any, ...], count: int) -> list[int | None]:
    """Return the batch axis of each array. `batch_axis` is a tree prefix of the batch, as for `jax.vmap`."""
    given = tuple(batch_axis) if isinstance(batch_axis, list) else batch_axis
    try:
        found = jax.tree.broadcast(given, batch, is_leaf=lambda part: part is None)
    except ValueError:
        found = None
    axes = jax.tree.leaves(found, is_leaf=lambda part: part is None)
    if len(axes) != count or not all(axis is None or (isinstance(axis, int) and axis is not True) for axis in axes):
        hint = "pass an integer, or a tuple with an integer or None for each element of the batch"
        raise _check.invalid("clipped_sum", "batch_axis", "valid as in_axes of jax.vmap", batch_axis, hint)
    if all(axis is None for axis in axes):
        hint = "None is for arrays that all examples share"
        raise _check.invalid("clipped_sum", "batch_axis", "an axis for at least one array", batch_axis, hint)
    return axes


def on_batch_axes(function: Callable[..., Any], params: Any, arrays: list[Any], used: jax.Array) -> Any:
    """Call function(params, arrays, used), and let the compiler handle the mesh axes of the examples.

    On a mesh with explicit axes, `jax.vmap` raises an error if parameters are sharded over the mesh axis of the
    examples. Inside the function, the mesh axes of the examples are therefore automatic: the compiler decides which
    data to move, and the function computes the same values as on one device. Other mesh axes stay explicit, and the
    loss sees them as in training without privacy. The sums have the shardings of the parameters.

    Args:
        function: function (params, arrays, used) -> (sums, values of each example), written as for one device.
        params: tree of parameters.
        arrays: arrays with the examples along the first axis.
        used: mask with one entry per example; False for padding.
    """
    axes, mesh = explicit_axes([*arrays, used])
    if not axes:
        return function(params, arrays, used)

    def without_sharding(array: Any) -> Any:
        return jax.ShapeDtypeStruct(jnp.shape(array), jnp.result_type(array))  # type: ignore[no-untyped-call]

    replicated = jax.tree.map(without_sharding, (params, arrays, used))
    _, each = jax.eval_shape(function, *replicated)
    along = next(spec[0] for spec in map(_spec, [used, *arrays]) if spec and spec[0] is not None)
    outputs = (
        jax.tree.map(_sharding, params),
        jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(along, *[None] * (x.ndim - 1))), each),  # type: ignore[no-untyped-call]
    )
    return jax.jit(jax.sharding.auto_axes(function, axes=axes, out_sharding=outputs))(params, arrays, used)


def explicit_axes(arrays: Sequence[Any]) -> tuple[tuple[str, ...], Any]:
    """Return the explicit mesh axes over which the first axis of any of the arrays is sharded, and their mesh."""
    found: dict[str, None] = {}
    mesh = None
    for array in arrays:
        at, spec = _sharding(array), _spec(array)
        names = (spec[0] if isinstance(spec[0], tuple) else (spec[0],)) if spec else ()
        kinds = dict(zip(at.mesh.axis_names, at.mesh.axis_types, strict=True)) if at.mesh.axis_names else {}
        for name in names:
            if name is not None and kinds.get(name) == AxisType.Explicit:
                found[name], mesh = None, at.mesh
    return tuple(found), mesh


def _sharding(array: Any) -> Any:
    return jax.typeof(array).sharding


def _spec(array: Any) -> Any:
    return _sharding(array).spec
