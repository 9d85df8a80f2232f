"""Private optimizers: Opacus's optimizers, with the plan's noise instead of Opacus's own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import refuse_pickle
from antiphase.torch._clipping_checks import Clipping
from antiphase.torch._compile import untraced
from antiphase.torch._precision import full_precision
from antiphase.torch._step_tracker import StepTracker

READ_ONLY = {
    "noise_multiplier": "remove the noise scheduler: the plan's guarantee covers only the noise of the plan",
    "_adjusted_noise_multiplier": "remove adaptive clipping: the plan's guarantee does not cover it",
    "max_grad_norm": "remove adaptive clipping and clipping schedulers: the plan's guarantee does not cover them",
    "max_grad_norms": "remove adaptive clipping and clipping schedulers: the plan's guarantee does not cover them",
    "expected_batch_size": "set the batch size in the plan: Problem(batch_size=...)",
    "loss_reduction": "pass loss_reduction to make_private",
    "secure_mode": "secure_mode is not needed: source='host' draws the noise with AES-256",
    "generator": "remove the generator: the noise is derived from the run's secret",
}


class PrivateOptimizer(DPOptimizer):  # type: ignore[misc]  # Opacus has no annotations
    """Base class of the private optimizers: adds the plan's noise to the sum of clipped gradients, once per step.

    A physical batch is the input of one forward and backward pass. Opacus's BatchMemoryManager splits the batch of a
    step into several physical batches. Their clipped gradients are summed in private tensors, not in Opacus's
    `p.summed_grad`. After the last physical batch, `add_noise` adds the plan's noise. Distributed optimizers then sum
    the noisy gradients over the ranks. The step is committed, that is, recorded in the ledger, right before the
    parameters are updated.
    """

    _tracker: StepTracker
    _clipping: Clipping
    _total: list[torch.Tensor] | None = None
    _is_read_only = False

    __reduce_ex__ = refuse_pickle

    def attach(self, tracker: StepTracker, clipping: Clipping) -> None:
        """Use the noise of `tracker` and the gradients of `clipping`. Make attributes that scale the noise read-only.

        Args:
            tracker: provides the noise, and checks and commits the steps.
            clipping: provides the clipped gradients of each physical batch.
        """
        self._tracker, self._clipping = tracker, clipping
        self._sealed: list[Any] | None = None
        self._is_updating = False
        self._schedulers: list[Any] = []
        self.original_optimizer.register_step_pre_hook(self._commit)
        self.original_optimizer.register_step_post_hook(self._end_update)
        # This hook runs before a step of any optimizer of the process.
        self._watch = register_optimizer_step_pre_hook(partial(_refuse_other_optimizer, weakref.ref(self)))
        weakref.finalize(self, self._watch.remove)
        self._is_read_only = True

    def release(self) -> None:
        """Allow other optimizers to update the parameters. Call it when the run is closed."""
        self._watch.remove()

    def refuse_other(self, other: torch.optim.Optimizer) -> None:
        """Raise `Refused` if `other` is about to update trained parameters of this optimizer."""
        if other in (self, self.original_optimizer) or self._is_updating:  # the original optimizer may call another one
            return
        ours = {id(p) for p in self.params}
        if any(id(p) in ours and p.grad is not None for group in other.param_groups for p in group["params"]):
            raise Refused(
                f"Another optimizer ({type(other).__name__}) is about to update parameters of the private model, with "
                "gradients that may have no noise.",
                hint="use only the optimizer that make_private returned; to train on public data with a different one, "
                "do so before make_private or after engine.close()",
            )

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """Clipping norms: one for the whole gradient of an example, or one per parameter tensor."""
        return self._clipping.clip_norms

    def check_unchanged(self) -> None:
        """Raise `Refused` if the trained parameters or the clipping norms have changed since `make_private`."""
        self._clipping.check_unchanged(self)

    def _commit(self, optimizer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Commit the step before the parameters are updated. Raise `Refused` if the gradients have no noise."""
        if any(value is not None and value is not optimizer for value in (*args, *named.values())):
            raise Refused(
                f"{type(self.original_optimizer).__name__}.step was called with an argument. A closure would compute "
                "gradients without noise.",
                hint="call step() of the optimizer that make_private returned",
            )
        if self._is_updating and not self._tracker.noise.is_added and self._is_sealed():
            return  # already committed: step() of the original optimizer has called step() of its base class
        if not self._tracker.noise.is_added:
            raise Refused(
                "The optimizer that was passed to make_private would take a step without noise.",
                hint="use the optimizer that make_private returned",
            )
        self._check_sealed()
        for group in self.original_optimizer.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    p.grad = None  # this gradient was computed before the parameter was frozen, so it has no noise
        self._tracker.commit()
        self._is_updating = True

    def _end_update(self, *_: Any) -> None:
        self._is_updating, self._sealed = False, None

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_read_only and name in READ_ONLY:
            raise Refused(f"{name} of a private optimizer cannot be changed.", hint=READ_ONLY[name])
        super().__setattr__(name, value)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Add the clipped gradients of a physical batch to the sum. After a step's last physical batch, also add noise.

        Returns whether the step is complete. If it is complete, the caller should update the parameters.
        """
        self.check_unchanged()
        with full_precision(self.params):
            batch = self._clipping.take()
            self._tracker.count(batch.examples)  # before adding, so that no gradient in the sum is uncounted
            if self._total is None:
                self._total = batch.sums
            else:
                self._total = list(map(self._clipping.add, self._total, batch.sums))
            self._is_last_step_skipped = self._is_unfinished()
            if self._is_last_step_skipped:
                return False
            self._finish_sum()
            if self.step_hook:
                self.step_hook(self)
            self._seal()
        return True

    def _is_unfinished(self) -> bool:
        """Return whether more physical batches of the step follow."""
        is_skipped = bool(self._check_skip_next_step())
        return is_skipped if self._clipping.lattice is None else not self._tracker.has_all_gradients

    def clip_and_accumulate(self) -> None:
        """Always raise `Refused`: gradients are summed only in `step`, which counts them."""
        raise _by_hand("clip_and_accumulate")

    def accumulate(self) -> None:
        """Always raise `Refused`: gradients are summed only in `step`, which counts them."""
        raise _by_hand("accumulate")

    def add_noise(self) -> None:
        """Set `p.grad` to the sum of the clipped gradients plus the step's noise."""
        if self._tracker.noise.is_added:
            raise Refused(
                f"The noise of step {self._tracker.step} has already been added.",
                hint="call step() instead of add_noise()",
            )
        self._tracker.check_sum()
        total, self._total = self._total, None
        if total is None:
            raise Refused("There are no clipped gradients to add noise to.", hint="call step() instead of add_noise()")
        if self._clipping.lattice is not None:
            self._tracker.noise._release_for_engine(total, self._clipping.lattice)
            return
        for p, value in zip(self.params, total, strict=True):
            p.grad = value.to(p.dtype).contiguous()
        self._tracker.noise._add_for_engine()

    def scale_grad(self) -> None:
        """If the loss reduction is "mean", divide the gradients by the plan's batch size, not by the actual size."""
        if self.loss_reduction == "mean":
            for p in self.params:
                p.grad /= self.expected_batch_size

    @untraced
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Process one physical batch. After the last physical batch of a step, update the parameters.

        If the next steps have no examples, this call also takes these steps, unless the loader yields empty batches.
        """
        if self._tracker.is_empty_yielded:
            self._take_empty_step()
            return None
        result: float | None = super().step(closure)
        if not self._is_last_step_skipped:
            self._check_committed()
            self._step_schedulers()
            self.take_empty_steps()
        return result

    def attach_scheduler(self, scheduler: Any) -> None:
        """Call `scheduler.step()` after every step, including steps without examples."""
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise InvalidArgument(
                "ReduceLROnPlateau needs a metric, and the private optimizer has none.",
                hint="call scheduler.step(metric) yourself, once per epoch; a metric of the private data has no noise, "
                "so use public data or a noisy metric",
            )
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer not in (self, self.original_optimizer):
            raise InvalidArgument(
                f"The {type(scheduler).__name__} does not belong to the private optimizer.",
                hint="create the scheduler with the optimizer that make_private returned",
            )
        if scheduler not in self._schedulers:
            self._schedulers.append(scheduler)

    def _step_schedulers(self) -> None:
        for scheduler in self._schedulers:
            scheduler.optimizer._opt_called = True  # otherwise PyTorch warns if the first step has no examples
            scheduler.step()

    def begin_batch(self) -> None:
        """Drop the gradient sum of an interrupted batch, so that its examples do not count twice."""
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False
        self._total = self._sealed = None
        self._clipping.reset()
        self._tracker.reset_count()

    def take_empty_steps(self) -> None:
        """Take all steps up to the next step that has examples.

        Each of these steps adds noise and updates the parameters, without a backward pass. With several ranks, stop at
        the end of the pass through the loader.
        """
        while self._tracker.is_empty:
            self._take_empty_step()

    def _take_empty_step(self) -> None:
        self._tracker.start_empty_batch()
        self._total = self._clipping.zeros()
        self._finish_sum()
        self._seal()
        if hasattr(self, "reduce_gradients"):
            self.reduce_gradients()
        self.original_optimizer.step()
        self._check_committed()
        self._step_schedulers()
        self._is_last_step_skipped = False
        self.zero_grad(set_to_none=True)

    def _finish_sum(self) -> None:
        self._is_updating, self._sealed = False, None  # an exception may have interrupted the last update
        if hasattr(self, "reduce_gradients"):
            self._tracker.noise.transport.check_operation(f"take step {self._tracker.step}")
        self.add_noise()
        self.scale_grad()

    def _seal(self) -> None:
        """Record the noisy gradients and their versions, so that later changes are detected."""
        self._sealed = [(p.grad, p.grad._version) for p in self.params]

    def _is_sealed(self) -> bool:
        sealed = self._sealed
        return sealed is not None and all(
            p.grad is gradient and gradient._version == version
            for p, (gradient, version) in zip(self.params, sealed, strict=True)
        )

    def _check_sealed(self) -> None:
        if not self._is_sealed():
            raise Refused(
                f"The noisy gradients of step {self._tracker.step} were changed before the parameters were updated.",
                hint="do not call backward or zero_grad between pre_step and the update; to change noisy gradients, "
                "use attach_step_hook",
            )

    def _check_committed(self) -> None:
        """If the optimizer did not run the hook that commits the step, commit the step now and raise `Refused`."""
        if self._tracker.noise.is_added:
            self._tracker.commit()
            raise Refused(
                f"{type(self.original_optimizer).__name__} updated the parameters before the step was recorded.",
                hint="use an optimizer whose step() runs the hooks of torch.optim.Optimizer",
            )


def _refuse_other_optimizer(ours: weakref.ref[PrivateOptimizer], other: Any, *_: Any) -> None:
    found = ours()
    if found is not None:
        found.refuse_other(other)


def private_class(base: type[DPOptimizer]) -> type[PrivateOptimizer]:
    """Return a subclass of one of Opacus's optimizers that adds the plan's noise instead of Opacus's own."""
    more: dict[str, Any] = {"reduce_gradients": _reduce_gradients} if hasattr(base, "reduce_gradients") else {}
    return type(f"Private{base.__name__}", (PrivateOptimizer, base), {"__doc__": base.__doc__, "_base": base, **more})


def _reduce_gradients(self: Any) -> None:
    """Sum the noisy gradients over the ranks. With lattice noise, `add_noise` has already summed them, in integers."""
    self._check_sealed()
    if self._clipping.lattice is None:
        self._base.reduce_gradients(self)
    self._seal()


def _by_hand(name: str) -> Refused:
    return Refused(
        f"{name} of a private optimizer cannot be called directly.",
        hint="call step() for every physical batch; before every physical batch of a step except the last one, call "
        "signal_skip_step()",
    )
