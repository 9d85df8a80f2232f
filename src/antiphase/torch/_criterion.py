"""The criterion for ghost clipping. `backward` of its loss computes the sum of the clipped per-example gradients."""

from __future__ import annotations

from collections import Counter
from numbers import Real
from typing import Any, final

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping, DPTensorFastGradientClipping

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch._compile import untraced
from antiphase.torch._names import layer_names
from antiphase.torch._precision import full_precision

RECOMPUTED = ("CheckpointFunctionBackward",)  # graph nodes of torch.utils.checkpoint with use_reentrant=True


@final
class GhostClippingLoss(DPLossFastGradientClipping):  # type: ignore[misc]  # Opacus has no annotations
    """Opacus's criterion for ghost clipping, with checks that all gradients are clipped.

    Args:
        module: model, wrapped by Opacus with loss_reduction="sum", because `backward` always adds up the losses.
        optimizer: private optimizer. With loss_reduction="mean", it divides the noisy sum by the plan's batch size.
        criterion: loss function. If it has an attribute `reduction`, this must equal the optimizer's loss_reduction.
    """

    def __init__(self, module: Any, optimizer: Any, criterion: Any) -> None:
        self.module, self.optimizer, self.criterion = module, optimizer, criterion
        self.loss_reduction = optimizer.loss_reduction
        if not hasattr(criterion, "reduction"):
            criterion.reduction = self.loss_reduction
        if criterion.reduction != self.loss_reduction:
            raise InvalidArgument(
                f"The criterion has reduction={criterion.reduction!r}, but make_private has "
                f"loss_reduction={self.loss_reduction!r}.",
                hint="pass the reduction of the criterion as loss_reduction",
            )

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Return a loss whose `backward` clips the gradient of each example."""
        return _ClippedLoss.of(super().__call__(*arguments, **options))


@final
class _ClippedLoss(DPTensorFastGradientClipping):  # type: ignore[misc]
    """The per-example losses of a batch. `backward` computes the sum of the clipped gradients.

    The optimizer reads that sum from `GhostGradients` (in `_ghost.py`). `p.grad` is only a copy of the sum. `backward`
    records the version of the copy, so that `GhostClipping.take` can raise `Refused` if anything was added to the copy.
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

    @untraced
    def backward(self) -> None:
        """Compute the per-example gradient norms and the sum of the clipped gradients."""
        reset_norms(self.module)  # an interrupted pass may have left norms or gradients
        self.optimizer.check_unchanged()
        refuse_hooks(self.optimizer.params)
        leaves = check_used_once(self.module, self.loss_per_sample)
        ghost, losses = self.module.ghost_gradients, self.loss_per_sample
        with full_precision(self.optimizer.params):
            losses.sum().backward(inputs=ghost.needed_gradients(leaves))  # not the mean: see `refuse_rounded_mean`
            for p in self.optimizer.params:
                p.grad = None  # this gradient is not clipped
            norms = ghost.norms()
            if losses.dim() != 1 or len(losses) != len(norms):
                ghost.clear()
                raise Refused(
                    "The loss does not have one value per example, so per-example gradients cannot be clipped.",
                    hint="use a criterion that returns one loss per example if its `reduction` is 'none'; for "
                    "regression, use outputs and targets of shape (examples,); for sequences, pass "
                    "shape=(examples, length) to the criterion",
                )
            if not torch.isfinite(norms).all():
                ghost.clear()
                raise _not_finite()
            self.module.per_sample_gradient_norms = norms
            ghost.clip(clipping_factors(norms, self.optimizer.clip_norms[0]))
        for p, total in zip(self.optimizer.params, ghost.batch.sums, strict=True):
            p.grad = total.clone()
            p._clipped_at = gradient_version(p)


def is_private_loss(loss: Any) -> bool:
    """Return whether a loss is from the criterion that `make_private` returned for ghost clipping."""
    return isinstance(loss, _ClippedLoss)


