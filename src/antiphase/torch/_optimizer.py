"""Opacus's optimizers with the plan's noise: one place for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from torch.distributed.tensor import DTensor

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._course import Course
from antiphase.torch._precision import full_precision
from antiphase.torch._rows import Rows

FIXED = {
    "noise_multiplier": "noise schedulers change the mechanism, and no guarantee is proved for that",
    "_adjusted_noise_multiplier": "adaptive clipping changes the mechanism, and no guarantee is proved for that",
    "max_grad_norm": "adaptive clipping and clipping schedulers are not proved for correlated noise",
    "max_grad_norms": "adaptive clipping and clipping schedulers are not proved for correlated noise",
    "expected_batch_size": "it belongs to the plan; a new one would rescale the noise",
    "loss_reduction": "it was given to make_private",
    "secure_mode": "the noise comes from AES-256 already",
    "generator": "the noise comes from the run",
}


class PrivateSteps(DPOptimizer):  # type: ignore[misc]  # Opacus has no annotations
    """What is the same for every optimizer of Opacus: noise once a logical step, on the sum, then the scaling.

    Each of Opacus's optimizers calls `add_noise` once a logical step, when the clipped gradients of all its physical
    batches are summed up; its own noise is replaced there. The distributed ones sum over ranks afterwards. The step is
    committed last, right before the parameters move.
    """

    _course: Course
    _seen: Rows
    _sealed = False

    __reduce_ex__ = refuse_pickle

    def follow(self, course: Course, rows: Rows) -> None:
        """Take noise and steps from `course` from now on; nothing that scales the noise can be changed after this."""
        self._course, self._seen = course, rows
        self.original_optimizer.register_step_pre_hook(self._commit)
        self._sealed = True

    def _commit(self, *_: Any) -> None:
        """Record what is about to move the parameters; only gradients with the step's noise may."""
        if not self._course.noise.is_added:
            raise Refused(
                "The optimizer that make_private was given would take a step without noise.",
                hint="use the optimizer that make_private returned",
            )
        for group in self.original_optimizer.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    p.grad = None  # of a time before it was frozen: it has no noise
        self._course.advance()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._sealed and name in FIXED:
            raise Refused(f"{name} of a private optimizer cannot be changed.", hint=FIXED[name])
        super().__setattr__(name, value)

    def pre_step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Count what is about to be summed, then go on as Opacus does."""
        self._seen.check_unchanged(self)
        with full_precision(self.params):
            self._course.count(self._seen.count(self))
            result: float | None = super().pre_step(closure)
        return result

    def add_noise(self) -> None:
        """Put the sum of the clipped gradients and the step's noise into `p.grad`."""
        self._course.check_rows()
        for p in self.params:
            p.grad = _sum_of(self, p)
        self._course.noise.add()

    def scale_grad(self) -> None:
        """Divide by the expected batch size for "mean"; a step is one batch of the plan, however many pieces it has."""
        if self.loss_reduction == "mean":
            for p in self.params:
                p.grad /= self.expected_batch_size

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One physical batch; with the last one of a batch, the step, and those after it that have no example."""
        result: float | None = super().step(closure)
        if not self._is_last_step_skipped:
            self._check_committed()
            self.take_empty_steps()
        return result

    def begin_batch(self) -> None:
        """Drop the pieces of a batch that was broken off: they would count twice when it is taken again."""
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        for p in self.params:
            _set_sum(self, p, None)
        self._seen.forget()
        self._course.drop_rows()

    def take_empty_steps(self) -> None:
        """Take all steps before the next one that has an example: noise without forward and backward."""
        while self._course.is_empty:
            self._course.take_empty()
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
        """Record the step after all, and stop, where the optimizer does not call the hooks of torch's."""
        if self._course.noise.is_added:
            self._course.advance()
            raise Refused(
                f"{type(self.original_optimizer).__name__} moves the parameters before the step can be recorded.",
                hint="use an optimizer whose step() runs the hooks of torch.optim.Optimizer",
            )


def private_class(base: type[DPOptimizer]) -> type[PrivateSteps]:
    """One of Opacus's optimizers with the plan's noise in place of its own."""
    return type(f"Private{base.__name__}", (PrivateSteps, base), {"__doc__": base.__doc__})


def _sum_of(optimizer: DPOptimizer, parameter: Any) -> torch.Tensor:
    """The sum of the clipped gradients: of all ranks for FSDP, else of this rank."""
    if isinstance(optimizer, FSDPOptimizerFastGradientClipping):
        total: DTensor = optimizer.grad_state[parameter]["summed_grad"]
        total.to_local().mul_(optimizer.world_size)  # FSDP has divided by it, and noise is calibrated to the sum
        return total
    held: torch.Tensor = parameter.summed_grad
    if getattr(held, "_processed", False):
        raise Refused(
            "The gradients of the last step were not cleared.", hint="call optimizer.zero_grad() before every batch"
        )
    held._processed = True  # type: ignore[attr-defined]  # Opacus's own mark
    return held.contiguous().view_as(parameter)


def _set_sum(optimizer: DPOptimizer, parameter: Any, value: torch.Tensor | None) -> None:
    if isinstance(optimizer, FSDPOptimizerFastGradientClipping):
        optimizer.grad_state[parameter]["summed_grad"] = value
    else:
        parameter.summed_grad = value
