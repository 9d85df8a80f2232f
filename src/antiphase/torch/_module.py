"""Checks that every layer of a model has correct per-example gradients.

In this file, a layer has a formula if `FORMULAS` (`_ghost.py`) or Opacus's `GRAD_SAMPLERS` has a function that computes
per-example gradients for layers of its type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from opacus.grad_sample import GradSampleModuleFastGradientClipping as Ghost
from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from antiphase._errors import InvalidArgument
from antiphase.torch._ghost import FORMULAS

OWN = ("weight", "bias")  # names of the parameters whose gradients a formula computes
TIED: list[type[nn.Module]] = [nn.Embedding, nn.Linear]  # two layers that may share a weight in ghost clipping


def check_module(module: nn.Module, *, ghost: bool, functorch: bool = False) -> None:
    """Raise `InvalidArgument` if a layer mixes examples, changes without noise, or does not support ghost clipping.

    Frozen layers are also checked, whereas Opacus checks only trainable layers.

    Args:
        module: model, not wrapped yet.
        ghost: whether ghost clipping is used.
        functorch: whether Opacus computes all per-example gradients with functorch, from copies of the layers.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False):
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) mixes the examples of a batch, or tracks their statistics.",
                hint="use GroupNorm or LayerNorm, also in frozen parts of the model",
            )
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            raise InvalidArgument(
                f"Layer {name!r} has max_norm, so each lookup changes the trained rows, without noise.",
                hint="leave max_norm=None",
            )
        _check_computed(name, layer)
        _check_inner_sharing(name, layer)
    _check_whole_layers(module, functorch=functorch)
    if ghost:
        _check_ghost(module)


def replace_in_place(module: nn.Module) -> None:
    """Set `inplace=False` in PyTorch's activations, because the outputs of hooked layers cannot be changed in place."""
    for layer in module.modules():
        if type(layer).__module__.startswith("torch.nn.") and getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]


def _check_computed(name: str, layer: nn.Module) -> None:
    """Raise `InvalidArgument` if the weight of a known layer is computed from other parameters, as weight_norm does."""
    known = type(layer) in FORMULAS or type(layer) in Ghost.GRAD_SAMPLERS
    is_ours = type(layer).__module__.startswith(("torch.nn.", "opacus."))
    others = [own for own, p in layer.named_parameters(recurse=False) if p.requires_grad and own not in OWN]
    if (known and is_ours and others) or parametrize.is_parametrized(layer):
        kind = type(layer).__name__.removeprefix("Parametrized")
        raise InvalidArgument(
            f"The weight of layer {name!r} ({kind}) is computed from other parameters, as weight_norm and "
            "spectral_norm do, so its per-example gradients are not the gradients of the trained parameters.",
            hint="remove the reparametrization from the layer, for example with torch.nn.utils.remove_weight_norm or "
            "torch.nn.utils.parametrize.remove_parametrizations",
        )


def _check_inner_sharing(name: str, layer: nn.Module) -> None:
    """Raise `InvalidArgument` if a layer shares a trainable parameter of its own with a layer inside it.

    Opacus processes such a layer together with all layers inside it, and this fails for shared parameters. BERT's head
    for masked language models is an example.
    """
    if type(layer).__module__.startswith("opacus."):
        return  # recurrent layers of Opacus also list the weights of their cells under PyTorch's names
    own = {id(p): key for key, p in layer._parameters.items() if p is not None and p.requires_grad}
    for inner, part in layer.named_modules():
        for key, p in part._parameters.items():
            if part is not layer and id(p) in own:
                parameter = f"{name}.{own[id(p)]}".lstrip(".")
                raise InvalidArgument(
                    f"The parameter {parameter!r} is also the parameter {key!r} of the layer {inner!r} in {name!r}, "
                    "so its gradient cannot be computed for each example.",
                    hint=f"freeze it before make_private: model.get_parameter({parameter!r}).requires_grad_(False); "
                    "LoRA freezes it for you",
                )


def _check_ghost(module: nn.Module) -> None:
    """Raise `InvalidArgument` if ghost clipping would compute a wrong gradient norm for a layer.

    A trainable weight may be shared by one Embedding and one Linear (the input and output embedding of a language
    model). For other shared weights, the norm would need the inner products between the gradients of all uses. For a
    layer without a formula, Opacus uses a copy of the layer; with FSDP, that copy has only part of the parameters.
    """
    for shared, layers in _shared(module).items():
        kinds = sorted(type(layer).__name__ for _, layer in layers)
        if [type(layer) for _, layer in sorted(layers, key=lambda pair: type(pair[1]).__name__)] != TIED or isinstance(
            module, FSDPModule
        ):
            names = ", ".join(repr(name) for name, _ in layers)
            raise InvalidArgument(
                f"The trainable weight {shared!r} is shared by several layers: {names} ({', '.join(kinds)}). Ghost "
                "clipping supports only a weight shared by one Embedding and one Linear, without FSDP. Neither of them "
                "may be inside another layer that has trained parameters of its own, because Opacus treats that layer "
                "as a whole.",
                hint="use grad_sample_mode='hooks' for other tied weights, or freeze the weight with "
                "requires_grad_(False); if a layer contains the Embedding or Linear and has trained parameters of its "
                "own, move these parameters into a separate layer",
            )
    for name, layer in module.named_modules():
        if isinstance(layer, nn.EmbeddingBag) or _pads_with_data(layer) or getattr(layer, "scale_grad_by_freq", False):
            raise InvalidArgument(
                f"Ghost clipping would compute wrong gradient norms for layer {name!r}: {layer}.",
                hint="use grad_sample_mode='hooks' or 'functorch'; or use Embedding with default options, and "
                "convolutions with padding_mode='zeros'",
            )
        if isinstance(module, FSDPModule) and not _is_known(layer):
            raise InvalidArgument(
                f"With FSDP, ghost clipping may compute wrong gradient norms for layer {name!r}: Opacus has no formula "
                f"for {type(layer).__name__}.",
                hint="keep parameters in layers such as Linear, LayerNorm and RMSNorm, or register a function for the "
                "per-example gradients of your layer with opacus.grad_sample.register_grad_sampler",
            )


