"""Per-example gradients and norms for layers where those of Opacus are wrong."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, final

import torch
from opacus.grad_sample.conv import compute_conv_grad_sample
from opacus.grad_sample.embedding_norm_sample import compute_embedding_norm_sample
from opacus.grad_sample.linear import compute_linear_norm_sample
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.rnn import PackedSequence

from antiphase._errors import Refused
from antiphase._run import refuse_pickle

Found = dict[torch.Tensor, torch.Tensor]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def patch_samplers(module: Any) -> None:
    """Make a module that Opacus has wrapped use the functions of this file. Opacus itself is not changed."""
    if hasattr(module, "GRAD_SAMPLERS"):
        module.GRAD_SAMPLERS = {**module.GRAD_SAMPLERS, nn.Conv2d: conv_gradients}
    if hasattr(module, "NORM_SAMPLERS"):
        ours: dict[type[nn.Module], Any] = dict.fromkeys(CONVOLUTIONS, conv_norms)
        ours |= {nn.Linear: linear_norms, nn.Embedding: embedding_norms}
        module.NORM_SAMPLERS = {**module.NORM_SAMPLERS, **ours}
        module.kept_gradients = KeptGradients(module)
    if hasattr(module, "rearrange_grad_samples"):
        module.rearrange_grad_samples = partial(refuse_some_examples, module.rearrange_grad_samples)
    for layer in module.modules():
        if isinstance(layer, DPRNNBase):
            layer.register_forward_pre_hook(check_sequences, with_kwargs=True)


def conv_gradients(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Call Opacus's function with contiguous inputs: it reads patches as if memory followed the order of dimensions.

    With channels or batch last, it would read other values of the example, or those of another example. An image of one
    pixel counts as contiguous even with channels last, but its padded version is not.
    """
    inputs = activations[0]
    in_order = inputs.contiguous().view(-1).view(inputs.shape)
    found: Found = compute_conv_grad_sample(layer, [in_order], backprops)
    return found


def conv_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients of a convolution. Each input is in at most as many patches as the kernel has entries."""
    places, positions = math.prod(layer.kernel_size), math.prod(backprops.shape[2:])
    seen = {layer.weight: math.sqrt(places) * activations[0].flatten(1).norm(dim=1)}
    total = backprops.flatten(1).norm(dim=1)
    return {
        p: norm_with_margin(rows.flatten(1).norm(dim=1).square(), total * seen.get(p, math.sqrt(positions)))
        for p, rows in conv_gradients(layer, activations, backprops).items()
    }


def embedding_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients of an embedding table."""
    total = backprops.flatten(1, -2).norm(dim=2).sum(1) if backprops.dim() > 2 else torch.zeros_like(backprops[:, 0])
    found = compute_embedding_norm_sample(layer, [activations[0].contiguous()], backprops)
    return {p: norm_with_margin(norms.square(), total) for p, norms in found.items()}


def linear_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients of a linear layer, for any number of dimensions between the first and the last.

    With T positions the gradient is G = sum_t g_t a_t^T, so ||G||^2 = sum_st <g_s, g_t> <a_s, a_t>.
    """
    if backprops.dim() < 3:
        found: Found = compute_linear_norm_sample(layer, activations, backprops)
        return found
    g, a = (x.flatten(1, -2) for x in (backprops, activations[0].to(backprops.dtype)))
    total, norms = g.norm(dim=2), {}
    if layer.weight.requires_grad:
        square = ((g @ g.mT) * (a @ a.mT)).sum((1, 2)).clamp(min=0)
        norms[layer.weight] = norm_with_margin(square, (total * a.norm(dim=2)).sum(1))
    if layer.bias is not None and layer.bias.requires_grad:
        norms[layer.bias] = norm_with_margin(g.sum(1).square().sum(1), total.sum(1))
    return norms


def norm_with_margin(square: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The norm of a sum over positions, plus a margin for rounding.

    Norms and gradients are computed in different ways, and the rounding errors of both are relative to the terms of the
    sum. If positions cancel, the terms are far larger than the sum, and the computed norm could be far too small.

    Args:
        square: square of the norm as computed.
        total: at least the sum of the norms of the single positions.
    """
    return (square + 16 * torch.finfo(square.dtype).eps * total.square()).sqrt()


