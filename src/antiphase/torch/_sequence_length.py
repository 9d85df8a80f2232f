"""Refuses sequence models in which the longest example of a batch affects the computation for all other examples.

In transformers, rotary embeddings of type "dynamic" or "longrope" choose their frequencies by the largest position in
the batch. In BigBird, the attention of every example depends on the padded length of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from antiphase._errors import InvalidArgument, Refused


def check_lengths(module: nn.Module) -> None:
    """Raise `InvalidArgument` for BigBird's sparse attention, and make rotary embeddings refuse long examples."""
    for name, layer in module.named_modules():
        if getattr(layer, "attention_type", None) == "block_sparse":
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) has attention_type='block_sparse', so the attention of every "
                "example depends on the longest example of the batch.",
                hint="call model.set_attention_type('original_full') before make_private",
            )
        if any(True for _ in _limits(layer)):
            layer.register_forward_pre_hook(_refuse_long, with_kwargs=True)


def _refuse_long(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Forward hook of rotary embeddings: raise `Refused` if the longest example changes the frequencies of others."""
    if not (layer.training and torch.is_grad_enabled()):
        return
    positions = named["position_ids"] if "position_ids" in named else inputs[1]
    length = int(positions.max()) + 1
    for kind, limit in _limits(layer):
        if length > limit:
            raise Refused(
                f"{type(layer).__name__} has rope_type={kind!r}. If one example has more than {limit} tokens, it "
                "changes the frequencies, and so the gradients, of all examples of the batch.",
                hint=f"truncate examples to {limit} tokens, in the data set or the tokenizer",
            )


def _limits(layer: Any) -> Iterator[tuple[str, int]]:
    """Yield each type of rotary embedding that can depend on the batch, and the longest input for which it does not."""
    kinds = getattr(layer, "rope_type", None)
    for part, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
        if kind == "longrope":
            options = layer.config.rope_parameters
            yield kind, int((options if part is None else options[part])["original_max_position_embeddings"])
        elif isinstance(kind, str) and "dynamic" in kind:
            original = int(layer.original_max_seq_len)
            grown = int(getattr(layer, f"{part}_max_seq_len_cached", layer.max_seq_len_cached)) > original
            # The frequencies of a longer input stay cached until an input is shorter than `original`.
            yield kind, original - 1 if grown else original
