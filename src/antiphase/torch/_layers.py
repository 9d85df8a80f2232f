"""Per-example gradients of layers where those of Opacus are wrong, and refusals of rows that are not the examples."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from antiphase._errors import Refused
from antiphase.torch._ghost import GhostGradients, conv_gradients


def patch_samplers(module: Any, parameters: list[torch.Tensor]) -> None:
    """Make a module that Opacus has wrapped use our functions. Opacus itself is not changed."""
    if hasattr(module, "GRAD_SAMPLERS"):
        module.GRAD_SAMPLERS = {**module.GRAD_SAMPLERS, nn.Conv2d: conv_gradients}
    if hasattr(module, "NORM_SAMPLERS"):
        module.ghost_gradients = GhostGradients(module, parameters)
    if hasattr(module, "rearrange_grad_samples"):
        module.rearrange_grad_samples = partial(refuse_some_examples, module.rearrange_grad_samples)
    for layer in module.modules():
        if isinstance(layer, DPRNNBase):
            layer.register_forward_pre_hook(check_sequences, with_kwargs=True)


def refuse_some_examples(rearrange: Any, *, module: nn.Module, **given: Any) -> Any:
    """Call Opacus's method. Refuse layers that were not given all examples each time they were used.

    The method adds up the rows of all uses by position, so rows of a part of the batch would be added to the wrong
    examples. Only recurrent layers may have fewer and fewer rows: those of the sequences that have not ended come
    first.
    """
    activations, backprops = rearrange(module=module, **given)
    whole: Any = module.max_batch_len
    if len(backprops) != whole and not isinstance(module, RNNLinear):
        raise _some(module)
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
            raise _some(layer)


def _some(layer: nn.Module) -> Refused:
    return Refused(
        f"A {type(layer).__name__} was used with different numbers of rows in one pass, so it is unknown which "
        "examples they belong to.",
        hint="give the layer all examples each time, and select from its outputs",
    )
