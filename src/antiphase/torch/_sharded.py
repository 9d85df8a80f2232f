"""What training sharded by FSDP2 needs besides: even batches, and a sum whose divisor is known."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import Refused
from antiphase.torch._course import Course

FIXED = (
    "set_gradient_divide_factor",
    "set_requires_gradient_sync",
    "set_requires_all_reduce",
    "set_is_last_backward",
    "set_all_reduce_hook",
    "set_custom_reduce_scatter",
)


def weight_padding_zero(module: Any, course: Course, optimizer: DPOptimizer) -> None:
    """Make the examples that only keep FSDP's ranks even count for nothing."""
    clipping = module.get_clipping_coef

    def weights() -> torch.Tensor:
        factors: torch.Tensor = clipping().clone()
        is_last_piece = not optimizer._check_skip_next_step(pop_next=False)
        if is_last_piece and course.is_padded:
            factors[-1] = 0.0
        return factors

    module.get_clipping_coef = weights


def fix_reduction(module: nn.Module, ranks: int) -> None:
    """Let FSDP sum the gradients of every backward pass over the ranks and divide by their number, and nothing else.

    The division is undone before noise is added. A pass whose gradients are held back for the next one would be summed
    with it although its examples are not counted.
    """
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(float(ranks))
            part.set_requires_gradient_sync(True)
            for name in FIXED:
                setattr(part, name, partial(_refuse_change, name))


def _refuse_change(name: str, *_: Any, **__: Any) -> None:
    raise Refused(
        f"{name} cannot be called on a private module.", hint="it changes what is summed, to which noise is calibrated"
    )
