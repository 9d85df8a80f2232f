"""Opacus with a plan: sampler, clipping, noise and ledger wired together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.grad_sample.utils import prepare_module
from opacus.optimizers import get_optimizer_class
from opacus.validators import ModuleValidator
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from antiphase._errors import InvalidArgument, Refused
from antiphase._plan import Plan
from antiphase._run import PrivacyReport, refuse_pickle
from antiphase._secret import Secret
from antiphase.torch._course import Course
from antiphase.torch._criterion import OnePerExample
from antiphase.torch._layers import correct
from antiphase.torch._loader import PlanBatches, PlanLoader, check_dataset, check_loader_options
from antiphase.torch._module import check_module
from antiphase.torch._noise import NoiseAdder
from antiphase.torch._optimizer import PrivateSteps, private_class
from antiphase.torch._options import (
    batch_size,
    check_examples,
    check_mode,
    clip_norms_for,
    epoch_length,
    refuse_options,
)
from antiphase.torch._precision import check_policy, refuse_rounding
from antiphase.torch._rows import GhostRows, MaterializedRows
from antiphase.torch._sharded import fix_reduction, weight_padding_zero
from antiphase.torch._world import World


@final
class PrivacyEngine:
    """Opacus's entry point, with a plan in place of a noise multiplier.

    Batches come from the plan's own sampler, each example's gradient is clipped to the plan's norm by Opacus, the
    plan's noise is added to their sum once a step, and a `Run` in `directory` keeps the ledger.

    **Guarantee**: that of the plan, stated by `report` for the steps that ran. Anything that would change the
    mechanism is refused: other batches, other clipping, other noise, gradients of several steps taken as one.

    Args:
        directory: of the run; kept apart from the model, since it holds the secret and the noise state.
        secret: None keeps one in the directory.
        source: of the noise, as for `NoiseAdder`.
        opacus: options of Opacus's own engine, each refused with what to do instead.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        secret: Secret | None = None,
        source: Literal["host", "device"] = "host",
        **opacus: Any,
    ) -> None:
        refuse_options("PrivacyEngine", opacus)
        self._directory, self._secret, self._source = directory, secret, source
        self._course: Course | None = None
        self._batches: PlanBatches | None = None

    __reduce_ex__ = refuse_pickle

    def make_private(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        plan: Plan,
        *,
        criterion: Any = None,
        clipping: str = "flat",
        clip_norms: Sequence[float] | None = None,
        grad_sample_mode: str = "hooks",
        loss_reduction: str = "mean",
        batch_first: bool = True,
        loader_options: Mapping[str, Any] | None = None,
        **opacus: Any,
    ) -> tuple[Any, ...]:
        """Module, optimizer and data loader for private training; with ghost clipping also the criterion, third.

        Going through the loader is one epoch; its batches never repeat a step. A step whose batch is empty is taken
        by the optimizer, right after the step before it.

        Args:
            module: the model; wrapped in Opacus's DPDDP, or by `fully_shard`, where several processes train it.
            optimizer: over parameters of the module.
            dataset: map-style, one item for each example (or user) that the plan protects.
            plan: what to run.
            criterion: with ghost clipping, the loss; cross entropy by default.
            clipping: "flat", or "per_layer" to clip each parameter tensor by itself.
            clip_norms: for "per_layer", one norm for each tensor; by default equal shares of the plan's.
            grad_sample_mode: how Opacus computes per-example gradients: "hooks", "functorch", "ew", "ghost", or
                "ghost_fsdp" for a module sharded by `fully_shard`.
            loss_reduction: of the loss; with "mean" the noisy sum is divided by the plan's batch size.
            batch_first: whether the first dimension of inputs is the batch.
            loader_options: for torch's DataLoader, such as collate_fn, num_workers or pin_memory.
            opacus: other options of Opacus's own method, each refused with what to do instead; `max_grad_norm` may
                be there if it is the plan's `clip_norm`.
        """
        if opacus.get("max_grad_norm") == plan.problem.clip_norm:
            del opacus["max_grad_norm"]  # what the plan says too
        refuse_options("make_private", opacus)
        clipping, grad_sample_mode, loss_reduction = check_mode(clipping, grad_sample_mode, loss_reduction)
        _check_processes(module, grad_sample_mode)
        options = dict(loader_options or {})
        check_loader_options(options)
        examples = check_dataset(dataset)
        check_examples(plan, examples)
        if self._course is not None:
            raise Refused("This engine serves a run already.", hint="make another PrivacyEngine for another run")
        parameters = _trained(module, optimizer)
        norms = clip_norms_for(plan, clipping, len(parameters), clip_norms)
        norm: Any = norms if clipping == "per_layer" else norms[0]
        wrapped = _wrap(module, grad_sample_mode, batch_first, loss_reduction, norm)
        noise = NoiseAdder(
            parameters, plan, self._directory, examples=examples, secret=self._secret, source=self._source
        )
        try:
            noise.world.check_same(
                (clipping, norms, grad_sample_mode, loss_reduction), "options", "give every rank the same ones"
            )
            course = Course(noise, even=isinstance(module, FSDPModule))
            private = _private_optimizer(module, clipping, grad_sample_mode)(
                optimizer,
                noise_multiplier=0.0,  # of Opacus's own noise
                max_grad_norm=norm,
                # DDP's optimizer divides by the number of ranks when it has summed over them.
                expected_batch_size=batch_size(plan, examples) / (noise.world.size if isinstance(module, DPDDP) else 1),
                loss_reduction=loss_reduction,
            )
            rows = GhostRows if "ghost" in grad_sample_mode else MaterializedRows
            private.follow(course, rows(wrapped, parameters, tuple(norms)))
            if isinstance(module, FSDPModule):
                weight_padding_zero(wrapped, course, private)
                fix_reduction(module, noise.world.size)
            batches = PlanBatches(course, epoch_length(plan, examples), private)
            loader = PlanLoader(dataset, batch_sampler=batches, **options)
            made = (wrapped, private, *_private_criterion(wrapped, private, criterion, grad_sample_mode), loader)
        except BaseException:
            noise.close()
            raise
        self._course, self._batches = course, batches
        return made

    @property
    def noise(self) -> NoiseAdder:
        """The run's noise, for what the engine does not offer itself."""
        return self._started.noise

    @property
    def step(self) -> int:
        """The step to take next."""
        return self.noise.step

    @property
    def epoch(self) -> int:
        """The epoch that going through the loader begins or goes on with."""
        assert self._started is not None
        assert self._batches is not None
        return self._batches.epoch

    def state_dict(self) -> dict[str, Any]:
        """What belongs in the model's checkpoint: which run, step and outputs before it; nothing secret."""
        return self.noise.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the checkpoint that held `state` was made."""
        self.noise.load_state_dict(state)
        self._rewind()

    def restart(self) -> None:
        """Go back to the first step, for a model that begins again as it was first."""
        self.noise.restart()
        self._rewind()

    def publish(self, label: str) -> None:
        """Record that something leaves the building; call it before, on every rank."""
        self.noise.publish(label)

    def report(self) -> PrivacyReport:
        """The guarantee of what ran, beside what was planned. On rank 0 alone."""
        return self.noise.report()

    def save(self) -> None:
        """Store the noise state, so that resuming here need not generate the noise from the start."""
        self.noise.save()

    def close(self) -> None:
        """Put everything on disk and let other processes in."""
        if self._course is not None:
            self.noise.close()

    def __enter__(self) -> PrivacyEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _started(self) -> Course:
        if self._course is None:
            raise Refused("There is no run yet.", hint="call make_private first")
        return self._course

    def _rewind(self) -> None:
        self._started.forget()
        if self._batches is not None:
            self._batches.rewind()


def _check_processes(module: nn.Module, mode: str) -> None:
    """Raise where several processes could not train the module as one."""
    if isinstance(module, DistributedDataParallel):
        raise InvalidArgument(
            "torch's DistributedDataParallel averages gradients before they are clipped.",
            hint="wrap the module in Opacus's DifferentiallyPrivateDistributedDataParallel instead",
        )
    if isinstance(module, FSDPModule) != (mode == "ghost_fsdp"):
        raise InvalidArgument(
            f"grad_sample_mode={mode!r} does not fit a {type(module).__name__}.",
            hint="'ghost_fsdp' is for modules sharded by fully_shard, and they need it",
        )
    ranks = World.current().size
    if ranks > 1 and not isinstance(module, (DPDDP, FSDPModule)):
        raise InvalidArgument(
            f"{ranks} processes would each train a model of their own with the same noise.",
            hint="fully_shard the module, or wrap it in Opacus's DifferentiallyPrivateDistributedDataParallel",
        )


def _private_optimizer(module: nn.Module, clipping: str, mode: str) -> type[PrivateSteps]:
    return private_class(get_optimizer_class(clipping, isinstance(module, (DPDDP, FSDPModule)), mode))


def _private_criterion(module: Any, optimizer: PrivateSteps, criterion: Any, mode: str) -> tuple[Any, ...]:
    """With ghost clipping, the loss whose backward pass clips; else none, since the optimizer clips."""
    if "ghost" not in mode:
        return ()
    loss = nn.CrossEntropyLoss(reduction=optimizer.loss_reduction) if criterion is None else criterion
    return (OnePerExample(module, optimizer, loss, optimizer.loss_reduction),)


def _trained(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that the optimizer updates, in its order; all must be the module's."""
    known = {id(p) for p in module.parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(id(p) in known for p in listed):
        raise InvalidArgument(
            "The optimizer has parameters that are not the module's.",
            hint="make the optimizer from module.parameters(), after wrapping or sharding the module",
        )
    return [p for p in listed if p.requires_grad]


def _wrap(module: nn.Module, mode: str, batch_first: bool, loss_reduction: str, norm: Any) -> Any:
    """The module in Opacus's wrapper that computes per-example gradients."""
    ModuleValidator.validate(module, strict=True)
    check_module(module, ghost="ghost" in mode)
    check_policy(module)
    ghost = {"max_grad_norm": norm} if "ghost" in mode else {}
    wrapped = prepare_module(module, mode, batch_first=batch_first, loss_reduction=loss_reduction, **ghost)
    wrapped.forbid_grad_accumulation()
    correct(wrapped)
    if ghost:
        wrapped.register_forward_pre_hook(refuse_rounding)
    # On the object, since its class is Opacus's: saved whole, it would carry the gradients of single examples.
    wrapped.__reduce_ex__ = partial(refuse_pickle, wrapped)
    return wrapped