def _is_known(layer: nn.Module) -> bool:
    """Return whether a layer has a formula, or has no trainable parameters of its own."""
    kind = type(layer).__bases__[1] if isinstance(layer, FSDPModule) else type(layer)
    trained = any(p.requires_grad for p in layer.parameters(recurse=False))
    return not trained or kind in FORMULAS or kind in Ghost.GRAD_SAMPLERS


def _pads_with_data(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.padding_mode != "zeros"


def _check_whole_layers(module: nn.Module, *, functorch: bool) -> None:
    """Raise `InvalidArgument` for layers whose gradients Opacus would compute wrongly, or twice.

    If a layer has trained parameters of its own but no formula for their gradients, Opacus processes a copy of the
    layer, together with all layers inside it. In the copy, inner layers no longer share weights. Opacus cannot copy a
    layer that has several names. If an inner layer is also registered outside the copied layer, the gradients of the
    inner layer would be computed a second time.
    """
    places: dict[int, list[tuple[str, bool]]] = {}
    for name, layer, outer in _places(module):
        if outer is None and isinstance(layer, (nn.ParameterDict, nn.ParameterList)):
            _refuse_collection(name, layer)
        if any(p.requires_grad for p in layer.parameters(recurse=False)):
            found = places.setdefault(id(layer), [])
            found.append((name, outer is None))
            outside = sum(is_outside for _, is_outside in found)
            if len(found) > 1 and (0 < outside < len(found) or (outside > 1 and (functorch or _is_whole(layer)))):
                raise InvalidArgument(
                    f"The same layer is registered as {' and '.join(repr(place) for place, _ in found)}, so its "
                    "gradients would be computed twice: Opacus has no formula for its parameters, or the layer is "
                    "inside another one that has trained parameters of its own.",
                    hint="register the layer once; or move the parameters of the layer around it into layers such as "
                    "Linear, and use grad_sample_mode='hooks'",
                )
        if outer is None and _is_whole(layer):
            slots = [p for part in layer.modules() for p in part._parameters.values() if p is not None]
            uses = Counter(id(p) for p in slots if p.requires_grad)
            shared = [key for key, p in layer.named_parameters() if uses[id(p)] > 1]
            if shared:
                raise InvalidArgument(
                    f"Layers inside {name!r} ({type(layer).__name__}) share the trainable weight {shared[0]!r}, and "
                    f"{type(layer).__name__} has trained parameters of its own, so gradients cannot be computed for "
                    "each example.",
                    hint="move its own parameters into layers such as Linear or Embedding, or freeze the weight "
                    "with requires_grad_(False)",
                )


def _refuse_collection(name: str, parameters: nn.ParameterDict | nn.ParameterList) -> None:
    """Raise `InvalidArgument` if a ParameterDict or ParameterList has trained parameters.

    Do not call this for a collection inside a layer that Opacus processes as a whole.
    """
    trained = [f"{name}.{key}" for key, p in parameters.named_parameters(recurse=False) if p.requires_grad]
    if trained:
        raise InvalidArgument(
            f"The parameter {trained[0]!r} is in a {type(parameters).__name__}, which is not a layer that is called, "
            "so its gradient cannot be computed for each example.",
            hint="assign the parameter to an attribute of the layer that uses it, such as self.scale = "
            "nn.Parameter(...); with PEFT, use LoRA without DoRA",
        )


def _shared(module: nn.Module) -> dict[str, list[tuple[str, nn.Module]]]:
    """Return the trainable parameters that several layers share, as a dict: parameter name -> [(layer name, layer)].

    A layer with trained parameters of its own but no formula counts as one layer, together with all layers inside it.
    """
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, layer, outer in _places(module):
        unit = (name, layer) if outer is None else outer
        for p in {id(p): p for p in layer._parameters.values() if p is not None and p.requires_grad}.values():
            found = owners.setdefault(id(p), [])
            if all(other is not unit[1] for _, other in found):
                found.append(unit)
    names = {id(p): name for name, p in module.named_parameters()}
    return {names[key]: layers for key, layers in owners.items() if len(layers) > 1}


def _places(
    module: nn.Module, name: str = "", outer: tuple[str, nn.Module] | None = None
) -> Iterator[tuple[str, nn.Module, tuple[str, nn.Module] | None]]:
    """Yield (name, layer, outer) for each name of each layer.

    `outer` is (name, layer) of the outermost enclosing layer that Opacus processes as a whole, or None.
    """
    yield name, module, outer
    inside = (name, module) if outer is None and _is_whole(module) else outer
    for key, layer in module._modules.items():
        if layer is not None:
            yield from _places(layer, f"{name}.{key}".lstrip("."), inside)


def _is_whole(layer: nn.Module) -> bool:
    """Return whether Opacus computes the gradients of a layer and of all layers inside it together."""
    return not _is_known(layer) and not isinstance(layer, DPRNNBase)
