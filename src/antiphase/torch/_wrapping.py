"""Checks the module and the optimizer that are passed to `make_private`, and wraps the module for Opacus."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.grad_sample import AbstractGradSampleModule
from opacus.grad_sample.utils import prepare_module
from opacus.utils.module_utils import trainable_modules
from opacus.validators import ModuleValidator
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from antiphase._errors import InvalidArgument
from antiphase._run import refuse_pickle
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._layers import LayerInputs, order_gradients, patch_samplers
from antiphase.torch._module import check_module, replace_in_place
from antiphase.torch._positions import check_positions, expand_positions
from antiphase.torch._precision import check_policy, refuse_rounding
from antiphase.torch._sequence_length import check_lengths

NEW_MODEL = "make a new model, and copy the weights with new_model.load_state_dict(model.state_dict())"


def wrap_module(
    module: nn.Module,
    parameters: list[torch.Tensor],
    mode: str,
    batch_first: bool,
    loss_reduction: str,
    norm: Any,
    rows_per_example: int,
) -> Any:
    """Return the module in Opacus's wrapper, which computes per-example gradients."""
    _check_unhooked(module)
    check_module(module, ghost="ghost" in mode, functorch=mode == "functorch")
    _check_valid(module)
    if mode != "ew":
        _check_buffers(module)
    replace_in_place(module)
    check_policy(module)
    check_positions(module)
    check_lengths(module)
    ghost = {"max_grad_norm": norm} if "ghost" in mode else {}
    reduction = "sum" if ghost else loss_reduction  # the criterion for ghost clipping sums the losses
    wrapped = prepare_module(module, mode, batch_first=batch_first, loss_reduction=reduction, **ghost)
    wrapped.forbid_grad_accumulation()
    expand_positions(module, batch_first=batch_first)
    patch_samplers(wrapped, parameters, rows_per_example)
    order_gradients(module)
    if ghost:
        wrapped.register_forward_pre_hook(refuse_rounding)
    # A pickle would contain per-example gradients. The method is set on the object, since the class belongs to Opacus.
    wrapped.__reduce_ex__ = partial(refuse_pickle, wrapped)
    return wrapped


def check_processes(module: nn.Module, mode: str) -> None:
    """Raise `InvalidArgument` if the module's wrapper does not fit `grad_sample_mode` or the number of processes."""
    if isinstance(module, DistributedDataParallel):
        raise InvalidArgument(
            "torch's DistributedDataParallel averages gradients before they are clipped.",
            hint="wrap the module in Opacus's DifferentiallyPrivateDistributedDataParallel instead",
        )
    if isinstance(module, FSDPModule) != (mode == "ghost_fsdp"):
        raise InvalidArgument(
            f"grad_sample_mode={mode!r} cannot be used with a {type(module).__name__}.",
            hint="use 'ghost_fsdp' for modules sharded by fully_shard, and only for such modules",
        )
    ranks = TorchDistributed.current().size
    if ranks > 1 and not isinstance(module, (DPDDP, FSDPModule)):
        raise InvalidArgument(
            f"Each of the {ranks} processes would train a separate model with the same noise.",
            hint="call fully_shard on the module, or wrap it in Opacus's DifferentiallyPrivateDistributedDataParallel",
        )


def trained_parameters(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the module's trainable parameters, in the order of the optimizer.

    Raises `InvalidArgument` if the optimizer misses one of them, or has parameters of other modules.
    """
    known = {id(p) for p in module.parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    ours = {id(p) for p in listed}
    missing = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in ours]
    if not all(id(p) in known for p in listed):
        raise InvalidArgument(
            "The optimizer has parameters that do not belong to the module.",
            hint="make the optimizer from module.parameters(), after wrapping or sharding the module",
        )
    if missing:
        raise InvalidArgument(
            f"The parameter {missing[0]!r} is trainable but not in the optimizer, so another optimizer could train it "
            f"without noise. Number of such parameters: {len(missing)}.",
            hint="give the optimizer all trainable parameters, or freeze the others with requires_grad_(False)",
        )
    return [p for p in listed if p.requires_grad]


def check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Raise `InvalidArgument` if `step` of the optimizer requires an argument, such as the closure of LBFGS."""
    for name, parameter in inspect.signature(optimizer.step).parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise InvalidArgument(
                f"{type(optimizer).__name__} cannot be used: step() requires the argument {name!r}, which could "
                "compute more gradients in the same step, without noise.",
                hint="use an optimizer that takes one gradient per step, such as SGD or Adam",
            )


def _check_unhooked(module: nn.Module) -> None:
    """Raise `InvalidArgument` if a trained layer has hooks of an earlier `make_private`, or of Opacus.

    These hooks stay on the layers when the run is closed. After another `make_private`, two sets of hooks would add the
    gradients of the layer, each with the `loss_reduction` of its own wrapper. Hooks with loss_reduction="mean" multiply
    by the number of examples in the batch, to undo the division in a mean loss. If the loss is a sum, the factor
    remains, and one more example in the batch changes the gradients of all others.
    """
    if isinstance(module, AbstractGradSampleModule):
        raise InvalidArgument(
            f"The module is already in Opacus's wrapper {type(module).__name__}, which computes per-example gradients.",
            hint=f"pass the model itself, not the result of another make_private or wrapper; {NEW_MODEL}",
        )
    is_hooked = hasattr(module, "autograd_grad_sample_hooks")
    found = [name for name, layer in module.named_modules() if _is_hooked(layer)]
    if is_hooked or found:
        which = f"Layer {found[0]!r}" if found and found[0] else "The module"
        raise InvalidArgument(
            f"{which} was already used in another make_private, or in Opacus's wrapper. Its hooks would compute the "
            "gradients of its parameters a second time.",
            hint=NEW_MODEL,
        )


def _is_hooked(layer: nn.Module) -> bool:
    """Return whether hooks of an earlier wrapper would compute gradients of a layer. Hooks ignore frozen layers."""
    owners = [getattr(hook, "__self__", None) for hook in layer._forward_hooks.values()]
    is_ours = any(isinstance(owner, (LayerInputs, AbstractGradSampleModule)) for owner in owners)
    return is_ours and any(p.requires_grad for p in layer.parameters())


def _check_valid(module: nn.Module) -> None:
    """Raise `InvalidArgument` if Opacus cannot compute the per-example gradients of a layer."""
    errors = ModuleValidator.validate(module, strict=False)
    if errors:
        raise InvalidArgument(
            f"Opacus cannot train the module: {'; '.join(str(error).strip() for error in errors)}",
            hint="call module = opacus.validators.ModuleValidator.fix(module) before you create the optimizer, or "
            "replace the layers by hand",
        )


def _check_buffers(module: nn.Module) -> None:
    """Raise `InvalidArgument` if a layer has buffers as well as trainable parameters. Opacus does not train it."""
    for name, layer in trainable_modules(module):
        buffers = ", ".join(repr(buffer) for buffer, _ in layer.named_buffers())
        if buffers:
            raise InvalidArgument(
                f"Layer {name!r} ({type(layer).__name__}) has both trainable parameters and buffers ({buffers}). "
                "Opacus does not compute per-example gradients for such a layer.",
                hint="freeze the parameters of this layer with requires_grad_(False), before you create the optimizer, "
                "and train the others, for example with LoRA",
            )
