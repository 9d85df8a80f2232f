"""Clips the gradients of a physical batch to the plan's norm, sums them, and counts them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, final

import torch
from opacus.optimizers import DPOptimizer

from antiphase._errors import Refused
from antiphase.torch._criterion import clipping_factors, is_unchanged, reset_norms
from antiphase.torch._ghost import ClippedSums
from antiphase.torch._precision import squared_norms


class Clipping(ABC):
    """Turns the gradients of a physical batch into a clipped sum.

    Args:
        module: module in Opacus's wrapper.
        parameters: all trained parameters.
        clip_norms: one norm for the whole gradient, or one for each parameter.
    """

    def __init__(self, module: Any, parameters: list[torch.Tensor], clip_norms: tuple[float, ...]) -> None:
        self._module, self._parameters, self.clip_norms = module, parameters, clip_norms
        self._trainable = _trainable(module)

    @abstractmethod
    def take(self) -> ClippedSums:
        """The sum of the clipped gradients of this physical batch, and their number. Each is returned once."""

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
        if changed := sorted(_trainable(self._module) ^ self._trainable):
            raise Refused(
                f"The parameter {changed[0]!r} was frozen, unfrozen or added after make_private, and would be trained "
                "without noise.",
                hint="freeze and add parameters before make_private; start a new run for other parameters",
            )
        if self._norms(optimizer) != self.clip_norms:
            raise Refused(
                f"The clipping norms were changed from {self.clip_norms} to {self._norms(optimizer)}.",
                hint="the noise is calibrated to the plan's clip_norm; make a plan with another clip_norm",
            )

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        norms = getattr(optimizer, "max_grad_norms", None)
        return (optimizer.max_grad_norm,) if norms is None else tuple(norms)


@final
class PerExampleClipping(Clipping):
    """For the modes that keep every per-example gradient in `p.grad_sample`."""

    def take(self) -> ClippedSums:
        """Clip and sum `grad_sample`. Gradients that are not finite are set to zero.

        Gradients that autocast has rounded are clipped as they are, by norms in the precision of the parameters.
        """
        samples = [_one_pass(p) for p in self._parameters]
        if len({len(sample) for sample in samples}) > 1:
            raise Refused(
                "The layers have gradients of different numbers of examples.",
                hint="every layer must have the examples in its first dimension",
            )
        finite = torch.stack([torch.isfinite(s).flatten(1).all(1).to(samples[0].device) for s in samples]).all(0)
        if not finite.all():
            for sample in samples:
                sample[~finite.to(sample.device)] = 0.0
        squares = [squared_norms(s).to(samples[0].device) for s in samples]
        if len(self.clip_norms) == 1:
            factors = [clipping_factors(torch.stack(squares).sum(0).sqrt(), self.clip_norms[0])] * len(samples)
        else:
            pairs = zip(squares, self.clip_norms, strict=True)
            factors = [clipping_factors(square.sqrt(), norm) for square, norm in pairs]
        sums = [torch.einsum("i,i...", f.to(s), s) for f, s in zip(factors, samples, strict=True)]
        for sample in samples:
            sample._processed = True  # type: ignore[attr-defined]  # as Opacus marks it
        return ClippedSums([total.view_as(p) for total, p in zip(sums, self._parameters, strict=True)], len(finite))


@final
class GhostClipping(Clipping):
    """For ghost clipping, where the backward pass of the private criterion clips."""

    def take(self) -> ClippedSums:
        """The sums that the private criterion computed."""
        found = self._module.ghost_gradients.take()
        if found is not None and not all(is_unchanged(p) for p in self._parameters):
            raise Refused(
                "Gradients were added that were not clipped.",
                hint="call backward once for each batch, on the loss of the criterion that make_private returned",
            )
        reset_norms(self._module)
        if found is None:
            raise Refused(
                "Gradients were not clipped.",
                hint="with ghost clipping, compute the loss with the criterion that make_private returned",
            )
        return found

    def reset(self) -> None:
        """Drop norms and sums too."""
        super().reset()
        reset_norms(self._module)

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        return (self._module.max_grad_norm,)


def _trainable(module: Any) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def _one_pass(parameter: Any) -> torch.Tensor:
    sample = parameter.grad_sample
    if isinstance(sample, list) and len(sample) == 1:
        sample = sample[0]
    if not isinstance(sample, torch.Tensor):
        raise Refused(
            "A step needs the gradients of exactly one backward pass.",
            hint="call optimizer.zero_grad(), loss.backward() and optimizer.step() once for each batch",
        )
    if getattr(sample, "_processed", False):
        raise Refused(
            "The gradients of the last step were not cleared.", hint="call optimizer.zero_grad() before every batch"
        )
    if sample.dtype != parameter.dtype:
        sample = parameter.grad_sample = sample.to(parameter.dtype)
    if sample.dim() == 1:  # of a scalar parameter: Opacus sums over the dimensions of a parameter, and needs one
        sample = parameter.grad_sample = sample[:, None]
    return sample
