"""Norms and sums in the precision of the parameters: a norm rounded to bfloat16 can be 0.3 percent too small."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import InvalidArgument, Refused

NORM_BLOCK = 256
NO_AUTOCAST = "turn autocast off, or use grad_sample_mode='hooks', where each gradient is clipped after rounding"


def full_precision(parameters: Iterable[torch.Tensor]) -> ExitStack:
    """A context manager that turns autocast off on the devices of the parameters."""
    stack = ExitStack()
    for kind in _kinds(parameters):
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def refuse_rounding(module: nn.Module, *_: Any) -> None:
    """Forward hook for ghost clipping: refuse to sum gradients in lower precision.

    Rounding errors are relative to the whole sum, so one example could change it by more than the clipping norm.
    """
    if not (module.training and torch.is_grad_enabled()):
        return
    if any(map(torch.is_autocast_enabled, _kinds(module.parameters()))):
        raise Refused("Ghost clipping under autocast would sum rounded gradients.", hint=NO_AUTOCAST)
    if not _has_full_products():
        raise Refused(
            "Ghost clipping with matrix products in lower precision would compute rounded norms.",
            hint="call torch.set_float32_matmul_precision('highest') and leave torch.backends.fp32_precision at its "
            "default, or use grad_sample_mode='hooks'",
        )


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """The squared norm of each row, over all other dimensions, with a relative error below 2e-5 for any size.

    PyTorch's own norm adds up float32 one by one on a CPU: over 2^28 entries it can be 29 percent too small. Here that
    is done for blocks of 256 entries only, and the blocks are added in float64. In any order, the error of the square
    is at most 256 roundings of 2^-24.
    """
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    whole = rows.shape[1] // NORM_BLOCK * NORM_BLOCK
    blocks = rows[:, :whole].reshape(len(rows), whole // NORM_BLOCK, NORM_BLOCK)
    return widen(blocks.norm(dim=2)).square().sum(1) + widen(rows[:, whole:].norm(dim=1)).square()


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, where the device has it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def check_policy(module: nn.Module) -> None:
    """Refuse FSDP's mixed precision, which rounds the norms, or the sum over the ranks, before noise is added."""
    for name, part in module.named_modules():
        if not isinstance(part, FSDPModule):
            continue
        policy = part._get_fsdp_state()._mp_policy
        kinds = {policy.param_dtype, policy.reduce_dtype} - {None, torch.float32, torch.float64}
        if kinds:
            raise InvalidArgument(
                f"The mixed precision of {name or 'the model'} rounds gradients to {', '.join(map(str, kinds))} "
                "before they are clipped or summed.",
                hint="call fully_shard without mp_policy, or with float32 for param_dtype and reduce_dtype",
            )


def _has_full_products() -> bool:
    try:
        return bool(torch.get_float32_matmul_precision() == "highest")
    except RuntimeError:  # torch.backends sets a lower precision for some backend
        return False


def _kinds(parameters: Iterable[torch.Tensor]) -> list[str]:
    """The device types of the parameters that support autocast."""
    found = {p.device.type for p in parameters}
    return sorted(kind for kind in found if torch.amp.is_autocast_available(kind))
