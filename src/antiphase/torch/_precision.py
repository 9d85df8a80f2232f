"""Computes gradient norms accurately, and rejects settings that would round gradients before they are summed.

Low precision weakens clipping: a norm rounded to bfloat16 can be 0.3 percent too small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._batches import tensors_in
from antiphase.torch._compile import untraced

NORM_BLOCK = 256  # number of entries whose norm is computed in their own dtype
ENOUGH_VALUES = 8  # if at least this many different values all fit into 16 bits, they count as rounded
MOST_VALUES = 2**16  # largest number of values that are compared
SUM_BLOCK = 512  # number of rows that are added in their own dtype; blocks are added in float64


def full_precision(parameters: Iterable[torch.Tensor]) -> ExitStack:
    """Return a context manager that turns autocast off on the devices of the parameters."""
    stack = ExitStack()
    for kind in _kinds(parameters):
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def refuse_rounding(module: nn.Module, *_: Any) -> None:
    """Forward hook for ghost clipping: raise `Refused` if gradients would be summed in lower precision.

    Rounding errors grow with the size of the sum, so in lower precision one example could change the sum by more than
    `clip_norm`. Autocast is allowed: norms and sums are computed outside of it, in the dtype of the parameters.
    """
    if module.training and torch.is_grad_enabled() and not _has_full_products():
        raise Refused(
            "Ghost clipping would compute rounded norms, because float32 matrix products use lower precision.",
            hint="call torch.set_float32_matmul_precision('highest') and leave torch.backends.fp32_precision at its "
            "default, or use grad_sample_mode='hooks' with loss_reduction='sum'",
        )


def check_rounding(module: Any) -> None:
    """Make a wrapped module raise `Refused` if its loss is a mean over the batch and gradients would be rounded.

    Gradients are rounded if float32 matrix products use lower precision, or if a layer has an output of low precision
    that needs a gradient. Layers have such outputs under autocast, or if frozen layers have low precision. The first
    training pass is also checked for casts in the code of the model or the loss.
    """
    module.register_forward_pre_hook(_check_products)
    module.register_forward_hook(_FirstPass().check)
    for layer in module.modules():
        layer.register_forward_hook(partial(_check_output, module))


def _check_products(module: Any, *_: Any) -> None:
    if module.training and torch.is_grad_enabled() and not _has_full_products():
        refuse_rounded_mean(module, torch.bfloat16)


def _check_output(module: Any, layer: nn.Module, _inputs: Any, output: Any) -> None:
    if module.training and torch.is_grad_enabled():
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                refuse_rounded_mean(module, tensor.dtype)


@final
class _FirstPass:
    """Checks the autograd graph of the first training pass and the gradients of the outputs for low precision."""

    def __init__(self) -> None:
        self._is_checked = self._is_seen = False

    @untraced
    def check(self, module: Any, _inputs: Any, output: Any) -> None:
        """Forward hook of the wrapped module."""
        if not (module.training and torch.is_grad_enabled()) or module.loss_reduction != "mean":
            return
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        if not self._is_checked:
            self._is_checked = True
            for dtype in graph_dtypes(outputs):
                refuse_rounded_mean(module, dtype)
        for tensor in () if self._is_seen else outputs:
            tensor.register_hook(partial(self._check_gradient, module))  # type: ignore[no-untyped-call]

    def _check_gradient(self, module: Any, gradient: torch.Tensor) -> None:
        """Hook of an output: raise `Refused` if all values of its gradient fit into 16 bits and so were likely rounded.

        If the number of examples is a power of two, nothing is checked. The gradient of a squared error, for example,
        can consist of whole numbers divided by the number of examples. After division by a power of two, such numbers
        still fit into 16 bits, so they would be mistaken for rounded values.
        """
        if len(gradient).bit_count() == 1:
            return
        values = gradient.detach().flatten()[:MOST_VALUES].unique()  # type: ignore[no-untyped-call]
        if len(values) >= ENOUGH_VALUES:
            self._is_seen = True
            for dtype in (torch.bfloat16, torch.float16):
                if torch.equal(values.to(dtype).to(values.dtype), values):
                    refuse_rounded_mean(module, dtype)


def graph_dtypes(outputs: Iterable[torch.Tensor]) -> set[torch.dtype]:
    """Return the dtypes of all gradients that the backward pass of some tensors computes."""
    found: set[torch.dtype] = set()
    nodes: list[Any] = [tensor.grad_fn for tensor in outputs]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is not None:
            found |= {value.dtype for value in getattr(node, "_input_metadata", ())}
            more = {following for following, _ in node.next_functions} - seen
            seen |= more
            nodes.extend(more)
    return found


def refuse_rounded_mean(module: Any, dtype: torch.dtype) -> None:
    """Raise `Refused` if the loss is a mean over the batch, and `dtype` has less precision than float32.

    The backward pass of a mean over n examples starts with 1 / n. For a gradient g, the rounding errors of g / n and of
    g / (n - 1) differ, so leaving out an example would change the gradients of all others. With 1,000 equal examples in
    bfloat16, leaving out one of them changed the clipped sum by three times the clipping norm. The backward pass of a
    sum does not depend on n.
    """
    if module.loss_reduction == "mean" and dtype.is_floating_point and dtype.itemsize < 4:
        raise Refused(
            "The loss is a mean over the batch, and part of its gradient would be computed in lower precision than "
            "float32. The rounding errors would depend on the number of examples, so one example could change the "
            "gradients of all others.",
            hint="use a loss with reduction='sum' and make_private(..., loss_reduction='sum'), and divide the learning "
            "rate by the batch size (not with Adam); or use grad_sample_mode='ghost'; or compute everything in "
            "float32: without autocast, without bfloat16 weights, and with float32 precision of matrix products",
        )


def squared_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of each row over all other dimensions. The relative error is below 2e-5 for any row size.

    On a CPU, PyTorch's own norm adds squares one by one in float32, so over 2^28 entries it can be 29 percent too
    small. Here, PyTorch's norm is used only for blocks of 256 entries, and the squares of the block norms are added in
    float64. Within a block, the relative error is at most about 256 * 2^-24, whatever the order of summation. Squares
    of entries below 1e-19 underflow to zero, so an upper bound on their sum is added to the result.

    Args:
        rows: tensor of shape (examples, ...).
    """
    rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    whole = rows.shape[1] // NORM_BLOCK * NORM_BLOCK
    found = widen(torch.linalg.vector_norm(rows[:, whole:], dim=1)).square_()
    if whole:
        blocks = rows[:, :whole].reshape(len(rows), whole // NORM_BLOCK, NORM_BLOCK)
        found += widen(torch.linalg.vector_norm(blocks, dim=2)).square_().sum(1)
    return found.add_(rows.shape[1] * underflow(rows.dtype))


def underflow(dtype: torch.dtype) -> float:
    """Return an upper bound on any product that becomes zero if denormal numbers are flushed to zero."""
    return torch.finfo(dtype).tiny


def weighted_sum(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over i of factors[i] * rows[i], in the dtype of the rows.

    Rows are added in blocks. If thousands of rows were added one by one in float32, an adversary could choose rows for
    which the presence of one row decides how all later sums are rounded. That row could then change the result by twice
    its own norm.
    """
    return blockwise_sum(lambda f, r: torch.einsum("i,i...", f, r), factors_like(factors, rows), rows)


def blockwise_sum(function: Callable[..., torch.Tensor], *rows: torch.Tensor) -> torch.Tensor:
    """Return `function(*rows)`, which must be a sum over rows. The sums of blocks of rows are added in float64.

    With n rows per block, one row changes the rounding error of a block's sum by at most about n^2 / 4 * 2^-24,
    relative to the largest norm of a row.
    """
    if len(rows[0]) <= SUM_BLOCK or rows[0].dtype == torch.float64:
        return function(*rows)
    blocks = zip(*(torch.split(part, SUM_BLOCK) for part in rows), strict=True)
    total = widen(function(*next(blocks)))
    for block in blocks:
        total.add_(function(*block))
    return total.to(rows[0].dtype)


def factors_like(factors: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return clipping factors with the dtype and device of `like`; factors below the dtype's normal range become zero.

    Rounding to a denormal number could double such a small factor. The factor belongs to a huge gradient, so the error
    would be large.
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
