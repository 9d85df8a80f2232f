"""The loss of ghost clipping: one number for each example, and no gradient but the clipped one."""

from __future__ import annotations

from collections import Counter
from numbers import Real
from typing import Any, final

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping

from antiphase._errors import Refused
from antiphase.torch._precision import check_norms, full_precision

HIDING = ("CheckpointFunctionBackward",)


@final
class OnePerExample(DPLossFastGradientClipping):  # type: ignore[misc]  # Opacus has no annotations
    """Opacus's criterion, with a loss that checks what it clips."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The loss, whose backward pass clips."""
        return _Clipped.of(super().__call__(*arguments, **options))


@final
class _Clipped(DPTensorFastGradientClipping):  # type: ignore[misc]
    """Opacus's loss, which multiplies the losses by clipping factors: both must be one for each example.

    After its backward pass it notes what the gradients are, so that anything added to them later is noticed.
    """

    @classmethod
    def of(cls, loss: DPTensorFastGradientClipping) -> _Clipped:
        return cls(loss.module, loss.optimizer, loss.loss_per_sample, loss.loss_reduction)

    def __mul__(self, other: Any) -> _Clipped:
        return self.of(super().__mul__(_number(other)))

    def __truediv__(self, other: Any) -> _Clipped:
        return self.of(super().__truediv__(_number(other)))

    def __add__(self, other: Any) -> _Clipped:
        return self.of(super().__add__(other if isinstance(other, _Clipped) else _number(other)))

    def __sub__(self, other: Any) -> _Clipped:
        return self.of(super().__sub__(other if isinstance(other, _Clipped) else _number(other)))

    def backward(self) -> None:
        """Norms, then clipped gradients."""
        forget_norms(self.module)  # of a pass that was broken off
        refuse_hooks(self.optimizer.params)
        check_used_once(self.module, self.loss_per_sample)
        try:
            with full_precision(self.optimizer.params):
                super().backward()
        finally:
            self.module.enable_hooks()
        check_norms(self.module, self.optimizer.params)
        norms, losses = self.module._per_sample_gradient_norms, self.loss_per_sample
        if losses.dim() != 1 or len(losses) != len(norms):
            raise Refused(
                f"The loss has the shape {tuple(losses.shape)} for {len(norms)} examples: they were not clipped.",
                hint="ghost clipping needs one loss for each example: a criterion with a `reduction`, outputs and "
                "targets of one number an example, and shape=(examples, length) for sequences",
            )
        if not torch.isfinite(norms).all():
            raise Refused(
                "A gradient is not finite, and would make the whole sum so: who sees that knows of the example.",
                hint="make the model and the data give finite gradients, or use grad_sample_mode='hooks', "
                "where such an example counts as zero",
            )
        with full_precision(self.optimizer.params):
            self.module.kept.sum_up(self.module.get_clipping_coef())
        for p in self.optimizer.params:
            p._clipped_at = seal(p)


def forget_norms(module: Any) -> None:
    """Remove all norms of an earlier batch, so that none of them clips another one."""
    module._per_sample_gradient_norms = None
    module.kept.forget()
    for p in module.parameters():
        p._clipped_at = (None, -1)
        if hasattr(p, "_norm_sample"):
            p._norm_sample = None
    for layer in module.modules():
        if "norm_sample" in layer.__dict__:
            del layer.norm_sample


def refuse_hooks(parameters: list[Any]) -> None:
    """Refuse functions that change gradients of parameters on their way into `p.grad`: norms are taken before them."""
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        raise Refused(
            "A parameter has a hook, which may change its gradient after the norm was taken, or keep it without noise.",
            hint="remove what register_hook and register_post_accumulate_grad_hook have put on parameters, such as "
            "the logging of gradients; scale gradients in the optimizer; or use grad_sample_mode='hooks'",
        )


def check_used_once(module: Any, losses: torch.Tensor) -> None:
    """Refuse a weight that the losses depend on in more ways than through its own layer.

    Opacus takes the norm from what goes into and comes out of a layer: the gradient of another use is missing in it.
    The layers that Opacus knows use each weight once a pass. Parameters sharded by FSDP are not found in the graph.
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
                f"A weight of {name!r} is used outside its layer too, and ghost clipping would clip by half of it.",
                hint="use grad_sample_mode='hooks' for weights that a function uses again; a penalty on weights needs "
                "no data: the optimizer's weight_decay",
            )


def _refuse_hidden(node: Any) -> None:
    """Refuse a part of the graph that is made only in the backward pass: uses of weights in it are not seen here."""
    if node is not None and node.name() in HIDING:
        raise Refused(
            "Which weights a checkpointed function uses is not known before its backward pass.",
            hint="use grad_sample_mode='hooks' with torch.utils.checkpoint, and use_reentrant=True there",
        )


def seal(parameter: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """The gradient as it is now, and how often it was changed in place."""
    gradient = parameter.grad
    return gradient, 0 if gradient is None else gradient._version


def is_sealed(parameter: Any) -> bool:
    """Whether the gradient is still what the private backward pass left."""
    gradient, version = getattr(parameter, "_clipped_at", (None, -1))
    now, changes = seal(parameter)
    return gradient is now and version == changes


def _number(value: Any) -> Real:
    if isinstance(value, Real):
        return value
    raise Refused(
        f"A {type(value).__name__} in a private loss may mix the examples, or have a gradient that is not clipped.",
        hint="put all that depends on the outputs into the criterion; numbers and private losses can be combined",
    )
