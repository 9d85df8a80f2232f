"""Several rows per example, such as the sequences of a user: their gradients are added before the sum is clipped.

With k rows per user, a model processes users * k rows, and rows i * k to (i + 1) * k - 1 belong to user i. Every layer
treats the rows separately, so the gradient of a user is the sum of the gradients of the k rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.modules.conv import _ConvNd

from antiphase._check import invalid
from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._ghost import conv_gradients

Found = dict[torch.Tensor, torch.Tensor]
MODES = ("hooks", "functorch", "ghost")


def check_grouping(module: nn.Module, rows: int, mode: str, *, batch_first: bool) -> None:
    """Raise `InvalidArgument` if the rows of an example cannot be added with these options.

    Args:
        module: model, not wrapped yet.
        rows: number of rows per example.
        mode: how per-example gradients are computed.
        batch_first: whether the batch is the first dimension of the inputs.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise invalid("make_private", "rows_per_example", "a positive integer", rows, "use 1 for one row per example")
    if rows == 1:
        return
    if mode not in MODES or not batch_first:
        raise InvalidArgument(
            f"rows_per_example={rows} cannot be used with grad_sample_mode={mode!r} and batch_first={batch_first}.",
            hint=f"use one of the modes {', '.join(MODES)}, and make the batch the first dimension",
        )
    trained = [p for layer in module.modules() for p in layer._parameters.values() if p is not None and p.requires_grad]
    if mode == "ghost" and len({id(p) for p in trained}) < len(trained):
        raise InvalidArgument(
            f"rows_per_example={rows} cannot be used with ghost clipping if layers share a trainable weight.",
            hint="use grad_sample_mode='hooks', or freeze the shared weight",
        )
    for name, layer in module.named_modules():
        if isinstance(layer, DPRNNBase):
            raise InvalidArgument(
                f"rows_per_example={rows} cannot be used with the recurrent layer {name!r}.",
                hint="process the sequences of a user as one sequence",
            )


def add_rows(module: Any, rows: int) -> None:
    """Make a wrapped module add the gradients of each group of `rows` consecutive rows, that is, of each example.

    Call this function before `GhostGradients` is created.
    """
    samplers = {kind: conv_gradients if issubclass(kind, _ConvNd) else f for kind, f in module.GRAD_SAMPLERS.items()}
    module.GRAD_SAMPLERS = {kind: partial(_summed, sampler, rows) for kind, sampler in samplers.items()}
    for layer in module.modules():
        if hasattr(layer, "ft_compute_sample_grad"):
            layer.ft_compute_sample_grad = partial(_all_summed, layer.ft_compute_sample_grad, rows)
    module.rearrange_grad_samples = partial(_rearranged, module.rearrange_grad_samples, rows)


def group_inputs(module: Any, rows: int) -> None:
    """Make ghost clipping treat the rows of an example as one row with more positions.

    Positions are, for example, the tokens of a sequence. This works because the formulas for `Linear` and `Embedding`
    in `_ghost.py` add over the positions of a row. For convolutions, ghost clipping then uses per-example gradients
    instead of a formula. Call this function after `GhostGradients` is created.
    """
    module.NORM_SAMPLERS = {
        kind: partial(_grouped, keep, rows)
        for kind, keep in module.NORM_SAMPLERS.items()
        if kind in (nn.Linear, nn.Embedding)
    }


def _summed(sampler: Any, rows: int, layer: Any, activations: Any, backprops: torch.Tensor) -> Found:
    found: Found = sampler(layer, activations, backprops)
    return {p: _by_group(gradients, rows).sum(1) for p, gradients in found.items()}


def _all_summed(sampler: Any, rows: int, *given: Any) -> list[torch.Tensor]:
    return [_by_group(gradients, rows).sum(1) for gradients in sampler(*given)]


def _grouped(keep: Any, rows: int, layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Any:
    return keep(layer, [_by_group(activations[0], rows)], _by_group(backprops, rows))


def _rearranged(rearrange: Any, rows: int, *, module: Any, loss_reduction: str, **given: Any) -> Any:
    """Call Opacus's `rearrange_grad_samples`, then correct Opacus's count of the examples.

    Opacus's function prepares the inputs and output gradients of a layer. If the loss is a mean over the users, the
    gradients must be multiplied by the number of users, but Opacus multiplies them by the number of rows.
    """
    if hasattr(module, "max_batch_len"):  # set by an earlier use of the layer in the same pass
        module.max_batch_len *= rows
    activations, backprops = rearrange(module=module, loss_reduction=loss_reduction, **given)
    if module.max_batch_len % rows:
        raise Refused(
            f"The number of rows that a {type(module).__name__} processed is not a multiple of "
            f"rows_per_example={rows}.",
            hint="pad every example to the same number of rows, as antiphase.torch.users.UserCollate does",
        )
    module.max_batch_len //= rows
    return activations, backprops / rows if loss_reduction == "mean" else backprops


def _by_group(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Change the shape from (examples * rows, ...) to (examples, rows, ...)."""
    if len(tensor) % rows:
        raise Refused(
            f"The number of rows of a layer is not a multiple of rows_per_example={rows}.",
            hint="call every layer with all rows of the batch; look up position embeddings for every row, with "
            "position_ids=torch.arange(length).expand(len(tokens), -1)",
        )
    return tensor.unflatten(0, (-1, rows))  # type: ignore[no-untyped-call]
