"""Which part of each parameter's noise this process makes.

Leaves are flat: parameter i of the list is the leaf named str(i) with as many entries as the parameter, in C order.
The noise of an entry depends on leaf name and flat index alone, so every way to cut gives the same noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard

from antiphase._errors import InvalidArgument, Refused
from antiphase._noise import Leaf
from antiphase.torch._world import World

Leaves = dict[str, Leaf]


def whole_leaves(parameters: Sequence[torch.Tensor]) -> Leaves:
    """All of every parameter; what a run is opened with, whatever the number of processes.

    >>> whole_leaves([torch.zeros(2, 3)])["0"].size
    6
    """
    return {str(i): Leaf((p.numel(),)) for i, p in enumerate(parameters)}


def own_leaves(parameters: Sequence[torch.Tensor], world: World) -> Leaves:
    """The part of one rank: its shard of sharded parameters, an equal slice of the whole of replicated ones."""
    if is_sharded(parameters):
        return {str(i): _shard(p, world) for i, p in enumerate(parameters)}
    return _slices(parameters, world)


def is_sharded(parameters: Sequence[torch.Tensor]) -> bool:
    """Whether every rank holds a part of each parameter (FSDP2) rather than all of it."""
    kinds = {isinstance(p, DTensor) for p in parameters}
    if len(kinds) > 1:
        raise Refused(
            "Some parameters are sharded and some are not.", hint="fully_shard the whole model, or nothing of it"
        )
    return kinds == {True}


def _slices(parameters: Sequence[torch.Tensor], world: World) -> Leaves:
    """Parameters one after another, cut into `world.size` stretches of equal length (to within one entry)."""
    stops = list(accumulate(p.numel() for p in parameters))
    first, last = (stops[-1] * r // world.size for r in (world.rank, world.rank + 1))
    leaves = {}
    for i, (p, stop) in enumerate(zip(parameters, stops, strict=True)):
        start, n = stop - p.numel(), p.numel()
        inside = [min(max(edge - start, 0), n) for edge in (first, last)]
        leaves[str(i)] = Leaf((n,), ((inside[0], inside[1]),))
    return leaves


def _shard(parameter: Any, world: World) -> Leaf:
    """The rows that FSDP2 gives this rank: ceil(rows / size) to each rank in turn until there are none left."""
    if parameter.device_mesh.ndim != 1 or parameter.placements != (Shard(0),):
        raise Refused(
            f"The noise of a parameter placed as {parameter.placements} cannot be sharded.",
            hint="use fully_shard on a one-dimensional mesh of all processes",
        )
    if parameter.device_mesh.size() != world.size:
        raise Refused(
            f"The model is sharded over {parameter.device_mesh.size()} of {world.size} processes.",
            hint="fully_shard over all processes of the default group",
        )
    local = parameter.to_local()
    rows, width = parameter.shape[0], local[0].numel() if len(local) else 0
    height = -(-rows // world.size)
    start, stop = (min(r * height, rows) for r in (world.rank, world.rank + 1))
    if len(local) != stop - start:
        raise Refused(
            f"Rank {world.rank} holds {len(local)} of {rows} rows; {stop - start} were expected.",
            hint="shard along the first dimension, as fully_shard does by default",
        )
    return Leaf((parameter.numel(),), ((start * width, stop * width),))


def noise_dtype(parameters: Sequence[torch.Tensor]) -> str:
    """float32 or float64: that of the parameters, which must all have the same."""
    kinds = {p.dtype for p in parameters}
    if kinds == {torch.float32}:
        return "float32"
    if kinds == {torch.float64}:
        return "float64"
    raise InvalidArgument(
        f"Parameters must all be float32 or all float64. Got {sorted(map(str, kinds))}.",
        hint="keep the parameters that the optimizer updates in float32 and compute in lower precision",
    )


def is_mapped(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient stands for several, side by side under torch.func.vmap."""
    return gradient is not None and torch._C._functorch.is_batchedtensor(gradient)


def flat_gradient(parameter: Any) -> torch.Tensor:
    """The gradient that this process holds as a flat view; zeros are put there where there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if isinstance(parameter.grad, DTensor):
        local: torch.Tensor = parameter.grad.to_local()
        return local.view(-1)
    if parameter.grad.layout != torch.strided:
        raise Refused(
            f"The gradient of a parameter of shape {tuple(parameter.shape)} is sparse, and its noise is not.",
            hint="make it dense with p.grad = p.grad.to_dense(), or use layers without sparse=True",
        )
    if not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    view: torch.Tensor = parameter.grad.view(-1)
    return view
