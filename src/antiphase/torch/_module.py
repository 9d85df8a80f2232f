"""Checks that the gradients of a model can be clipped per example."""

from __future__ import annotations

from collections import Counter

from opacus.grad_sample import GradSampleModuleFastGradientClipping as Ghost
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from antiphase._errors import InvalidArgument
from antiphase.torch._ghost import FORMULAS


def check_module(module: nn.Module, *, ghost: bool) -> None:
    """Raise for layers that mix examples or change without noise, and for layers that ghost clipping gets wrong.

    Frozen layers are included; Opacus checks only trainable ones.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) mixes the examples of a batch, or tracks statistics of them.",
                hint="use GroupNorm or LayerNorm, in frozen parts of the model too",
            )
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            raise InvalidArgument(
                f"Layer {name!r} with max_norm rescales the rows it looks up, without noise.",
                hint="leave max_norm=None",
            )
    if ghost:
        _check_ghost(module)


def _check_ghost(module: nn.Module) -> None:
    """Raise if a norm of ghost clipping would not be that of the gradient.

    The norm of a weight's gradient is computed from one layer, so it would be too small for a weight that two layers
    share. For a layer without a formula it is computed from a copy of the layer, which with FSDP has only a part of the
    parameters.
    """
    if shared := _shared(module):
        raise InvalidArgument(
            f"The weight {shared!r} is shared by several layers, but ghost clipping would use the norm of one.",
            hint="use grad_sample_mode='hooks' for tied weights",
        )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.EmbeddingBag) or _pads_with_data(layer) or getattr(layer, "scale_grad_by_freq", False):
            raise InvalidArgument(
                f"The norms of ghost clipping are wrong for {name!r}: {layer}.",
                hint="use grad_sample_mode='hooks' or 'functorch'; or Embedding with default options, and "
                "padding_mode='zeros'",
            )
        if isinstance(module, FSDPModule) and not _is_known(layer):
            raise InvalidArgument(
                f"The norms of ghost clipping may be wrong for {name!r}: Opacus has no formula for "
                f"{type(layer).__name__}.",
                hint="keep parameters in layers such as Linear, LayerNorm and RMSNorm, or register the gradients of "
                "your layer with opacus.grad_sample.register_grad_sampler",
            )


def _is_known(layer: nn.Module) -> bool:
    """Whether a layer has no trainable parameters, or Opacus has a formula for it."""
    kind = type(layer).__bases__[1] if isinstance(layer, FSDPModule) else type(layer)
    trained = any(p.requires_grad for p in layer.parameters(recurse=False))
    return not trained or kind in FORMULAS or kind in Ghost.GRAD_SAMPLERS


def _pads_with_data(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.padding_mode != "zeros"


def _shared(module: nn.Module) -> str | None:
    """The name of a trainable parameter that several layers share, or None."""
    owners = Counter(id(p) for layer in module.modules() for p in layer._parameters.values() if p is not None)
    names = {id(p): name for name, p in module.named_parameters()}
    return next((names[key] for key, count in owners.items() if count > 1 and key in names), None)
