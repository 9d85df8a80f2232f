"""Opacus's optimizers with the plan's noise in place of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DPOptimizer

from antiphase._errors import Refused
from antiphase._run import refuse_pickle
from antiphase.torch._clipping_checks import Clipping
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

    The clipped gradients of all physical batches of a step are summed in private tensors, not in Opacus's
    `p.summed_grad`. After the last one, `add_noise` adds the plan's noise. The distributed optimizers sum over ranks
    afterwards. The step is committed last, right before the parameters are updated.
    """

    _tracker: StepTracker
    _clipping: Clipping
    _total: list[torch.Tensor] | None = None
    _is_read_only = False

    __reduce_ex__ = refuse_pickle

    def attach(self, tracker: StepTracker, clipping: Clipping) -> None:
        """Take noise and steps from `tracker`. From now on, nothing that scales the noise can be changed."""
        self._tracker, self._clipping = tracker, clipping
        self._sealed: list[Any] | None = None
        self._is_updating = False
        self.original_optimizer.register_step_pre_hook(self._commit)
        self.original_optimizer.register_step_post_hook(self._end_update)
        self._is_read_only = True

    @property
    def clip_norms(self) -> tuple[float, ...]:
        """The norm that the whole gradient of an example is clipped to, or those of its tensors."""
        return self._clipping.clip_norms

    def check_unchanged(self) -> None:
        """Refuse if parameters or clipping norms changed since `make_private`."""
        self._clipping.check_unchanged(self)

    def _commit(self, optimizer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Commit the step before the parameters are updated. Refused if the gradients have no noise."""
        if any(value is not None and value is not optimizer for value in (*args, *named.values())):
            raise Refused(
                f"{type(self.original_optimizer).__name__}.step was given a closure, which would compute gradients "
                "without noise.",
                hint="call step() of the optimizer that make_private returned",
            )
        if self._is_updating and self._is_sealed():
            return  # step() of a subclass has called that of its base class
        if not self._tracker.noise.is_added:
            raise Refused(
                "The optimizer that was passed to make_private would take a step without noise.",
                hint="use the optimizer that make_private returned",
            )
        self._check_sealed()
        for group in self.original_optimizer.param_groups:
            for p in group["params"]:
                if not p.requires_grad:
                    p.grad = None  # from before it was frozen: it has no noise
        self._tracker.commit()
        self._is_updating = True

    def _end_update(self, *_: Any) -> None:
        self._is_updating, self._sealed = False, None

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_read_only and name in READ_ONLY:
            raise Refused(f"{name} of a private optimizer cannot be changed.", hint=READ_ONLY[name])
        super().__setattr__(name, value)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Add the clipped gradients of a physical batch to the sum. After the last one, add noise and return True."""
        self.check_unchanged()
        with full_precision(self.params):
            batch = self._clipping.take()
            self._tracker.count(batch.examples)  # first, so that an interruption cannot leave more in the sum
            if self._total is None:
                self._total = batch.sums
            else:
                for total, more in zip(self._total, batch.sums, strict=True):
                    total.add_(more)
            self._is_last_step_skipped = bool(self._check_skip_next_step())
            if self._is_last_step_skipped:
                return False
            self._finish_sum()
            if self.step_hook:
                self.step_hook(self)
            self._seal()
        return True

    def clip_and_accumulate(self) -> None:
        """Refused: only `step` sums gradients, since it counts them."""
        raise _by_hand("clip_and_accumulate")

    def accumulate(self) -> None:
        """Refused: only `step` sums gradients, since it counts them."""
        raise _by_hand("accumulate")

    def add_noise(self) -> None:
        """Put the sum of the clipped gradients and the step's noise into `p.grad`."""
        if self._tracker.noise.is_added:
            raise Refused(f"The noise of step {self._tracker.step} was added already.", hint="call step() only")
        self._tracker.check_sum()
        total, self._total = self._total, None
        if total is None:
            raise Refused("There are no clipped gradients to add noise to.", hint="call step() only")
        for p, value in zip(self.params, total, strict=True):
            p.grad = value.contiguous()
        self._tracker.noise._add_for_engine()

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
        self._total = self._sealed = None
        self._clipping.reset()
        self._tracker.reset_count()

    def take_empty_steps(self) -> None:
        """Take all steps up to the next one that has examples, with noise but without forward and backward."""
        while self._tracker.is_empty:
            self._tracker.start_empty_batch()
            self._total = [torch.zeros_like(p).detach() for p in self.params]
            self._finish_sum()
            self._seal()
            if hasattr(self, "reduce_gradients"):
                self.reduce_gradients()
            self.original_optimizer.step()
            self._check_committed()
            self._is_last_step_skipped = False
            self.zero_grad(set_to_none=True)

    def _finish_sum(self) -> None:
        self._sealed = None
        self.add_noise()
        self.scale_grad()

    def _seal(self) -> None:
        """Note the noisy gradients, so that anything added to them later is refused."""
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
                hint="call neither backward nor zero_grad between pre_step and the update; to change noisy gradients, "
                "use attach_step_hook",
            )

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
    more: dict[str, Any] = {"reduce_gradients": _reduce_gradients} if hasattr(base, "reduce_gradients") else {}
    return type(f"Private{base.__name__}", (PrivateOptimizer, base), {"__doc__": base.__doc__, "_base": base, **more})


def _reduce_gradients(self: Any) -> None:
    """Sum the noisy gradients over the ranks."""
    self._check_sealed()
    self._base.reduce_gradients(self)
    self._seal()


def _by_hand(name: str) -> Refused:
    return Refused(
        f"{name} of a private optimizer cannot be called by hand.",
        hint="call step() for every physical batch, after signal_skip_step() unless it is the last one",
    )
