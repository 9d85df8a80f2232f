"""Finds losses that depend on other devices, or on the device that they run on, in `jax.shard_map` and `jax.pmap`.

Inside these functions, `clipped_sum` computes on each device the gradients of the device's own examples. A loss
communicates, for example, if it has synchronised batch statistics or sharded parameters. Then one of three things goes
wrong: the loss sees examples of other devices, its gradients are summed over devices before they are clipped, or each
device has only a part of a gradient and clips it by the norm of that part.

The gradient of an example must not depend on the device either. It does, for example, if dropout has one key per
device. Leaving out one example moves others to a different device, so their gradients would change too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxprs_in_params

from antiphase._errors import Refused

HARMLESS = ("pvary", "pcast")  # operations that name a mesh axis, but send nothing
POSITION = "axis_index"  # operation that returns a device's index along a mesh axis
HINT = (
    "call clipped_sum outside of jax.shard_map, on a mesh with AxisType.Auto or AxisType.Explicit, where parameters "
    "may be sharded. Replace synchronised batch normalisation by layer or group normalisation"
)


def manual_axes() -> frozenset[str]:
    """Return the mesh axes of `jax.shard_map` or `jax.pmap` around the caller; empty outside of them."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def check_no_communication(gradients: Callable[..., Any], params: Any, arrays: list[Any]) -> None:
    """Raise `Refused` if the gradients of the examples depend on other devices, or on the device they are computed on.

    The gradients depend on other devices if the loss communicates. They depend on their own device if the loss asks for
    the device's index. They also depend on it if a value that the loss closes over, or an array that all examples
    share, differs between devices. With check_vma=False and in `jax.pmap`, JAX does not know which of these values
    differ. Then a value is refused if it looks like a random key, and accepted otherwise.

    Call this function only inside `jax.shard_map` or `jax.pmap`. Elsewhere there is nothing to check, and the gradients
    would be traced a second time.

    Args:
        gradients: function (params, arrays) -> gradients of one device's examples.
        params: tree of parameters.
        arrays: arrays with the examples along the first axis.
    """
    axes, made = manual_axes(), jax.make_jaxpr(gradients)(params, arrays)
    for along in sorted(varying(made.consts) & axes):
        raise _depends_on_device(
            f"it uses a value that differs along the mesh axis {along!r} and is neither a parameter nor an example"
        )
    if not varying(arrays) and any(isinstance(value, jax.core.Tracer) and _is_key(value) for value in made.consts):
        raise _depends_on_device(
            "it uses a random key that may differ between devices (JAX cannot tell with check_vma=False or jax.pmap)"
        )
    for name, along in _collectives(made.jaxpr, axes):
        if name == POSITION:
            raise _depends_on_device(f"it calls {POSITION} for the mesh axis {along!r}")
        raise Refused(
            f"The loss communicates between devices: it calls {name} over the mesh axis {along!r}. In clipped_sum, the "
            "gradient of an example would then depend on examples of other devices, or be clipped by a wrong norm.",
            hint=HINT,
        )


def _depends_on_device(how: str) -> Refused:
    return Refused(
        f"The loss depends on the device that it runs on: {how}. Leaving out one example moves others to a different "
        "device. Their gradients would change too, so the sum could change by more than the clipping norm.",
        hint="for dropout, pass batch.keys of antiphase.jax.batches: these keys belong to the examples",
    )


def _is_key(array: Any) -> bool:
    """Return whether an array is a random key, or has the dtype and shape of one."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return True
    return array.dtype == jnp.uint32 and array.shape in ((2,), (4,))


def varying(tree: Any) -> frozenset[Any]:
    """Return the mesh axes of `jax.shard_map` along which an array of a tree differs between devices."""
    return frozenset[Any]().union(*(varying_axes(x) for x in jax.tree.leaves(tree)))


def varying_axes(array: Any) -> frozenset[Any]:
    """Return the mesh axes of `jax.shard_map` along which an array differs between devices."""
    kind: Any = jax.typeof(array)
    # The name of the attribute depends on JAX's version.
    return frozenset(kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying)


def check_distributed(examples_axes: frozenset[Any]) -> None:
    """Raise `Refused` if all devices have the same examples: `jax.lax.psum` would count every example several times.

    With check_vma=False and in `jax.pmap`, JAX does not know which values differ between devices, so nothing is
    checked.

    Args:
        examples_axes: mesh axes along which the examples differ.
    """
    axes = sorted(manual_axes())
    is_known = any(varying_axes(jax.lax.axis_index(name)) for name in axes)
    if is_known and not examples_axes:
        raise Refused(
            f"Inside jax.shard_map over the mesh axes {', '.join(axes)}, all devices have the same examples. The sum "
            "over the devices would count each example several times.",
            hint="shard the batch and its mask, for example with in_specs=PartitionSpec('data'); to compute the same "
            "sum on all devices, call clipped_sum outside of jax.shard_map",
        )


def check_whole(params_axes: frozenset[Any], examples_axes: frozenset[Any]) -> None:
    """Raise `Refused` if parameters differ between devices that have the same examples.

    Each device then has only a part of the parameters, and would clip only the corresponding part of a gradient.

    Args:
        params_axes: mesh axes along which the parameters differ.
        examples_axes: mesh axes along which the examples differ.
    """
    for name in sorted(params_axes - examples_axes):
        raise Refused(
            f"Along the mesh axis {name!r}, devices have the same examples but different parameters. In clipped_sum, "
            "each part of a gradient would be clipped on its own.",
            hint=HINT,
        )


def _collectives(jaxpr: Jaxpr, axes: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each operation that communicates over one of the mesh axes, and that axis."""
    for operation in jaxpr.eqns:
        for key in ("axes", "axis_name"):
            given = operation.params.get(key, ())
            along = [part for part in (given if isinstance(given, tuple) else (given,)) if part in axes]
            if along and operation.primitive.name not in HARMLESS:
                yield operation.primitive.name.removesuffix("_invariant"), along[0]
        for inner in jaxprs_in_params(operation.params):
            yield from _collectives(inner, axes)
