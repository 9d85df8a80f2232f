"""PrivacyEngine: Opacus with a plan's batches, noise and ledger."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
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
from antiphase._run import Run, refuse_pickle
from antiphase._secret import Secret
from antiphase.torch._clipping_checks import GhostClipping, PerExampleClipping
from antiphase.torch._criterion import GhostClippingLoss
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._layers import patch_samplers
from antiphase.torch._loader import PlanBatchSampler, PlanLoader, check_dataset, check_loader_options
from antiphase.torch._module import check_module
from antiphase.torch._noise_adder import NoiseAdder
from antiphase.torch._optimizer import PrivateOptimizer, private_class
from antiphase.torch._options import (
    batch_size,
    check_examples,
    check_mode,
    clip_norms_for,
    epoch_length,
    refuse_options,
)
from antiphase.torch._precision import check_policy, refuse_rounding
from antiphase.torch._run_methods import RunMethods
from antiphase.torch._shards import fix_reduction, zero_padding
from antiphase.torch._step_tracker import StepTracker


@final
class PrivacyEngine(RunMethods):
    """Opacus's privacy engine, with a plan in place of a noise multiplier.

    The plan's own sampler draws the batches. Opacus clips each example's gradient to the plan's norm. The plan's noise
    is added to the sum once per step, and a `Run` in `directory` keeps the ledger.

    **Guarantee**: that of the plan; `report` states it for the steps that ran. Anything that would change the mechanism
    is refused: other batches, other clipping, other noise, or the gradients of several steps in one.

    Args:
        directory: run directory. It holds the secret and the noise state; store it apart from the model.
        secret: None to generate one and store it in the directory.
        source: source of the noise, as for `NoiseAdder`.
        opacus: options of Opacus's own engine. Each is refused with a hint what to do instead.
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
        self._tracker: StepTracker | None = None
        self._batches: PlanBatchSampler | None = None

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
        """Return module, optimizer and data loader for private training; with ghost clipping, the criterion comes
        third.

        One pass through the loader is one epoch; its batches never repeat a step. If the batch of a step is empty, the
        optimizer takes that step together with the one before it.

        Args:
            module: model. If several processes train it, wrap it in Opacus's DPDDP or shard it by `fully_shard` first.
            optimizer: optimizer of parameters of the module.
            dataset: map-style data set, with one item for each example (or user) that the plan protects.
            plan: what to run.
            criterion: loss for ghost clipping; cross entropy by default.
            clipping: "flat", or "per_layer" to clip each parameter tensor separately.
            clip_norms: for "per_layer", one norm per tensor; by default, equal shares of the plan's norm.
            grad_sample_mode: how Opacus computes per-example gradients: "hooks", "functorch", "ew", "ghost", or
                "ghost_fsdp" for a module sharded by `fully_shard`.
            loss_reduction: reduction of the loss. With "mean", the noisy sum is divided by the plan's batch size.
            batch_first: whether the first dimension of inputs is the batch.
            loader_options: options of torch's DataLoader, such as collate_fn, num_workers or pin_memory.
            opacus: other options of Opacus's own method. Each is refused with a hint what to do instead, except a
                `max_grad_norm` that equals the plan's `clip_norm`.
        """
        if opacus.get("max_grad_norm") == plan.problem.clip_norm:
            del opacus["max_grad_norm"]  # the same as in the plan
        refuse_options("make_private", opacus)
        clipping, grad_sample_mode, loss_reduction = check_mode(clipping, grad_sample_mode, loss_reduction)
        _check_processes(module, grad_sample_mode)
        options = dict(loader_options or {})
        check_loader_options(options)
        examples = check_dataset(dataset)
        check_examples(plan, examples)
        if self._tracker is not None:
            raise Refused("This engine already has a run.", hint="create another PrivacyEngine for another run")
        _check_closure(optimizer)
        parameters = _trained(module, optimizer)
        norms = clip_norms_for(plan, clipping, len(parameters), clip_norms)
        norm: Any = norms if clipping == "per_layer" else norms[0]
        wrapped = _wrap(module, parameters, grad_sample_mode, batch_first, loss_reduction, norm)
        noise = NoiseAdder(
            parameters, plan, self._directory, examples=examples, secret=self._secret, source=self._source
        )
        ranks = noise.transport.size
        try:
            noise.transport.check_same(
                (clipping, norms, grad_sample_mode, loss_reduction), "options", "give every rank the same options"
            )
            tracker = StepTracker(noise, even=isinstance(module, FSDPModule))
            private = _private_optimizer(module, clipping, grad_sample_mode)(
                optimizer,
                noise_multiplier=0.0,  # no noise from Opacus
                max_grad_norm=norm,
                # DDP's optimizer divides by the number of ranks after it has summed over them.
                expected_batch_size=batch_size(plan, examples) / (ranks if isinstance(module, DPDDP) else 1),
                loss_reduction=loss_reduction,
            )
            kind = GhostClipping if "ghost" in grad_sample_mode else PerExampleClipping
            private.attach(tracker, kind(wrapped, parameters, tuple(norms)))
            if isinstance(module, FSDPModule):
                zero_padding(wrapped, tracker.is_padded, private)
                fix_reduction(module, ranks)
            batches = PlanBatchSampler(tracker, epoch_length(plan, examples), private)
            loader = PlanLoader(dataset, batch_sampler=batches, **options)
            made = (wrapped, private, *_private_criterion(wrapped, private, criterion, grad_sample_mode), loader)
        except BaseException:
            noise.close()
            raise
        self._tracker, self._batches = tracker, batches
        return made

    @property
    def noise(self) -> NoiseAdder:
        """The `NoiseAdder` of the run."""
        return self._started.noise

    @property
    def step(self) -> int:
        """The next step to take."""
        return self.noise.step

    @property
    def epoch(self) -> int:
        """The epoch that the next pass through the loader starts or continues."""
        assert self._started is not None
        assert self._batches is not None
        return self._batches.epoch

    def state_dict(self) -> dict[str, Any]:
        """State for the model's checkpoint, as `NoiseAdder.state_dict`. None of it is secret."""
        return self.noise.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the checkpoint that contained `state`."""
        self.noise.load_state_dict(state)
        self._reset()

    def restart(self) -> None:
        """Go back to the first step, with the initial model."""
        self.noise.restart()
        self._reset()

    def close(self) -> None:
        """Write everything to disk and let other processes open the directory."""
        if self._tracker is not None:
            self.noise.close()

    @property
    def _open_run(self) -> Run:
        return self.noise._open_run

    @property
    def _started(self) -> StepTracker:
        if self._tracker is None:
            raise Refused("There is no run yet.", hint="call make_private first")
        return self._tracker

    def _reset(self) -> None:
        self._started.reset()
        if self._batches is not None:
            self._batches.reset()


def _check_processes(module: nn.Module, mode: str) -> None:
    """Raise if several processes could not train the module together."""
    if isinstance(module, DistributedDataParallel):
        raise InvalidArgument(
            "torch's DistributedDataParallel averages gradients before they are clipped.",
            hint="wrap the module in Opacus's DifferentiallyPrivateDistributedDataParallel instead",
        )
    if isinstance(module, FSDPModule) != (mode == "ghost_fsdp"):
        raise InvalidArgument(
            f"grad_sample_mode={mode!r} cannot be used with a {type(module).__name__}.",
            hint="use 'ghost_fsdp' for modules sharded by fully_shard, and only for those",
        )
    ranks = TorchDistributed.current().size
    if ranks > 1 and not isinstance(module, (DPDDP, FSDPModule)):
        raise InvalidArgument(
            f"{ranks} processes would each train their own model with the same noise.",
            hint="call fully_shard on the module, or wrap it in Opacus's DifferentiallyPrivateDistributedDataParallel",
        )


def _private_optimizer(module: nn.Module, clipping: str, mode: str) -> type[PrivateOptimizer]:
    return private_class(get_optimizer_class(clipping, isinstance(module, (DPDDP, FSDPModule)), mode))


def _private_criterion(module: Any, optimizer: PrivateOptimizer, criterion: Any, mode: str) -> tuple[Any, ...]:
    """With ghost clipping, the loss whose backward pass clips. Otherwise nothing: the optimizer clips."""
    if "ghost" not in mode:
        return ()
    loss = nn.CrossEntropyLoss(reduction=optimizer.loss_reduction) if criterion is None else criterion
    return (GhostClippingLoss(module, optimizer, loss, optimizer.loss_reduction),)


def _trained(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that the optimizer updates, in its order: all trainable parameters of the module."""
    known = {id(p) for p in module.parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    ours = {id(p) for p in listed}
    missing = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in ours]
    if not all(id(p) in known for p in listed):
        raise InvalidArgument(
            "The optimizer has parameters that do not belong to the module.",
            hint="make the optimizer from module.parameters(), after wrapping or sharding the module",
        )
    if missing:
        raise InvalidArgument(
            f"The parameter {missing[0]!r} is trainable, but not in the optimizer, so another one could train it "
            f"without noise ({len(missing)} such parameters).",
            hint="give the optimizer all trainable parameters, or freeze the others with requires_grad_(False)",
        )
    return [p for p in listed if p.requires_grad]


