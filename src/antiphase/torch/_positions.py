"""Gives position embeddings one row per example, although models look them up once for the whole batch.

GPT-2, BERT, DistilBERT and others look up `position_ids` of shape (1, length) and add the result to all examples. The
layer then has only one row of gradients, the sum over the examples, so these gradients cannot be clipped per example.
`expand_positions` therefore repeats the input of the layer for all examples.

The input is repeated only for embeddings in models of the transformers library, since these models add the result to
all examples. Other code may use only the first row of the result. All gradients would then be attributed to the first
example.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._batches import tensors_in

# Names of tables in T5, MPNet, WavLM and others that are looked up for pairs of positions, once for all examples.
RELATIVE = ("relative_attention_bias", "rel_attn_embed")
# PEFT's prompt tuning, p-tuning and prefix tuning compute one prompt and repeat it for all examples.
PROMPTS = ("PromptEmbedding", "MultitaskPromptEmbedding", "CPTEmbedding", "PromptEncoder", "PrefixEncoder")
LEAST = 1e-12  # an example whose squared norm is below this multiple of the largest one counts as having no gradient
HINT = "look up position embeddings for every example, with position_ids=torch.arange(length).expand(len(tokens), -1)"
CONTAINERS = ("torch.", "peft.", "opacus.")  # modules whose classes only contain or wrap the layers of a model


def check_positions(module: nn.Module) -> None:
    """Raise `InvalidArgument` for trained prompts and tables of relative positions, which all examples share."""
    for name, layer in module.named_modules():
        if type(layer).__name__ in PROMPTS and any(p.requires_grad for p in layer.parameters()):
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) computes one prompt for all examples, so its gradient cannot "
                "be computed for each example.",
                hint="use a different PEFT method, such as LoRA",
            )
        if name.rpartition(".")[2] in RELATIVE and any(p.requires_grad for p in layer.parameters()):
            raise InvalidArgument(
                f"Layer {name!r} is looked up for pairs of positions, once for all examples, so its gradient cannot be "
                "computed for each example.",
                hint=f"freeze it before make_private: model.get_submodule({name!r}).requires_grad_(False); "
                "LoRA freezes it for you",
            )


def expand_positions(module: nn.Module, *, batch_first: bool = True) -> None:
    """During training, make trained embeddings in models of transformers repeat an input of one row for all examples.

    The outputs of the model do not change, because PyTorch would broadcast the embedding's single row anyway. A forward
    hook of `module` counts the examples, so no input is repeated if only a part of the module is called.

    Args:
        module: model, before or after it is wrapped.
        batch_first: whether the batch is the first dimension of the inputs.
    """
    batch = _Batch(0 if batch_first else 1)
    for name, layer in module.named_modules():
        is_trained = isinstance(layer, nn.Embedding) and layer.weight.requires_grad
        if is_trained and _caller(module, name).startswith("transformers."):
            layer.register_forward_pre_hook(batch.expand)
    module.register_forward_pre_hook(batch.start, with_kwargs=True)
    module.register_forward_hook(batch.end, always_call=True)


def check_repeated(name: str, parameter: torch.Tensor, squares: torch.Tensor, total: torch.Tensor) -> None:
    """Raise `Refused` if some examples have no gradient for a table, because the model ignores rows that were repeated.

    Args:
        name: name of the parameter.
        parameter: any trained parameter. Only tables whose lookups were repeated are checked.
        squares: upper bound on the squared norm of each example's gradient of the parameter, shape (examples,).
        total: squared norm of each example's whole gradient, shape (examples,).
    """
    if not getattr(parameter, "_is_repeated", False):
        return
    unused = squares <= 2 * parameter.numel() * torch.finfo(parameter.dtype).tiny
    if not unused.all() and bool((unused & (total > LEAST * total.max())).any()):
        raise Refused(
            f"Position embeddings are looked up in {name!r} once for all examples, but then only some rows of the "
            "result are used. The gradients of all examples would be attributed to a single example.",
            hint=HINT,
        )


def _caller(module: nn.Module, name: str) -> str:
    """Return `__module__` of the class that calls a layer: the innermost enclosing layer that is not a container."""
    parts = name.split(".")[:-1]
    for depth in range(len(parts), -1, -1):
        kind = type(module.get_submodule(".".join(parts[:depth]))).__module__
        if not kind.startswith(CONTAINERS):
            return kind
    return ""


@final
class _Batch:
    """Hooks that count the examples of a forward pass, and repeat an input of one row once per example."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._examples: int | None = None
        self._expanded: set[int] = set()  # layers whose input was repeated in this pass

    def start(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        sizes = [t.shape[self._dimension] for t in tensors_in((inputs, named)) if t.dim() > self._dimension]
        # Inputs with one row, such as position ids, say nothing about the number of examples.
        self._examples = next((size for size in sizes if size > 1), None)
        self._expanded.clear()

    def end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._examples = None

    def expand(self, layer: Any, inputs: tuple[Any, ...]) -> Any:
        if self._examples is None or not (layer.training and torch.is_grad_enabled()) or not inputs:
            return None
        rows, d = inputs[0], self._dimension
        if not isinstance(rows, torch.Tensor) or rows.dim() < 2 or rows.shape[d] != 1:
            return None
        if id(layer) in self._expanded:
            raise Refused(
                f"An {type(layer).__name__} of {layer.num_embeddings} vectors is called twice in one forward pass, "
                "each time with a single input for all examples.",
                hint=HINT,
            )
        self._expanded.add(id(layer))
        layer.weight._is_repeated = True
        shape = [self._examples if i == d else -1 for i in range(rows.dim())]
        return (rows.expand(shape), *inputs[1:])
