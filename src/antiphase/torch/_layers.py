"""Gradients and norms of single examples, where those of Opacus are not what is summed."""

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


def correct(module: Any) -> None:
    """Give a module that Opacus has wrapped the functions of this file in place of its own; Opacus stays as it is."""
    if hasattr(module, "GRAD_SAMPLERS"):
        module.GRAD_SAMPLERS = {**module.GRAD_SAMPLERS, nn.Conv2d: conv_gradients}
    if hasattr(module, "NORM_SAMPLERS"):
        ours: dict[type[nn.Module], Any] = dict.fromkeys(CONVOLUTIONS, conv_norms)
        ours |= {nn.Linear: linear_norms, nn.Embedding: embedding_norms}
        module.NORM_SAMPLERS = {**module.NORM_SAMPLERS, **ours}
        module.kept = Kept(module)
    if hasattr(module, "rearrange_grad_samples"):
        module.rearrange_grad_samples = partial(refuse_some_examples, module.rearrange_grad_samples)
    for layer in module.modules():
        if isinstance(layer, DPRNNBase):
            layer.register_forward_pre_hook(check_sequences, with_kwargs=True)


def conv_gradients(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Opacus's, which cuts its patches out of memory as if that were in the order of the dimensions.

    With channels last, or the batch last, it would take other numbers of the example, or those of another example.
    Images of one pixel are contiguous with channels last too, and would be padded to larger ones that are not.
    """
    inputs = activations[0]
    in_order = inputs.contiguous().view(-1).view(inputs.shape)
    found: Found = compute_conv_grad_sample(layer, [in_order], backprops)
    return found


def conv_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients of a convolution. An input is in at most as many patches as the kernel has places."""
    places, positions = math.prod(layer.kernel_size), math.prod(backprops.shape[2:])
    seen = {layer.weight: math.sqrt(places) * activations[0].flatten(1).norm(dim=1)}
    long = backprops.flatten(1).norm(dim=1)
    return {
        p: allowing(rows.flatten(1).norm(dim=1).square(), long * seen.get(p, math.sqrt(positions)))
        for p, rows in conv_gradients(layer, activations, backprops).items()
    }


def embedding_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients of a table."""
    long = backprops.flatten(1, -2).norm(dim=2).sum(1) if backprops.dim() > 2 else torch.zeros_like(backprops[:, 0])
    found = compute_embedding_norm_sample(layer, [activations[0].contiguous()], backprops)
    return {p: allowing(norms.square(), long) for p, norms in found.items()}


def linear_norms(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Found:
    """Norms of the gradients, for any number of dimensions between the first and the last.

    With T positions the gradient is G = sum_t g_t a_t^T, so ||G||^2 = sum_st <g_s, g_t> <a_s, a_t>.
    """
    if backprops.dim() < 3:
        found: Found = compute_linear_norm_sample(layer, activations, backprops)
        return found
    g, a = (x.flatten(1, -2) for x in (backprops, activations[0].to(backprops.dtype)))
    long, norms = g.norm(dim=2), {}
    if layer.weight.requires_grad:
        square = ((g @ g.mT) * (a @ a.mT)).sum((1, 2)).clamp(min=0)
        norms[layer.weight] = allowing(square, (long * a.norm(dim=2)).sum(1))
    if layer.bias is not None and layer.bias.requires_grad:
        norms[layer.bias] = allowing(g.sum(1).square().sum(1), long.sum(1))
    return norms


def allowing(square: torch.Tensor, long: torch.Tensor) -> torch.Tensor:
    """The norm of a sum over positions, with what rounding may have taken from it.

    Norms and gradients are computed in different ways, and rounding errors of both are relative to what is added up.
    Where positions cancel, that is far more than the sum: an example with such positions must not pass for a short one.

    Args:
        square: of the norm as computed.
        long: the sum of the norms of the single positions, or more.
    """
    return (square + 16 * torch.finfo(square.dtype).eps * long.square()).sqrt()


@final
class Kept:
    """The gradients of single examples in layers whose norms ghost clipping takes from them.

    They are clipped and summed as they are, like those of the other modes. A sum from another backward pass would be of
    other numbers: rounding is not the same, and Opacus takes the gradients of a layer that it does not know from a copy
    of it, which has neither other inputs than the first nor attributes set later. With FSDP nothing is kept.
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

    def sum_up(self, factors: torch.Tensor) -> None:
        """Put the sums of the clipped gradients into `p.grad`, and forget the gradients."""
        for p, rows in self._rows.items():
            p.grad = torch.einsum("i,i...", factors.to(rows), rows).view_as(p)
        self.forget()

    def forget(self) -> None:
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
    """Opacus's method, for layers that are given all examples each time they are used.

    It adds the rows of all uses up, the first to the first: those of a part of the batch would be counted to others.
    Recurrent layers alone may have fewer and fewer rows: those of sequences that have not ended, which are the first.
    """
    activations, backprops = rearrange(module=module, **given)
    whole: Any = module.max_batch_len
    if len(backprops) != whole and not isinstance(module, RNNLinear):
        raise _some(module, len(backprops), whole)
    return activations, backprops


def check_sequences(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A hook for recurrent layers: row i is to be example i."""
    given = inputs[0] if inputs else named["input"]
    refuse_another_order(layer, given)
    refuse_some_sequences(layer, given)


def refuse_another_order(layer: nn.Module, given: Any) -> None:
    """Packed by length, rows would be other examples here than in the other layers.

    The norm of a row would be that of parts of two examples, and each would be clipped by the other.
    """
    order = given.sorted_indices if isinstance(given, PackedSequence) else None
    if order is not None and not torch.equal(order, torch.arange(len(order), device=order.device)):
        raise Refused(
            f"The sequences that {type(layer).__name__} is given were sorted by length, so its examples are in another "
            "order than those of the other layers.",
            hint="sort the whole batch by length before the model sees it, such as in collate_fn, and pack it with "
            "enforce_sorted=True",
        )


def refuse_some_sequences(layer: nn.Module, given: Any) -> None:
    """There must be as many sequences each time that the layer is used in a pass."""
    batch_dim = 0 if layer.batch_first else 1
    rows = int(given.batch_sizes[0]) if isinstance(given, PackedSequence) else given.shape[batch_dim]
    for cell in layer.modules():
        waiting = vars(cell).get("activations", ()) if isinstance(cell, RNNLinear) else ()
        before = max((len(held[0]) for held in waiting), default=rows)
        if before != rows:
            raise _some(layer, rows, before)


def _some(layer: nn.Module, rows: int, others: int) -> Refused:
    return Refused(
        f"A {type(layer).__name__} was used with {rows} rows and with {others} in one pass, so it is not known which "
        "examples they are.",
        hint="give a layer all examples each time, and choose among its outputs",
    )
