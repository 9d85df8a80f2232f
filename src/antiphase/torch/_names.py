"""Names of layers and parameters for messages, as in the model before it was wrapped."""

from __future__ import annotations

from torch import nn


def layer_names(module: nn.Module) -> dict[int, str]:
    """Return the name of every layer by its id, as in the model before it was wrapped."""
    return {id(layer): unwrapped_name(name) for name, layer in module.named_modules()}


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Return the name of every parameter by its id, as in the model before it was wrapped."""
    return {id(p): unwrapped_name(name) for name, p in module.named_parameters()}


def unwrapped_name(name: str) -> str:
    """Return the name of a layer, parameter or buffer, as in the model before it was wrapped."""
    return name.removeprefix("_module.")