def backward_per_example(loss: Any, weights: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the norm of each example's gradient, and the weighted sum of the gradients for each parameter.

    The private optimizer cannot take a step with these gradients, because `GhostGradients` no longer holds them.

    Args:
        loss: private loss of a batch.
        weights: weight of each example, shape (examples,).
    """
    ghost, losses = loss.module.ghost_gradients, loss.loss_per_sample
    reset_norms(loss.module)
    with full_precision(loss.optimizer.params):
        losses.sum().backward()
        norms = ghost.norms()
        if len(norms) != len(weights):
            raise Refused(
                "The number of rows in the layers differs from the number of examples in the batch.",
                hint="make the batch the first dimension of the input of every layer",
            )
        if not torch.isfinite(norms).all():
            ghost.clear()
            raise _not_finite()
        ghost.clip(weights.to(norms))
    sums = ghost.take().sums
    return norms.detach().double().cpu(), sums


def clipping_factors(norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Return the factor, at most 1, that scales each gradient to norm `clip_norm` or less.

    As in Opacus, 1e-6 is added to the norms to avoid division by zero, so clipped norms are slightly below `clip_norm`.

    Args:
        norms: norm of each example's gradient, shape (examples,).
        clip_norm: largest norm after clipping.
    """
    return (clip_norm / (norms + 1e-6)).clamp(max=1.0)


def reset_norms(module: Any) -> None:
    """Delete all norms and gradients of an earlier batch."""
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
    """Raise `Refused` if a parameter has a hook, which could change the gradient after the norm was computed."""
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        raise Refused(
            "A parameter has a hook, which may change its gradient after the norm was computed, or read the gradient "
            "before noise is added.",
            hint="remove hooks added by register_hook or register_post_accumulate_grad_hook, such as hooks that log "
            "gradients; to change noisy gradients, use attach_step_hook; or use grad_sample_mode='hooks'",
        )


def check_used_once(module: Any, losses: torch.Tensor) -> list[torch.Tensor]:
    """Raise `Refused` if the autograd graph of the losses uses a weight more often than its own layer does.

    Returns all leaves of the graph: the tensors, mostly parameters, in which `backward` would store gradients.

    Ghost clipping computes the gradient norm of a weight from the inputs of its layer and the gradients of the layer's
    outputs. This computation misses any other use of the weight, such as a weight penalty in the loss. The layers that
    Opacus supports use each weight once per call. Parameters sharded by FSDP do not appear in the graph, so they are
    not checked.
    """
    uses, seen = Counter[int](), set()
    leaves: dict[int, torch.Tensor] = {}
    waiting: list[Any] = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        for following, _ in () if node is None else node.next_functions:
            leaf = _leaf(following)
            if leaf is not None:
                uses[id(leaf)] += 1
                leaves[id(leaf)] = leaf
            elif following not in seen:
                _refuse_hidden(following)
                seen.add(following)
                waiting.append(following)
    used = [p for p in module.parameters() if uses[id(p)]]  # empty with FSDP
    if used and not any(getattr(p, "_forward_counter", 1) for p in used):
        raise Refused(
            "backward was already called on this loss, or the loss was computed in an interrupted batch. So no forward "
            "pass matches this backward pass.",
            hint="call backward once for each forward pass, and run a new forward pass for each batch",
        )
    names = layer_names(module)
    for layer in module.modules():
        known = type(layer) in module.NORM_SAMPLERS or type(layer) in module.GRAD_SAMPLERS
        if known and any(uses[id(p)] > p._forward_counter for p in layer.parameters(recurse=False) if p.requires_grad):
            raise Refused(
                f"A weight of {names[id(layer)]!r} is also used outside its layer. Ghost clipping would ignore that "
                "use and compute too small a norm.",
                hint="if a function uses the weight again, use grad_sample_mode='hooks'; if the loss has a weight "
                "penalty, use the optimizer's weight_decay instead",
            )
    return list(leaves.values())


def _leaf(node: Any) -> torch.Tensor | None:
    """Return the leaf tensor, such as a parameter, that a node of the autograd graph stands for, or None.

    Under autocast, all uses of a parameter share one copy in lower precision. The node of that copy also stands for the
    parameter.
    """
    if node is None:
        return None
    if node.name() == "ToCopyBackward0":
        node = node.next_functions[0][0]
    is_leaf = node is not None and node.name() == "torch::autograd::AccumulateGrad"
    return node.variable if is_leaf else None


def _refuse_hidden(node: Any) -> None:
    """Raise `Refused` if a node stands for a checkpointed function, whose weights are not in the graph.

    The backward pass calls the function again, and its weights are only in the graph of that second call.
    """
    if node is not None and node.name() in RECOMPUTED:
        raise Refused(
            "Ghost clipping cannot check which weights a function under torch.utils.checkpoint uses.",
            hint="pass use_reentrant=False to torch.utils.checkpoint, or use grad_sample_mode='hooks'",
        )


def gradient_version(parameter: torch.Tensor) -> tuple[torch.Tensor | None, int]:
    """Return the current gradient of a parameter, and how often this gradient was changed in place."""
    gradient = parameter.grad
    return gradient, 0 if gradient is None else gradient._version


def is_unchanged(parameter: Any) -> bool:
    """Return whether `p.grad` is still the tensor that the private backward pass stored, without modifications."""
    gradient, version = getattr(parameter, "_clipped_at", (None, -1))
    now, changes = gradient_version(parameter)
    return gradient is now and version == changes


def _not_finite() -> Refused:
    return Refused(
        "The gradient of an example is not finite. The sum would not be finite either, which would reveal that the "
        "example is in the batch.",
        hint="fix the model or the data, or use grad_sample_mode='hooks', which replaces such a gradient by zero",
    )


def _number(value: Any) -> Real:
    if isinstance(value, Real):
        return value
    raise Refused(
        "A private loss (from the criterion that make_private returned) cannot be combined with a "
        f"{type(value).__name__}, which may mix examples or have a gradient that is not clipped.",
        hint="compute everything that depends on the model's outputs inside the criterion; a private loss can be "
        "combined only with numbers and other private losses",
    )