@final
class KeptGradients:
    """Per-example gradients of layers whose ghost norms are computed from them.

    They are clipped and summed directly, as in the other modes. A second backward pass would compute different values:
    it rounds differently, and for layers that Opacus does not know it uses a copy of the layer, which has only the
    first input and no attributes that were set later. With FSDP nothing is kept.
    """

    def __init__(self, module: Any) -> None:
        self._rows: Found = {}
        if isinstance(module._module, FSDPModule):
            return
        module.GRAD_SAMPLERS = {kind: partial(self._keep, sampler) for kind, sampler in module.GRAD_SAMPLERS.items()}
        for layer in module.modules():
            if hasattr(layer, "ft_compute_sample_grad"):
                layer.ft_compute_sample_grad = partial(self._keep_copied, layer.ft_compute_sample_grad)

    __reduce_ex__ = refuse_pickle

    def sum_into_grad(self, factors: torch.Tensor) -> None:
        """Put the sums of the clipped gradients into `p.grad`, and drop the per-example gradients."""
        for p, rows in self._rows.items():
            p.grad = torch.einsum("i,i...", factors.to(rows), rows).view_as(p)
        self.clear()

    def clear(self) -> None:
        """Drop the gradients."""
        self._rows.clear()

    def _keep(self, sampler: Any, *given: Any) -> Found:
        found: Found = sampler(*given)
        for p, rows in found.items():
            self._add(p, rows)
        return found

    def _keep_copied(self, sampler: Any, parameters: list[torch.Tensor], *given: Any) -> Any:
        found = sampler(parameters, *given)
        for p, rows in zip(parameters, found, strict=True):
            self._add(p, rows)
        return found

    def _add(self, parameter: torch.Tensor, rows: torch.Tensor) -> None:
        if parameter.requires_grad:
            before = self._rows.get(parameter)
            self._rows[parameter] = rows if before is None else before + rows


def refuse_some_examples(rearrange: Any, *, module: nn.Module, **given: Any) -> Any:
    """Call Opacus's method. Refuse layers that were not given all examples each time they were used.

    The method adds up the rows of all uses by position, so rows of a part of the batch would be added to the wrong
    examples. Only recurrent layers may have fewer and fewer rows: those of the sequences that have not ended come
    first.
    """
    activations, backprops = rearrange(module=module, **given)
    whole: Any = module.max_batch_len
    if len(backprops) != whole and not isinstance(module, RNNLinear):
        raise _some(module, len(backprops), whole)
    return activations, backprops


def check_sequences(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Forward hook for recurrent layers: row i must be example i."""
    given = inputs[0] if inputs else named["input"]
    refuse_another_order(layer, given)
    refuse_some_sequences(layer, given)


def refuse_another_order(layer: nn.Module, given: Any) -> None:
    """Refuse sequences sorted by length: row i would be another example than in the other layers.

    The norm of a row would combine two examples, and each would be clipped by the norm of the other.
    """
    order = given.sorted_indices if isinstance(given, PackedSequence) else None
    if order is not None and not torch.equal(order, torch.arange(len(order), device=order.device)):
        raise Refused(
            f"The input of {type(layer).__name__} was sorted by length, so its examples are in another order than in "
            "the other layers.",
            hint="sort the whole batch by length before it enters the model, such as in collate_fn, and pack it with "
            "enforce_sorted=True",
        )


def refuse_some_sequences(layer: nn.Module, given: Any) -> None:
    """Refuse a layer that is used with different numbers of sequences in one pass."""
    batch_dim = 0 if layer.batch_first else 1
    rows = int(given.batch_sizes[0]) if isinstance(given, PackedSequence) else given.shape[batch_dim]
    for cell in layer.modules():
        waiting = vars(cell).get("activations", ()) if isinstance(cell, RNNLinear) else ()
        before = max((len(held[0]) for held in waiting), default=rows)
        if before != rows:
            raise _some(layer, rows, before)


def _some(layer: nn.Module, rows: int, others: int) -> Refused:
    return Refused(
        f"A {type(layer).__name__} was used with {rows} rows and with {others} in one pass, so it is unknown which "
        "examples they belong to.",
        hint="give the layer all examples each time, and select from its outputs",
    )
