"""The loss for ghost clipping: one value per example, and only clipped gradients."""

from __future__ import annotations

from collections import Counter
from numbers import Real
from typing import Any, final

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping

from antiphase._errors import Refused
from antiphase.torch._precision import full_precision

RECOMPUTED = ("CheckpointFunctionBackward",)


@final
class GhostClippingLoss(DPLossFastGradientClipping):  # type: ignore[misc]  # Opacus has no annotations
    """Opacus's criterion, whose loss also checks what it clips."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return the loss, whose backward pass clips."""
        return _ClippedLoss.of(super().__call__(*arguments, **options))


@final
class _ClippedLoss(DPTensorFastGradientClipping):  # type: ignore[misc]
    """The losses of a batch, whose backward pass computes the sum of the clipped gradients.

    The optimizer takes that sum from `GhostGradients`. `p.grad` is a copy to look at; after the backward pass its
    version is noted, so that anything added to it is refused.
    """

    @classmethod
    def of(cls, loss: DPTensorFastGradientClipping) -> _ClippedLoss:
        return cls(loss.module, loss.optimizer, loss.loss_per_sample, loss.loss_reduction)

    def __mul__(self, other: Any) -> _ClippedLoss:
        return self.of(super().__mul__(_number(other)))

    def __truediv__(self, other: Any) -> _ClippedLoss:
        return self.of(super().__truediv__(_number(other)))

    def __add__(self, other: Any) -> _ClippedLoss:
        return self.of(super().__add__(other if isinstance(other, _ClippedLoss) else _number(other)))

    def __sub__(self, other: Any) -> _ClippedLoss:
        return self.of(super().__sub__(other if isinstance(other, _ClippedLoss) else _number(other)))

    def __rsub__(self, other: Any) -> _ClippedLoss:
        return self.of(super().__rsub__(_number(other)))

    def __neg__(self) -> _ClippedLoss:
        return self.of(super().__neg__())

    def backward(self) -> None:
        """Compute the gradients, their norms, and the sum of the clipped gradients."""
        reset_norms(self.module)  # of an interrupted pass
        self.optimizer.check_unchanged()
        refuse_hooks(self.optimizer.params)
        check_used_once(self.module, self.loss_per_sample)
        ghost, losses = self.module.ghost_gradients, self.loss_per_sample
        with full_precision(self.optimizer.params):
            (losses.mean(0) if self.loss_reduction == "mean" else losses.sum(0)).sum().backward()
            for p in self.optimizer.params:
                p.grad = None  # not clipped
            norms = ghost.norms()
            if losses.dim() != 1 or len(losses) != len(norms):
                ghost.clear()
                raise Refused(
                    "The loss does not have one value per example, so the gradients are not clipped.",
                    hint="ghost clipping needs one loss per example: a criterion with a `reduction`, outputs and "
                    "targets with one value per example, and shape=(examples, length) for sequences",
                )
            if not torch.isfinite(norms).all():
                ghost.clear()
                raise Refused(
                    "A gradient is not finite. The sum would not be finite either, which would reveal the example.",
                    hint="fix the model or the data, or use grad_sample_mode='hooks', where such an example counts as "
                    "zero",
                )
            self.module.per_sample_gradient_norms = norms
            ghost.clip(clipping_factors(norms, self.optimizer.clip_norms[0]))
        for p, total in zip(self.optimizer.params, ghost.batch.sums, strict=True):
            p.grad = total.clone()
            p._clipped_at = gradient_version(p)


def clipping_factors(norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """What to multiply gradients with, given their norms. As in Opacus, slightly less than needed."""
    return (clip_norm / (norms + 1e-6)).clamp(max=1.0)


def reset_norms(module: Any) -> None:
    """Drop all norms and gradients of an earlier batch."""
    module._per_sample_gradient_norms = None
    module.ghost_gradients.clear()
    for p in module.parameters():
        p._clipped_at = (None, -1)
        if hasattr(p, "_norm_sample"):
            p._norm_sample = None
    for layer in module.modules():
        if "norm_sample" in layer.__dict__:
            del layer.norm_sample


def refuse_hooks(parameters: list[Any]) -> None:
    """Refuse hooks on parameters: they can change gradients after the norms were computed."""
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        raise Refused(
            "A parameter has a hook, which may change its gradient after the norm was computed, or see it without "
            "noise.",
            hint="remove hooks added by register_hook or register_post_accumulate_grad_hook, such as for logging "
            "gradients; scale gradients in the optimizer; or use grad_sample_mode='hooks'",
        )


def check_used_once(module: Any, losses: torch.Tensor) -> None:
    """Refuse a weight that the losses use outside its own layer too.

    Opacus computes the norm from the inputs and outputs of a layer, which misses the gradient of any other use. The
    layers that Opacus knows use each weight once per pass. Parameters sharded by FSDP are not found in the graph.
    """
    uses, seen = Counter[int](), set()
    waiting: list[Any] = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following.name() == "torch::autograd::AccumulateGrad":
                uses[id(following.variable)] += 1
            elif following not in seen:
                _refuse_hidden(following)
                seen.add(following)
                waiting.append(following)
    for name, layer in module.named_modules():
        known = type(layer) in module.NORM_SAMPLERS or type(layer) in module.GRAD_SAMPLERS
        if known and any(uses[id(p)] > p._forward_counter for p in layer.parameters(recurse=False) if p.requires_grad):
            raise Refused(
                f"A weight of {name!r} is also used outside its layer, and ghost clipping would miss that part of its "
                "norm.",
                hint="use grad_sample_mode='hooks' if a function uses the weight again; instead of a penalty on "
                "weights in the loss, use the optimizer's weight_decay",
            )


def _refuse_hidden(node: Any) -> None:
    """Refuse parts of the graph that are built during the backward pass: their uses of weights cannot be seen here."""
    if node is not None and node.name() in RECOMPUTED:
        raise Refused(
            "It is not known before the backward pass which weights a checkpointed function uses.",
            hint="with torch.utils.checkpoint use grad_sample_mode='hooks' and use_reentrant=True",
        )


def gradient_version(parameter: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """The current gradient, and how often it was changed in place."""
    gradient = parameter.grad
    return gradient, 0 if gradient is None else gradient._version


def is_unchanged(parameter: Any) -> bool:
    """Whether the gradient is still the result of the private backward pass."""
    gradient, version = getattr(parameter, "_clipped_at", (None, -1))
    now, changes = gradient_version(parameter)
    return gradient is now and version == changes


def _number(value: Any) -> Real:
    if isinstance(value, Real):
        return value
    raise Refused(
        f"A {type(value).__name__} in a private loss may mix examples, or have a gradient that is not clipped.",
        hint="compute everything that depends on the outputs in the criterion; a private loss can be combined only "
        "with numbers and other private losses",
    )
