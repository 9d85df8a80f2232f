"""What training sharded by FSDP2 needs besides: even batches, and a sum whose divisor is known."""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.distributed.fsdp import FSDPModule

from antiphase._errors import Refused
from antiphase.torch._course import Course


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


def fix_divisor(module: nn.Module, ranks: int) -> None:
    """Let FSDP divide the sum over ranks by their number, and by nothing else: it is multiplied back before noise."""

    def refused(factor: float) -> None:
        raise Refused(
            f"The gradient divisor of a private module cannot be set to {factor}.", hint="it would rescale the noise"
        )

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(float(ranks))
            part.set_gradient_divide_factor = refused  # type: ignore[method-assign]
