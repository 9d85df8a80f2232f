"""What a model must not do for its examples to be clipped one by one."""

from __future__ import annotations

from collections import Counter

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from antiphase._errors import InvalidArgument


def check_module(module: nn.Module, *, ghost: bool) -> None:
    """Raise for layers that mix examples or change without noise, frozen ones included, and for what ghost clips wrong.

    Opacus looks at trainable layers only. Ghost clipping takes the norm of a weight's gradient from one layer; a weight
    that two layers share would be clipped by half of it. Its norms are wrong for some layers.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) mixes the examples of a batch, or keeps their statistics.",
                hint="use GroupNorm or LayerNorm, in frozen parts of the model too",
            )
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            raise InvalidArgument(
                f"Layer {name!r} with max_norm changes the rows it looks up, without noise.",
                hint="leave max_norm=None",
            )
        if ghost and (isinstance(layer, nn.EmbeddingBag) or _pads_with_data(layer)):
            raise InvalidArgument(
                f"The norms of ghost clipping are wrong for {name!r}: {layer}.",
                hint="use grad_sample_mode='functorch', or Embedding and padding_mode='zeros'",
            )
    if ghost and (shared := _shared(module)):
        raise InvalidArgument(
            f"The weight {shared!r} belongs to several layers, and ghost clipping would clip by the norm of one.",
            hint="use grad_sample_mode='hooks' for tied weights",
        )


def _pads_with_data(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.padding_mode != "zeros"


def _shared(module: nn.Module) -> str | None:
    """A trained parameter that more than one layer has."""
    owners = Counter(id(p) for layer in module.modules() for p in layer._parameters.values() if p is not None)
    names = {id(p): name for name, p in module.named_parameters()}
    return next((names[key] for key, count in owners.items() if count > 1 and key in names), None)
