"""Clips the per-example gradients of a physical batch to the plan's `clip_norm`, sums them, and counts the examples.

A physical batch is the input of one forward and backward pass. Opacus's BatchMemoryManager splits the batch of a step
into several physical batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Any, final

import torch
from opacus.optimizers import DPOptimizer

from antiphase._errors import Refused
from antiphase._lattice import Lattice
from antiphase.torch._criterion import clipping_factors, is_unchanged, reset_norms
from antiphase.torch._ghost import ClippedSums
from antiphase.torch._names import parameter_names
from antiphase.torch._positions import check_repeated
from antiphase.torch._precision import squared_norms, weighted_sum, widen


class Clipping(ABC):
    """Base class: computes the sum of the clipped per-example gradients of a physical batch.

    Args:
        module: model, wrapped by Opacus.
        parameters: all trained parameters.
        clip_norms: one clipping norm for the whole gradient, or one per parameter.
    """

    lattice: Lattice | None = None  # the grid on which gradients are exact integers, if the plan has a lattice

    def __init__(self, module: Any, parameters: list[torch.Tensor], clip_norms: tuple[float, ...]) -> None:
        self._module, self._parameters, self.clip_norms = module, parameters, clip_norms
        self._trainable = _trainable(module)
        self._names = parameter_names(module)

    @abstractmethod
    def take(self) -> ClippedSums:
        """Return the sums of the clipped gradients of this physical batch, and the number of its examples.

        A second call for the same physical batch raises `Refused`.
        """

    def zeros(self) -> list[torch.Tensor]:
        """Return the sums for a batch without examples: a tensor of zeros for each parameter."""
        return [torch.zeros_like(p).detach() for p in self._parameters]

    def add(self, total: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        """Return `total + more`, computed in float64; `weighted_sum` in `_precision.py` explains why."""
        return widen(total).add_(more)

    def reset(self) -> None:
        """Delete the gradients and activations that an interrupted pass left in the module."""
        for p in self._module.parameters():
            p.grad_sample = None
            vars(p).pop("_current_grad_sample", None)
            if hasattr(p, "_forward_counter"):
                p._forward_counter = 0
        for layer in self._module.modules():
            if any(p.requires_grad for p in layer.parameters(recurse=False)):  # Opacus hooks these layers
                for name in ("activations", "max_batch_len", "_forward_counter"):
                    vars(layer).pop(name, None)
        if hasattr(self._module, "layer_inputs"):
            self._module.layer_inputs.reset()

    def check_unchanged(self, optimizer: DPOptimizer) -> None:
        """Raise `Refused` if the trained parameters or the clipping norms have changed since `make_private`."""
        now = optimizer.params
        if len(now) != len(self._parameters) or any(p is not q for p, q in zip(now, self._parameters, strict=True)):
            raise Refused(
                "The trained parameters are not the ones that were passed to make_private.",
                hint="freeze or add parameters before make_private; to train other parameters, start a new run",
            )
        if changed := sorted(_trainable(self._module) ^ self._trainable):
            raise Refused(
                f"The parameter {changed[0]!r} was frozen, unfrozen or added after make_private. It could be trained "
                "without noise.",
                hint="freeze or add parameters before make_private; to train other parameters, start a new run",
            )
        if self._norms(optimizer) != self.clip_norms:
            raise Refused(
                f"The clipping norms were changed from {self.clip_norms} to {self._norms(optimizer)}.",
                hint="the noise is calibrated to the plan's clip_norm; to change the norm, make a new plan",
            )

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        norms = getattr(optimizer, "max_grad_norms", None)
        return (optimizer.max_grad_norm,) if norms is None else tuple(norms)


@final
class PerExampleClipping(Clipping):
    """Clips the per-example gradients that Opacus stores in `p.grad_sample`.

    Opacus stores them with grad_sample_mode "hooks", "functorch" or "ew".
    """

    def take(self) -> ClippedSums:
        """Clip and sum `grad_sample`. If any entry of an example's gradient is not finite, use zero for that example.

        Gradients computed under autocast are cast to the dtype of the parameters before their norms are computed.
        """
        samples = self.read()
        squares = torch.stack([squared_norms(s).to(samples[0].device) for s in samples])
        for p, square in zip(self._parameters, squares, strict=True):
            check_repeated(self._names[id(p)], p, square, squares.sum(0))
        # A row is the gradient of one example. If one of its entries is not finite, its norm is not finite either. The
        # norm of a finite row can also overflow, but the clipping factor of such a row would be 0 anyway.
        finite = torch.isfinite(squares).all(0)
        if not finite.all():
            squares[:, ~finite] = 0.0
            for sample in samples:
                sample[~finite.to(sample.device)] = 0.0
        if len(self.clip_norms) == 1:
            factors = [clipping_factors(squares.sum(0).sqrt(), self.clip_norms[0])] * len(samples)
        else:
            pairs = zip(squares, self.clip_norms, strict=True)
            factors = [clipping_factors(square.sqrt(), norm) for square, norm in pairs]
        sums = [weighted_sum(f, s) for f, s in zip(factors, samples, strict=True)]
        self.mark_used()
        return ClippedSums([total.view_as(p) for total, p in zip(sums, self._parameters, strict=True)], len(finite))

    def read(self) -> list[torch.Tensor]:
        """Return the per-example gradients of this pass, in the dtype of each parameter."""
        self._check_passes()
        if hasattr(self._module, "layer_inputs"):
            self._module.layer_inputs.warn_changed()
        samples = [_sample(p) for p in self._parameters]
        if len({len(sample) for sample in samples}) > 1:
            lengths = Counter(len(sample) for sample in samples)
            usual = lengths.most_common(1)[0][0]
            other = next(p for p, sample in zip(self._parameters, samples, strict=True) if len(sample) != usual)
            raise Refused(
                f"The parameter {self._names[id(other)]!r} has per-example gradients for a different number of "
                "examples than most other parameters.",
                hint="make the batch the first dimension of the input of every layer; look up position embeddings for "
                "every example, with position_ids=torch.arange(length).expand(len(tokens), -1)",
            )
        return samples

    def mark_used(self) -> None:
        """Replace the gradients that `read` returned with placeholders; see `_used`."""
        for p in self._parameters:
            p.grad_sample = _used(p)  # type: ignore[attr-defined]

    def _check_passes(self) -> None:
        """Raise `Refused` unless every parameter has the gradients of exactly one backward pass."""
        parameters: list[Any] = self._parameters
        found = [p.grad_sample for p in parameters]
        wrong = [p for p in parameters if not _is_one_pass(p.grad_sample)]
        used = [p for p in parameters if getattr(p.grad_sample, "_processed", False)]
        if used:
            raise Refused(
                f"The gradients of the last batch were not cleared: {self._names[id(used[0])]!r} still has them.",
                hint="call optimizer.zero_grad() before every backward pass",
            )
        if not wrong:
            return
        first = wrong[0]
        name, sample = self._names[id(first)], first.grad_sample
        if isinstance(sample, list) and len(sample) > 1:
            raise Refused(
                f"backward was called {len(sample)} times for one step: {name!r} has the gradients of each call.",
                hint="call backward once for each batch, on the sum of its losses; to split a batch, use Opacus's "
                "BatchMemoryManager",
            )
        if "_current_grad_sample" in vars(first):
            raise Refused(
                f"The layer of {name!r} was called several times, but the backward pass reached only some of the "
                "calls.",
                hint="use the outputs of all calls in the loss; run evaluations under torch.no_grad()",
            )
        if all(sample is None for sample in found):
            raise Refused(
                "There are no per-example gradients: backward was not called for this batch, or zero_grad was called "
                "after it.",
                hint="call optimizer.zero_grad(), loss.backward() and optimizer.step(), in this order, for each batch",
            )
        how = "its layer ran, but the loss does not depend on it" if _ran(first) else "its layer was not called"
        raise Refused(
            f"The parameter {name!r} has no gradient: {how}. Number of such parameters: {len(wrong)}.",
            hint="use every trained parameter in the loss of every batch, or freeze it with requires_grad_(False) "
            "before make_private",
        )


@final
class GhostClipping(Clipping):
    """Returns the sums of clipped gradients that `backward` of a private loss has computed.

    A private loss is a loss from the criterion that `make_private` returns with grad_sample_mode "ghost" or
    "ghost_fsdp".
    """

    def take(self) -> ClippedSums:
        """Return the sums that `backward` computed, after checking that `p.grad` has not changed since then."""
        found = self._module.ghost_gradients.take()
        if found is not None and not all(is_unchanged(p) for p in self._parameters):
            raise Refused(
                f"The gradient of {self._changed()!r} was changed after backward, or gradients that were not clipped "
                "were added to it.",
                hint="call backward once for each batch, on the loss from the criterion that make_private returned; "
                "remove torch.nn.utils.clip_grad_norm_, gradient scalers and similar code, since the gradient of each "
                "example is already clipped; to change noisy gradients, use attach_step_hook",
            )
        reset_norms(self._module)
        if found is None:
            raise Refused(
                "The gradients were not clipped: backward was not called for this batch, or it was called on the loss "
                "of another criterion.",
                hint="with ghost clipping, compute the loss with the criterion that make_private returned, and call "
                "backward() on it once for each batch",
            )
        return found

    def _changed(self) -> str:
        return next(self._names[id(p)] for p in self._parameters if not is_unchanged(p))

    def reset(self) -> None:
        """Do what the base class does, and also delete the gradient norms and the sums of clipped gradients."""
        super().reset()
        reset_norms(self._module)

    def _norms(self, optimizer: DPOptimizer) -> tuple[float, ...]:
        return (self._module.max_grad_norm,)


def _used(parameter: torch.Tensor) -> torch.Tensor:
    """Return a placeholder that replaces used per-example gradients, so that a saved model does not contain them.

    The placeholder has Opacus's mark for used gradients, `_processed`, so that a missing zero_grad is detected.
    """
    mark = torch.zeros(1, *[1] * parameter.dim(), dtype=parameter.dtype, device=parameter.device)
    mark._processed = True  # type: ignore[attr-defined]
    return mark


def _trainable(module: Any) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def _is_one_pass(sample: Any) -> bool:
    return isinstance(sample, torch.Tensor) or (isinstance(sample, list) and len(sample) == 1)


def _ran(parameter: Any) -> bool:
    """Return whether the layer of a parameter was called, but no backward pass has reached that call."""
    return bool(getattr(parameter, "_forward_counter", 0))


def _sample(parameter: Any) -> torch.Tensor:
    """Return the per-example gradients of one pass, in the dtype of the parameter."""
    sample: torch.Tensor = parameter.grad_sample
    if isinstance(sample, list):
        sample = sample[0]
    if sample.dtype != parameter.dtype:
        sample = parameter.grad_sample = sample.to(parameter.dtype)
    if sample.dim() == 1:  # a scalar parameter: turn the number of each example into a vector of length 1
        sample = parameter.grad_sample = sample[:, None]
    return sample
