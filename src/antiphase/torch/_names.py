"""Names of layers and parameters for messages, as in the model before it was wrapped."""

from __future__ import annotations

from torch import nn


def layer_names(module: nn.Module) -> dict[int, str]:
    """Return the name of every layer by its id, as in the model before it was wrapped."""
    return {id(layer): _unwrapped(name) for name, layer in module.named_modules()}


def parameter_names(module: nn.Module) -> dict[int, str]:
    """Return the name of every parameter by its id, as in the model before it was wrapped."""
    return {id(p): _unwrapped(name) for name, p in module.named_parameters()}


def _unwrapped(name: str) -> str:
    return name.removeprefix("_module.")
