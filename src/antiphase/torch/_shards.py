"""Determines which part of each parameter's noise this process generates, and prepares gradients sharded by FSDP.

Noise is generated for leaves. Parameter i of the list is the leaf named str(i): a flat array of the parameter's
entries, in C order (last axis fastest). The noise of an entry depends only on the leaf name and the flat index, so it
is the same for every sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from antiphase._errors import InvalidArgument, Refused
from antiphase._noise import Leaf
from antiphase._run import Transport

Leaves = dict[str, Leaf]
FIXED_REDUCTION = (
    "set_gradient_divide_factor",
    "set_requires_gradient_sync",
    "set_requires_all_reduce",
    "set_is_last_backward",
    "set_all_reduce_hook",
    "set_custom_reduce_scatter",
)


def whole_leaves(parameters: Sequence[torch.Tensor]) -> Leaves:
    """Return one leaf for each whole parameter. Every process opens the run with these leaves.

    >>> whole_leaves([torch.zeros(2, 3)])["0"].size
    6
    """
    return {str(i): Leaf((p.numel(),)) for i, p in enumerate(parameters)}


def own_leaves(parameters: Sequence[torch.Tensor], ranks: Transport) -> Leaves:
    """Return the part of each leaf that this rank generates noise for.

    If parameters are sharded, the parts are the rank's own shards. If parameters are replicated, they are concatenated,
    and each rank gets an equal slice.
    """
    if is_sharded(parameters):
        return {str(i): _shard(p, ranks) for i, p in enumerate(parameters)}
    return _slices(parameters, ranks)


def is_sharded(parameters: Sequence[torch.Tensor]) -> bool:
    """Return whether the parameters are sharded over the ranks (FSDP2). Raise `Refused` if only some are."""
    kinds = {isinstance(p, DTensor) for p in parameters}
    if len(kinds) > 1:
        raise Refused(
            "Some parameters are sharded and some are not.",
            hint="call fully_shard on the whole model, or on no part of it",
        )
    return kinds == {True}


def _slices(parameters: Sequence[torch.Tensor], ranks: Transport) -> Leaves:
    """Return this rank's slice of the concatenated parameters. The lengths of slices differ by at most one entry."""
    stops = list(accumulate(p.numel() for p in parameters))
    first, last = (stops[-1] * r // ranks.size for r in (ranks.rank, ranks.rank + 1))
    leaves = {}
    for i, (p, stop) in enumerate(zip(parameters, stops, strict=True)):
        start, n = stop - p.numel(), p.numel()
        inside = [min(max(edge - start, 0), n) for edge in (first, last)]
        leaves[str(i)] = Leaf((n,), ((inside[0], inside[1]),))
    return leaves


def _shard(parameter: Any, ranks: Transport) -> Leaf:
    """Return the part of a parameter that FSDP2 gives this rank.

    In order, each rank gets the next ceil(rows / number of ranks) rows, until no rows are left.
    """
    if parameter.device_mesh.ndim != 1 or parameter.placements != (Shard(0),):
        raise Refused(
            f"Parameters with placements {parameter.placements} are not supported.",
            hint="use fully_shard on a one-dimensional mesh of all processes",
        )
    if parameter.device_mesh.size() != ranks.size:
        raise Refused(
            f"The model is sharded over {parameter.device_mesh.size()} of {ranks.size} processes.",
            hint="call fully_shard with a mesh of all processes of the default group",
        )
    local = parameter.to_local()
    rows, width = parameter.shape[0], local[0].numel() if len(local) else 0
    height = -(-rows // ranks.size)
    start, stop = (min(r * height, rows) for r in (ranks.rank, ranks.rank + 1))
    if len(local) != stop - start:
        raise Refused(
            f"Rank {ranks.rank} holds {len(local)} of {rows} rows; {stop - start} were expected.",
            hint="shard along the first dimension, as fully_shard does by default",
        )
    return Leaf((parameter.numel(),), ((start * width, stop * width),))


def noise_dtype(parameters: Sequence[torch.Tensor]) -> str:
    """Return the common dtype of the parameters, "float32" or "float64". Raise `InvalidArgument` otherwise."""
    kinds = {p.dtype for p in parameters}
    if kinds == {torch.float32}:
        return "float32"
    if kinds == {torch.float64}:
        return "float64"
    raise InvalidArgument(
        f"Parameters must all be float32 or all float64. Got {sorted(map(str, kinds))}.",
        hint="keep the parameters in float32, and use autocast to compute in lower precision",
    )


def is_vmapped(gradient: torch.Tensor | None) -> bool:
    """Return whether a gradient is a batched tensor inside torch.func.vmap."""
    return gradient is not None and torch._C._functorch.is_batchedtensor(gradient)


def flat_gradient(parameter: Any) -> torch.Tensor:
    """Return a flat view of the part of the gradient that this process holds. A missing gradient is set to zero."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if isinstance(parameter.grad, DTensor):
        local: torch.Tensor = parameter.grad.to_local()
        return local.view(-1)
    if parameter.grad.layout != torch.strided:
        raise Refused(
            f"The gradient of a parameter of shape {tuple(parameter.shape)} is sparse, but its noise is dense.",
            hint="make it dense with p.grad = p.grad.to_dense(), or use layers without sparse=True",
        )
    if not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    view: torch.Tensor = parameter.grad.view(-1)
    return view


def zero_padding(module: Any, is_padded: Callable[[], bool], optimizer: DPOptimizer) -> None:
    """Give weight 0 to an example that is repeated so that all FSDP ranks process the same number of examples.

    Args:
        module: model, wrapped by Opacus for ghost clipping.
        is_padded: function that returns whether the last example of the current batch is a repeated example.
        optimizer: private optimizer, which knows whether this is the last physical batch of the step.
    """
    ghost = module.ghost_gradients
    ghost.is_padded = lambda: not optimizer._check_skip_next_step(pop_next=False) and is_padded()


def fix_reduction(module: nn.Module, ranks: int) -> None:
    """Set how FSDP reduces gradients over the ranks, and make later changes raise `Refused`.

    The noise is calibrated to the sum of the gradients. A later change would affect this sum, but not the noise.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(float(ranks))
            part.set_requires_gradient_sync(True)
            for name in FIXED_REDUCTION:
                setattr(part, name, partial(_refuse_change, name))


def _refuse_change(name: str, *_: Any, **__: Any) -> None:
    raise Refused(
        f"{name} cannot be called on a private module.",
        hint="remove the call: it changes the sum that the noise is calibrated to",
    )
