"""What a model must not do for its examples to be clipped one by one."""

from __future__ import annotations

from collections import Counter

from opacus.grad_sample import GradSampleModuleFastGradientClipping as Ghost
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from antiphase._errors import InvalidArgument


def check_module(module: nn.Module, *, ghost: bool) -> None:
    """Raise for layers that mix examples or change without noise, frozen ones included, and for what ghost clips wrong.

    Opacus looks at trainable layers only.
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
    if ghost:
        _check_ghost(module)


def _check_ghost(module: nn.Module) -> None:
    """Raise where a norm of ghost clipping would not be that of the gradient.

    The norm of a weight's gradient comes from one layer: a weight that two layers share would be clipped by half of it.
    For a layer without a formula it comes from a copy of the layer, which may differ; with FSDP the gradient does not.
    """
    if shared := _shared(module):
        raise InvalidArgument(
            f"The weight {shared!r} belongs to several layers, and ghost clipping would clip by the norm of one.",
            hint="use grad_sample_mode='hooks' for tied weights",
        )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.EmbeddingBag) or _pads_with_data(layer) or getattr(layer, "scale_grad_by_freq", False):
            raise InvalidArgument(
                f"The norms of ghost clipping are wrong for {name!r}: {layer}.",
                hint="use grad_sample_mode='hooks' or 'functorch', or Embedding as it is by default and "
                "padding_mode='zeros'",
            )
        if isinstance(module, FSDPModule) and not _is_known(layer):
            raise InvalidArgument(
                f"The norms of ghost clipping may be wrong for {name!r}: Opacus has no formula for "
                f"{type(layer).__name__}.",
                hint="keep parameters in layers such as Linear, LayerNorm and RMSNorm, or tell Opacus the gradients of "
                "your layer with opacus.grad_sample.register_grad_sampler",
            )


def _is_known(layer: nn.Module) -> bool:
    """Whether it has nothing to train, or Opacus has a formula."""
    kind = type(layer).__bases__[1] if isinstance(layer, FSDPModule) else type(layer)
    trained = any(p.requires_grad for p in layer.parameters(recurse=False))
    return not trained or kind in Ghost.NORM_SAMPLERS or kind in Ghost.GRAD_SAMPLERS


def _pads_with_data(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.padding_mode != "zeros"


def _shared(module: nn.Module) -> str | None:
    """A trained parameter that more than one layer has."""
    owners = Counter(id(p) for layer in module.modules() for p in layer._parameters.values() if p is not None)
    names = {id(p): name for name, p in module.named_parameters()}
    return next((names[key] for key, count in owners.items() if count > 1 and key in names), None)
