"""Support for Hugging Face Accelerate, whose `prepare` may be called before or after `make_private`.

Accelerate's own data loader reads one batch ahead to recognize the last batch. With that loader, the `PrivacyEngine`
could not check that each step is taken before the next batch is requested. `PlanLoader`, the loader that `make_private`
returns, therefore tells Accelerate that it is already prepared, and moves batches to the device itself.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from antiphase._errors import InvalidArgument, Refused


def unwrapped_optimizer(optimizer: Any) -> Any:
    """Return the optimizer inside Accelerate's wrapper; any other optimizer is returned unchanged.

    The private optimizer cannot use the wrapper. The wrapper skips steps while Accelerate accumulates gradients. Also,
    it has no hook in which a step could be committed (recorded in the ledger).
    """
    accelerate = sys.modules.get("accelerate.optimizer")
    if accelerate is None or not isinstance(optimizer, accelerate.AcceleratedOptimizer):
        return optimizer
    if optimizer.scaler is not None:
        raise InvalidArgument(
            "Accelerate scales the loss for fp16, which would change the gradients before they are clipped.",
            hint="use Accelerator(mixed_precision='bf16') or 'no'",
        )
    return optimizer.optimizer


def accelerate_device() -> torch.device:
    """Return the device that Accelerate uses. Raise `Refused` if Accelerate runs several processes."""
    from accelerate.state import PartialState

    state = PartialState()
    if state.num_processes > 1:
        raise Refused(
            f"Accelerate runs {state.num_processes} processes, and would average gradients before they are clipped.",
            hint="use one process; for several processes, do not use Accelerate, and wrap the model in Opacus's "
            "DifferentiallyPrivateDistributedDataParallel before make_private",
        )
    device: torch.device = state.device
    return device


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a batch to a device."""
    from accelerate.utils import send_to_device

    return send_to_device(batch, device)
