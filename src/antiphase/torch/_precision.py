"""Computes gradient norms accurately, and rejects settings that would round gradients before they are summed.

Low precision weakens clipping: a norm rounded to bfloat16 can be 0.3 percent too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import InvalidArgument, Refused

NORM_BLOCK = 256
SUM_BLOCK = 512  # rows added up in their own dtype; blocks are added in float64


def full_precision(parameters: Iterable[torch.Tensor]) -> ExitStack:
    """Return a context manager that turns autocast off on the devices of the parameters."""
    stack = ExitStack()
    for kind in _kinds(parameters):
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def refuse_rounding(module: nn.Module, *_: Any) -> None:
    """Forward hook for ghost clipping: raise `Refused` if gradients would be summed in lower precision.

    Rounding errors grow with the whole sum, so with rounding one example could change the sum by more than `clip_norm`.
    Autocast is allowed: norms and sums are computed outside of it, in the dtype of the parameters.
    """
    if module.training and torch.is_grad_enabled() and not _has_full_products():
        raise Refused(
            "Ghost clipping would compute rounded norms, because float32 matrix products use lower precision.",
            hint="call torch.set_float32_matmul_precision('highest') and leave torch.backends.fp32_precision at its "
            "default, or use grad_sample_mode='hooks'",
        )


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of each row over all other dimensions, with a relative error below 2e-5 for any size.

    On a CPU, PyTorch's own norm adds up squares one by one in float32, so over 2^28 entries it can be 29 percent too
    small. Here, PyTorch's norm is used only for blocks of 256 entries, and the squares of the block norms are added in
    float64. In any order of summation, the relative error is about 256 roundings of 2^-24 each. Squares of entries
    below 1e-19 underflow to zero; the result includes the most that they can add.

    Args:
        rows: tensor of shape (examples, ...).
    """
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    whole = rows.shape[1] // NORM_BLOCK * NORM_BLOCK
    blocks = rows[:, :whole].reshape(len(rows), whole // NORM_BLOCK, NORM_BLOCK)
    found = widen(blocks.norm(dim=2)).square().sum(1) + widen(rows[:, whole:].norm(dim=1)).square()
    return found + rows.shape[1] * underflow(rows.dtype)


def underflow(dtype: torch.dtype) -> float:
    """Return the largest product that may be computed as zero, if denormal numbers are flushed to zero."""
    return torch.finfo(dtype).tiny


def weighted_sum(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over i of factors[i] * rows[i], in the dtype of the rows.

    If thousands of rows were added one by one in float32, rows could be chosen such that the presence of one row
    decides how all later rows are rounded. That row could then change the sum by twice its own length.
    """
    return blockwise_sum(lambda f, r: torch.einsum("i,i...", f, r), factors_like(factors, rows), rows)


def blockwise_sum(function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    """Return `function(*rows)`, which must be a sum over rows, by adding its values for blocks of rows in float64.

    With n rows per block, one row changes the roundings of a sum by at most about n^2 / 4 roundings of 2^-24.
    """
    if len(rows[0]) <= SUM_BLOCK or rows[0].dtype == torch.float64:
        return function(*rows)
    blocks = zip(*(torch.split(part, SUM_BLOCK) for part in rows), strict=True)
    total = widen(function(*next(blocks)))
    for block in blocks:
        total.add_(function(*block))
    return total.to(rows[0].dtype)


def factors_like(factors: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return clipping factors with the dtype and device of `like`; factors below its normal range become zero.

    Rounding to a denormal number could double such a factor, and the gradient that it multiplies is huge.
    """
    found = factors.to(like)
    return torch.where(found.abs() < torch.finfo(found.dtype).tiny, 0.0, found)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to float64, if the device supports it."""
    return tensor if tensor.device.type == "mps" else tensor.double()


def check_policy(module: nn.Module) -> None:
    """Raise `InvalidArgument` for FSDP mixed precision, which rounds gradients before they are clipped or summed."""
    for name, part in module.named_modules():
        if not isinstance(part, FSDPModule):
            continue
        policy = part._get_fsdp_state()._mp_policy
        kinds = {policy.param_dtype, policy.reduce_dtype} - {None, torch.float32, torch.float64}
        if kinds:
            raise InvalidArgument(
                f"The FSDP mixed precision policy of {name or 'the model'} rounds gradients to "
                f"{', '.join(map(str, kinds))} before they are clipped or summed.",
                hint="call fully_shard without mp_policy, or with float32 for param_dtype and reduce_dtype",
            )


def _has_full_products() -> bool:
    try:
        return bool(torch.get_float32_matmul_precision() == "highest")
    except RuntimeError:  # raised if torch.backends sets a lower precision for some backend
        return False


def _kinds(parameters: Iterable[torch.Tensor]) -> list[str]:
    """Return the types of the parameters' devices that support autocast."""
    found = {p.device.type for p in parameters}
    return sorted(kind for kind in found if torch.amp.is_autocast_available(kind))
