"""Opacus's optimizers with the plan's noise in place of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from torch.distributed.tensor import DTensor

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._clipping_checks import ClippingCheck
from antiphase.torch._precision import full_precision
from antiphase.torch._step_tracker import StepTracker

READ_ONLY = {
    "noise_multiplier": "noise schedulers change the mechanism, for which no guarantee is proved",
    "_adjusted_noise_multiplier": "adaptive clipping changes the mechanism, for which no guarantee is proved",
    "max_grad_norm": "adaptive clipping and clipping schedulers are not proved for correlated noise",
    "max_grad_norms": "adaptive clipping and clipping schedulers are not proved for correlated noise",
    "expected_batch_size": "the plan sets it; another value would rescale the noise",
    "loss_reduction": "pass it to make_private",
    "secure_mode": "the noise comes from AES-256 already",
    "generator": "the noise comes from the run",
}


class PrivateOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no annotations
    """What all optimizers have in common: noise on the sum, once per logical step, then scaling.

    Each of Opacus's optimizers calls `add_noise` once per logical step, when the clipped gradients of all its physical
    batches are summed. Here this adds the plan's noise. The distributed optimizers sum over ranks afterwards. The step
    is committed last, right before the parameters are updated.
    """

    _tracker: StepTracker
    _check: ClippingCheck
    _is_read_only = False

    __reduce_ex__ = refuse_pickle

    def attach(self, tracker: StepTracker, check: ClippingCheck) -> None:
        """Take noise and steps from `tracker`. From now on, nothing that scales the noise can be changed."""
        self._tracker, self._check = tracker, check
        self.original_optimizer.register_step_pre_hook(self._commit)
        self._is_read_only = True

    def _commit(self, *_: Any) -> None:
        """Commit the step before the parameters are updated. Refused if the gradients have no noise."""
        if not self._tracker.noise.is_added:
            raise Refused(
                "The optimizer that was passed to make_private would take a step without noise.",
                hint="use the optimizer that make_private returned",
            )
        for group in self.original_optimizer.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    p.grad = None  # from before it was frozen: it has no noise
        self._tracker.commit()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_read_only and name in READ_ONLY:
            raise Refused(f"{name} of a private optimizer cannot be changed.", hint=READ_ONLY[name])
        super().__setattr__(name, value)

    def pre_step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Count the gradients that are about to be summed, then do as Opacus does."""
        self._check.check_unchanged(self)
        with full_precision(self.params):
            self._tracker.count(self._check.count(self))
            result: float | None = super().pre_step(closure)
        return result

    def add_noise(self) -> None:
        """Put the sum of the clipped gradients and the step's noise into `p.grad`."""
        self._tracker.check_sum()
        for p in self.params:
            p.grad = _sum_of(self, p)
        self._tracker.noise.add()

    def scale_grad(self) -> None:
        """Divide by the expected batch size for "mean". A step is one batch of the plan, even if it was split."""
        if self.loss_reduction == "mean":
            for p in self.params:
                p.grad /= self.expected_batch_size

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Process one physical batch. After the last one, take the step, and following steps without examples."""
        result: float | None = super().step(closure)
        if not self._is_last_step_skipped:
            self._check_committed()
            self.take_empty_steps()
        return result

    def begin_batch(self) -> None:
        """Drop the sum of an interrupted batch: it would count twice when the batch is processed again."""
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        for p in self.params:
            _set_sum(self, p, None)
        self._check.reset()
        self._tracker.reset_count()

    def take_empty_steps(self) -> None:
        """Take all steps up to the next one that has examples, with noise but without forward and backward."""
        while self._tracker.is_empty:
            self._tracker.start_empty_batch()
            for p in self.params:
                _set_sum(self, p, torch.zeros_like(p).detach())
            self.add_noise()
            self.scale_grad()
            if hasattr(self, "reduce_gradients"):
                self.reduce_gradients()
            self.original_optimizer.step()
            self._check_committed()
            self._is_last_step_skipped = False
            self.zero_grad(set_to_none=True)

    def _check_committed(self) -> None:
        """If the optimizer skipped the hook that commits the step, commit it now and raise."""
        if self._tracker.noise.is_added:
            self._tracker.commit()
            raise Refused(
                f"{type(self.original_optimizer).__name__} updates the parameters before the step can be recorded.",
                hint="use an optimizer whose step() runs the hooks of torch.optim.Optimizer",
            )


def private_class(base: type[DPOptimizer]) -> type[PrivateOptimizer]:
    """A subclass of one of Opacus's optimizers that adds the plan's noise instead."""
    return type(f"Private{base.__name__}", (PrivateOptimizer, base), {"__doc__": base.__doc__})


def _sum_of(optimizer: DPOptimizer, parameter: Any) -> torch.Tensor:
    """The sum of the clipped gradients: over all ranks with FSDP, else of this rank."""
    if isinstance(optimizer, FSDPOptimizerFastGradientClipping):
        total: DTensor = optimizer.grad_state[parameter]["summed_grad"]
        total.to_local().mul_(optimizer.world_size)  # FSDP divided by it, but noise is calibrated to the sum
        return total
    held: torch.Tensor = parameter.summed_grad
    if getattr(held, "_processed", False):
        raise Refused(
            "The gradients of the last step were not cleared.", hint="call optimizer.zero_grad() before every batch"
        )
    held._processed = True  # type: ignore[attr-defined]  # as Opacus marks it
    return held.contiguous().view_as(parameter)


def _set_sum(optimizer: DPOptimizer, parameter: Any, value: torch.Tensor | None) -> None:
    if isinstance(optimizer, FSDPOptimizerFastGradientClipping):
        optimizer.grad_state[parameter]["summed_grad"] = value
    else:
        parameter.summed_grad = value
