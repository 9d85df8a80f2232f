"""Checks that every per-example gradient was clipped to the plan's norm, and counts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from opacus.optimizers import DPOptimizer

from antiphase._errors import Refused
from antiphase.torch._criterion import is_unchanged, reset_norms


class ClippingCheck(ABC):
    """Inspects what Opacus's optimizer is about to sum."""

    def __init__(self, module: Any, parameters: list[torch.Tensor], clip_norms: tuple[float, ...]) -> None:
        self._module, self._parameters, self._clip_norms = module, parameters, clip_norms

    @abstractmethod
    def count(self, optimizer: DPOptimizer) -> int:
        """The number of per-example gradients of this physical batch. Each is counted once."""

    def reset(self) -> None:
        """Drop what an interrupted forward or backward pass left in Opacus's objects."""
        for p in self._module.parameters():
            p.grad_sample = None
            vars(p).pop("_current_grad_sample", None)
            if hasattr(p, "_forward_counter"):
                p._forward_counter = 0
        for layer in self._module.modules():
            if any(p.requires_grad for p in layer.parameters(recurse=False)):  # those that Opacus hooks
                for name in ("activations", "max_batch_len", "_forward_counter"):
                    vars(layer).pop(name, None)

    def check_unchanged(self, optimizer: DPOptimizer) -> None:
        """Refuse if the parameters or the clipping norms changed since `make_private`."""
        now = optimizer.params
        if len(now) != len(self._parameters) or any(p is not q for p, q in zip(now, self._parameters, strict=True)):
            raise Refused(
                "The trained parameters are not those that were passed to make_private.",
                hint="freeze and add parameters before make_private; start a new run for other parameters",
            )
        if self._norms(optimizer) != self._clip_norms:
            raise Refused(
                f"The clipping norms were changed from {self._clip_norms} to {self._norms(optimizer)}.",
                hint="the noise is calibrated to the plan's clip_norm; make a plan with another clip_norm",
            )

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        norms = getattr(optimizer, "max_grad_norms", None)
        return (optimizer.max_grad_norm,) if norms is None else tuple(norms)


@final
class PerExampleCheck(ClippingCheck):
    """For the modes that keep every per-example gradient in `p.grad_sample`."""

    def count(self, optimizer: DPOptimizer) -> int:
        """The length of `grad_sample`. Gradients that are not finite are set to zero.

        Gradients that autocast has rounded are clipped as they are, by norms in the precision of the parameters.
        """
        samples = [_one_pass(p) for p in self._parameters]
        rows = {len(sample) for sample in samples}
        if len(rows) > 1:
            raise Refused(
                f"The layers have gradients of different numbers of examples: {sorted(rows)}.",
                hint="every layer must have the examples in its first dimension",
            )
        finite = torch.stack([torch.isfinite(s).flatten(1).all(1).to(samples[0].device) for s in samples]).all(0)
        if not finite.all():
            for sample in samples:
                sample[~finite.to(sample.device)] = 0.0
        return rows.pop()


@final
class GhostCheck(ClippingCheck):
    """For ghost clipping, which keeps only the norm of each example's gradient."""

    def count(self, optimizer: DPOptimizer) -> int:
        """The number of norms. They are dropped, so that none is used for a second batch."""
        norms = self._module._per_sample_gradient_norms
        if norms is not None and not all(is_unchanged(p) for p in self._parameters):
            raise Refused(
                "Gradients were added that were not clipped.",
                hint="call backward once for each batch, on the loss of the criterion that make_private returned",
            )
        if norms is None:
            raise Refused(
                "Gradients were not clipped.",
                hint="with ghost clipping, compute the loss with the criterion that make_private returned",
            )
        reset_norms(self._module)
        return len(norms)

    def reset(self) -> None:
        """Drop the norms too."""
        super().reset()
        reset_norms(self._module)

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        return (self._module.max_grad_norm,)


def _one_pass(parameter: Any) -> torch.Tensor:
    sample = parameter.grad_sample
    if isinstance(sample, list) and len(sample) == 1:
        sample = sample[0]
    if not isinstance(sample, torch.Tensor):
        raise Refused(
            "A step needs the gradients of exactly one backward pass.",
            hint="call optimizer.zero_grad(), loss.backward() and optimizer.step() once for each batch",
        )
    if sample.dtype != parameter.dtype:
        sample = parameter.grad_sample = sample.to(parameter.dtype)
    if sample.dim() == 1:  # of a scalar parameter: Opacus sums over the dimensions of a parameter, and needs one
        sample = parameter.grad_sample = sample[:, None]
    return sample