def _check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Raise for an optimizer whose step needs a closure, such as LBFGS."""
    for name, parameter in inspect.signature(optimizer.step).parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            raise InvalidArgument(
                f"{type(optimizer).__name__} cannot be used: its step needs a {name}, which would compute gradients "
                "several times per step, without noise.",
                hint="use an optimizer that takes one gradient per step, such as SGD or Adam",
            )


def _wrap(
    module: nn.Module, parameters: list[torch.Tensor], mode: str, batch_first: bool, loss_reduction: str, norm: Any
) -> Any:
    """Wrap the module in Opacus's class that computes per-example gradients."""
    ModuleValidator.validate(module, strict=True)
    check_module(module, ghost="ghost" in mode)
    check_policy(module)
    ghost = {"max_grad_norm": norm} if "ghost" in mode else {}
    wrapped = prepare_module(module, mode, batch_first=batch_first, loss_reduction=loss_reduction, **ghost)
    wrapped.forbid_grad_accumulation()
    patch_samplers(wrapped, parameters)
    if ghost:
        wrapped.register_forward_pre_hook(refuse_rounding)
    # Set on the object, since its class is Opacus's. A pickle would contain per-example gradients.
    wrapped.__reduce_ex__ = partial(refuse_pickle, wrapped)
    return wrapped
