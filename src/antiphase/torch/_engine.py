"""PrivacyEngine: private training with Opacus. Batches, noise and ledger come from a plan and its run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, final

import torch
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.optimizers import get_optimizer_class
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader

from antiphase._accounting import Budget
from antiphase._check import invalid, positive_integer
from antiphase._errors import InvalidArgument, Refused
from antiphase._lattice import Lattice
from antiphase._plan import Plan, require_plan
from antiphase._planner import plan as make_plan
from antiphase._problem import Problem
from antiphase._run import Run
from antiphase._secret import Secret
from antiphase.torch._accelerate import unwrapped_optimizer
from antiphase.torch._clipping_checks import Clipping, GhostClipping, PerExampleClipping
from antiphase.torch._collation import CHECKED_EXAMPLES, check_collation, loader_of
from antiphase.torch._criterion import GhostClippingLoss
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._grouped_rows import check_grouping
from antiphase.torch._independence import check_independence
from antiphase.torch._lattice import LatticeClipping, check_lattice_options
from antiphase.torch._loader import PlanBatchSampler, PlanLoader, check_dataset, check_loader_options
from antiphase.torch._noise_adder import NoiseAdder
from antiphase.torch._optimizer import PrivateOptimizer, private_class
from antiphase.torch._options import (
    MOVED,
    batch_size,
    check_examples,
    check_mode,
    clip_norms_for,
    epoch_length,
    refuse_options,
)
from antiphase.torch._precision import check_rounding
from antiphase.torch._run_methods import RunMethods
from antiphase.torch._shards import fix_reduction, zero_padding
from antiphase.torch._step_tracker import StepTracker
from antiphase.torch._wrapping import check_closure, check_processes, trained_parameters, wrap_module
from antiphase.torch.users import UserDataset, check_unit


@final
class PrivacyEngine(RunMethods):
    """Replacement for Opacus's `PrivacyEngine` that takes a plan instead of a noise multiplier.

    The plan's own sampler draws the batches. Each example's gradient is clipped to the plan's `clip_norm`. The plan's
    noise is added to the sum once per step, and a `Run` in `directory` keeps the ledger.

    **Guarantee**: the training satisfies the plan's guarantee. `report` states the guarantee of the steps that ran.
    Anything that would change the mechanism raises an error: different batches, different clipping, different noise, or
    gradients accumulated over several steps.

    Args:
        directory: run directory. It holds the secret and the noise state, so do not store it with the model. Required.
        secret: secret that all noise is derived from. If None, a secret is generated and stored in the directory.
        source: source of the noise, "host" or "device", as in `NoiseAdder`.
        background_noise: whether a background thread computes a step's noise during the forward and backward pass.
        opacus: options of Opacus's own engine. Each option raises an error with a hint about what to do instead.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        secret: Secret | None = None,
        source: Literal["host", "device"] = "host",
        background_noise: bool = False,
        **opacus: Any,
    ) -> None:
        refuse_options("PrivacyEngine", opacus, ["directory"] if directory is None else [])
        assert directory is not None
        self._directory, self._secret, self._source = directory, secret, source
        self._background_noise = background_noise
        self._tracker: StepTracker | None = None
        self._batches: PlanBatchSampler | None = None
        self._module: Any = None
        self._optimizer: Any = None
        self._loader: Any = None

    def make_private(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any = None,
        plan: Plan | None = None,
        *,
        criterion: Any = None,
        clipping: str = "flat",
        clip_norms: Sequence[float] | None = None,
        grad_sample_mode: str = "hooks",
        loss_reduction: str = "mean",
        batch_first: bool = True,
        rows_per_example: int = 1,
        loader_options: Mapping[str, Any] | None = None,
        **opacus: Any,
    ) -> tuple[Any, ...]:
        """Return (module, optimizer, data loader), or (module, optimizer, criterion, data loader) with ghost clipping.

        One pass through the loader is one epoch. The loader yields each step's batch only once. It skips empty batches:
        the optimizer takes the steps without examples by itself, right after the previous step. For a learning-rate
        schedule, use `attach_scheduler`.

        If the plan has a lattice (`Problem(lattice=True)`), the entries of gradients and noise are whole multiples of
        one power of two. The loader then yields the examples of a batch one at a time, and the optimizer takes the step
        after the last example. The guarantee covers every bit of the noisy gradients; see docs/lattice-noise.md.

        Args:
            module: model. If several processes train it, first wrap it in Opacus's
                `DifferentiallyPrivateDistributedDataParallel` or shard it with `fully_shard`. In-place activations,
                such as `ReLU(inplace=True)`, are changed to `inplace=False`.
            optimizer: optimizer of all trainable parameters of the module.
            dataset: map-style data set, with one item for each example (or user) that the plan protects. Required.
            plan: plan to train with. Required; `make_private_with_epsilon` makes a plan for you.
            criterion: loss function, used only with ghost clipping. The default is cross entropy.
            clipping: "flat", or "per_layer" to clip the gradient of each parameter tensor separately.
            clip_norms: for "per_layer", one clipping norm per parameter tensor. By default, all norms are equal, and
                the root of the sum of their squares is the plan's `clip_norm`.
            grad_sample_mode: how Opacus computes per-example gradients: "hooks", "functorch", "ew", "ghost", or
                "ghost_fsdp" for a module sharded by `fully_shard`.
            loss_reduction: reduction of your loss, "mean" or "sum". With "mean", the noisy sum is divided by the plan's
                batch size.
            batch_first: whether the batch is the first dimension of the inputs.
            rows_per_example: number of rows that the model processes for each example (or user), such as several
                sequences. Consecutive rows belong to the same example. Their gradients are added, and then the sum is
                clipped; see `antiphase.torch.users`.
            loader_options: options of PyTorch's DataLoader, such as collate_fn, num_workers or pin_memory.
            opacus: other options of Opacus's `make_private`. They raise an error that says what to write instead. The
                only exception is a `max_grad_norm` that equals the plan's `clip_norm`.
        """
        if isinstance(plan, Plan) and opacus.get("max_grad_norm") == plan.problem.clip_norm:
            del opacus["max_grad_norm"]  # the same as in the plan
        elif isinstance(plan, Plan) and isinstance(opacus.get("max_grad_norm"), (int, float)):
            raise invalid(
                "make_private",
                "max_grad_norm",
                f"the clipping norm of the plan, {plan.problem.clip_norm:g}",
                opacus["max_grad_norm"],
                "omit it, and choose the clipping norm with Problem(clip_norm=...)",
            )
        dataset = _without_loader(dataset, opacus)
        _check_arguments("make_private", opacus, {"dataset": dataset, "plan": plan})
        require_plan("make_private", plan)
        assert plan is not None
        examples = check_dataset(dataset)
        return self._make(
            module,
            optimizer,
            dataset,
            plan,
            epoch_length(plan, examples),
            criterion=criterion,
            clipping=clipping,
            clip_norms=clip_norms,
            grad_sample_mode=grad_sample_mode,
            loss_reduction=loss_reduction,
            batch_first=batch_first,
            loader_options=loader_options,
            rows_per_example=rows_per_example,
        )

    def make_private_with_epsilon(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        max_grad_norm: float = 1.0,
        problem: Mapping[str, Any] | None = None,
        families: Sequence[str] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        """Make a plan for a privacy budget, and return what `make_private` returns. The plan is in the property `plan`.

        The plan has `epochs` times ceil(examples / batch_size) steps, so `epochs` passes through the loader take all
        steps. If the directory already holds a run with a plan for the same problem, that plan is used again.

        Args:
            module: model, as in `make_private`.
            optimizer: optimizer of all trainable parameters of the module.
            dataset: map-style data set, with one item for each example (or user) that the plan protects. Required.
            epsilon: privacy budget of the whole run; also accepted as `target_epsilon`. Required.
            delta: delta of the budget; also accepted as `target_delta`. Required.
            epochs: number of passes through the loader. Required.
            batch_size: expected number of examples per step. Required.
            max_grad_norm: clipping norm of each example. It becomes the plan's `clip_norm`.
            problem: other arguments of `antiphase.Problem`, such as workload, objective, unit, participation or
                lattice. By default, the unit is "user" if the data set is a `UserDataset`. With lattice=True, the
                default number of parameters is the number of the module's trainable parameters.
            families: families of strategies that the planner tries, as in `antiphase.plan`.
            options: options of `make_private`, such as criterion, grad_sample_mode or loader_options.
        """
        owner = "make_private_with_epsilon"
        epsilon = options.pop("target_epsilon", None) if epsilon is None else epsilon
        delta = options.pop("target_delta", None) if delta is None else delta
        dataset = _without_loader(dataset, options)
        needed = {"dataset": dataset, "epsilon": epsilon, "delta": delta, "epochs": epochs, "batch_size": batch_size}
        known = inspect.signature(PrivacyEngine.make_private).parameters
        others = {name: value for name, value in options.items() if name not in known or name == "plan"}
        _check_arguments(owner, others, needed)
        assert epsilon is not None
        assert delta is not None
        examples = check_dataset(dataset)
        size = positive_integer(owner, "batch_size", batch_size)
        epoch = -(-examples // size)
        wanted = Problem(
            steps=positive_integer(owner, "epochs", epochs) * epoch,
            budget=Budget(epsilon, delta),
            examples=examples,
            batch_size=size,
            clip_norm=max_grad_norm,
            **{**_known(module, dataset, problem or {}), **(problem or {})},
        )
        plan = _stored_plan(self._directory, wanted) or make_plan(wanted, families)
        return self._make(module, optimizer, dataset, plan, epoch, **options)

    def _make(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        plan: Plan,
        epoch: int,
        *,
        criterion: Any = None,
        clipping: str = "flat",
        clip_norms: Sequence[float] | None = None,
        grad_sample_mode: str = "hooks",
        loss_reduction: str = "mean",
        batch_first: bool = True,
        loader_options: Mapping[str, Any] | None = None,
        rows_per_example: int = 1,
    ) -> tuple[Any, ...]:
        """Do what `make_private` does; `epoch` is the number of steps per epoch."""
        clipping, grad_sample_mode, loss_reduction = check_mode(clipping, grad_sample_mode, loss_reduction)
        check_processes(module, grad_sample_mode)
        check_lattice_options(plan, module, grad_sample_mode, self._source)
        check_grouping(module, rows_per_example, grad_sample_mode, batch_first=batch_first)
        options = dict(loader_options or {})
        check_loader_options(options)
        examples = check_dataset(dataset)
        check_examples(plan, examples)
        check_unit(plan, dataset)
        if self._tracker is not None:
            raise Refused("This engine already has a run.", hint="create a new PrivacyEngine for every run")
        optimizer = unwrapped_optimizer(optimizer)
        check_closure(optimizer)
        parameters = trained_parameters(module, optimizer)
        norms = clip_norms_for(plan, clipping, len(parameters), clip_norms)
        norm: Any = norms if clipping == "per_layer" else norms[0]
        wrapped = wrap_module(module, parameters, grad_sample_mode, batch_first, loss_reduction, norm, rows_per_example)
        lattice = plan.mechanism.lattice
        # This check matters only if adding an example can change the number of examples in a forward pass. Under
        # replace adjacency, the number does not change, and on a lattice, each pass has one example.
        if "ghost" not in grad_sample_mode and plan.problem.adjacency != "replace" and lattice is None:
            check_rounding(wrapped)
        noise = NoiseAdder._for_engine(
            parameters,
            plan,
            self._directory,
            examples=examples,
            secret=self._secret,
            source=self._source,
            background_noise=self._background_noise,
        )
        ranks = noise.transport.size
        try:
            noise.transport.check_same(
                (clipping, norms, grad_sample_mode, loss_reduction, rows_per_example),
                "options",
                "give every rank the same options",
            )
            tracker = StepTracker(noise, wrapped, even=isinstance(module, FSDPModule))
            private = _private_optimizer(module, clipping, grad_sample_mode)(
                optimizer,
                noise_multiplier=0.0,  # no noise from Opacus
                max_grad_norm=norm,
                # The DDP optimizer divides the sum over the ranks by the number of ranks, so the batch size is divided
                # by it, too. On a lattice, the optimizer only sums.
                expected_batch_size=batch_size(plan, examples)
                / (ranks if isinstance(module, DPDDP) and lattice is None else 1),
                loss_reduction=loss_reduction,
            )
            private.attach(tracker, _clipping(wrapped, parameters, tuple(norms), grad_sample_mode, lattice))
            if isinstance(module, FSDPModule):
                zero_padding(wrapped, tracker.is_padded, private)
                fix_reduction(module, ranks)
            batches = PlanBatchSampler(tracker, epoch, private, one_at_a_time=lattice is not None)
            loader = PlanLoader(dataset, batch_sampler=batches, **options)
            loader.seed_collation(tracker.generators)
            made = (wrapped, private, *_private_criterion(wrapped, private, criterion, grad_sample_mode), loader)
        except BaseException:
            noise.close()
            raise
        self._tracker, self._batches = tracker, batches
        self._module, self._optimizer, self._loader = wrapped, private, loader
        return made

    def check_independence(self, loss: Callable[[Any], Any], batch: Any) -> None:
        """Raise `Refused` if the gradient of an example depends on the other examples of the batch.

        Call it once before training. Clipping bounds what an example adds to the sum, but not how the example changes
        the gradients of other examples. An example can change them through a mean over all tokens of the batch, a
        contrastive loss, batch statistics, or an embedding table that is looked up once for all examples. The check
        processes the batch as a whole and in parts, without dropout, and compares the gradients of each example. The
        error names the layer or the loss. To find mixup and similar methods in the collate function, the check also
        collates some examples of the data set, replaces one of them, and compares. No step is taken, and the parameters
        do not change.

        A passed check is evidence, not a proof: it cannot find a dependence that does not occur in this batch.

        Args:
            loss: function that computes the loss of a batch as in training, such as
                `lambda batch: criterion(model(batch[0]), batch[1])`.
            batch: batch of two or more examples. It is a tensor, or tensors in nested tuples, lists and mappings. The
                first dimension of each tensor is the batch.
        """
        if self._module is None:
            raise Refused("There is no private model yet.", hint="call make_private first")
        if isinstance(self._module, FSDPModule) or self.noise.transport.size > 1:
            raise Refused(
                "The check needs the whole model in one process.",
                hint="run it once in a single process before you start several",
            )
        load = loader_of(self._loader.dataset, self._loader.own_collate)
        count = min(CHECKED_EXAMPLES, len(self._loader.dataset))
        if count > 1:
            check_collation(load, list(range(count)))
        if not self._is_independent(loss, batch):
            raise Refused(
                "Fewer than two examples of the batch have a gradient, so nothing can be checked.",
                hint="pass a batch with two or more examples whose loss depends on the model",
            )

    def _is_independent(self, loss: Callable[[Any], Any], batch: Any) -> bool:
        """Do the checks of gradients in `check_independence`. Return False if fewer than two examples have a gradient.

        Collation is not checked.
        """
        return check_independence(self._module, self._optimizer, self._optimizer.begin_batch, loss, batch)

    def _backpropagate_sums(self) -> None:
        """Treat the loss in `backward` as a sum over the examples; the step still divides by the batch size.

        If the loss is a mean, the caller must multiply the loss by the number of examples before `backward`.
        `refuse_rounded_mean` explains which rounding errors this avoids.
        """
        self._module.loss_reduction = "sum"

    @contextmanager
    def _backpropagating_sums(self) -> Iterator[None]:
        """Inside this context, do the same as `_backpropagate_sums`."""
        before = self._module.loss_reduction
        self._backpropagate_sums()
        try:
            yield
        finally:
            self._module.loss_reduction = before

    def attach_scheduler(self, scheduler: Any) -> None:
        """Call `scheduler.step()` after every step of the plan, including steps without examples.

        Poisson sampling can draw empty batches, which the loader does not yield. If your loop calls `scheduler.step()`
        itself, it misses these steps, and the schedule lags behind. Remove that call from the loop. The schedule counts
        steps, not epochs. Put `scheduler.state_dict()` into your checkpoints.

        Args:
            scheduler: learning-rate scheduler, such as `torch.optim.lr_scheduler.CosineAnnealingLR(optimizer,
                plan.steps)`. Its optimizer is either the one passed to `make_private` or the one that it returned.
        """
        if self._optimizer is None:
            raise Refused("There is no private optimizer yet.", hint="call make_private first")
        self._optimizer.attach_scheduler(scheduler)

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.noise.plan

    @property
    def noise(self) -> NoiseAdder:
        """The `NoiseAdder` of the run. Its `add` and `commit` cannot be called: `step` of the optimizer does both."""
        return self._started.noise

    @property
    def step(self) -> int:
        """Index of the next step to take, from 0."""
        return self.noise.step

    @property
    def epoch(self) -> int:
        """Index of the epoch that the next pass through the loader starts or continues, from 0."""
        assert self._started is not None
        assert self._batches is not None
        return self._batches.epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in the model's checkpoint, as `NoiseAdder.state_dict` does. It is not secret."""
        return self.noise.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the checkpoint that contained `state`, as `NoiseAdder.load_state_dict` does."""
        self.noise.load_state_dict(state)
        self._reset()

    def restart(self) -> None:
        """Go back to step 0. Load the initial model before you continue."""
        self.noise.restart()
        self._reset()

    def close(self) -> None:
        """Write everything to disk and release the lock on the directory."""
        if self._optimizer is not None:
            self._optimizer.release()
        if self._tracker is not None:
            self.noise.close()

    @property
    def _open_run(self) -> Run:
        return self.noise._open_run

    @property
    def _transport(self) -> TorchDistributed:
        return self.noise.transport

    @property
    def _started(self) -> StepTracker:
        if self._tracker is None:
            raise Refused("There is no run yet.", hint="call make_private first")
        return self._tracker

    def __getattr__(self, name: str) -> Any:
        """Raise an `AttributeError`. Its message says what to use instead of an attribute of Opacus's engine."""
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        raise AttributeError(f"{message}\n\nhint: {MOVED[name]}" if name in MOVED else message)

    def _reset(self) -> None:
        self._started.reset()
        if self._batches is not None:
            self._batches.reset()


def _without_loader(dataset: Any, options: dict[str, Any]) -> Any:
    """Return the data set. If it is a data loader, return None, and add the loader to `options`, which are refused."""
    if not isinstance(dataset, DataLoader):
        return dataset
    options["data_loader"] = dataset
    return None


def _check_arguments(owner: str, options: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    """Raise one `InvalidArgument` for all options that cannot be used and all required arguments that are missing."""
    missing = [name for name, value in needed.items() if value is None]
    if "data_loader" in options:
        missing = [name for name in missing if name != "dataset"]  # the advice about data_loader already asks for it
    refuse_options(owner, options, missing)


def _known(module: nn.Module, dataset: Any, problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Problem` whose values follow from the module and the data set."""
    found: dict[str, Any] = {"unit": "user"} if isinstance(dataset, UserDataset) else {}
    if problem.get("lattice"):
        found["parameters"] = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return found


def _stored_plan(directory: str | Path, problem: Problem) -> Plan | None:
    """Return the plan of the run in a directory, if it was made for the same problem; otherwise None."""
    path = Path(directory) / "plan.json"
    if not path.is_file():
        return None
    plan = Plan.load(path)
    return plan if plan.problem == problem else None


def _private_optimizer(module: nn.Module, clipping: str, mode: str) -> type[PrivateOptimizer]:
    return private_class(get_optimizer_class(clipping, isinstance(module, (DPDDP, FSDPModule)), mode))


def _clipping(
    module: Any, parameters: list[torch.Tensor], norms: tuple[float, ...], mode: str, lattice: Lattice | None
) -> Clipping:
    if lattice is not None:
        return LatticeClipping(module, parameters, norms, lattice)
    return (GhostClipping if "ghost" in mode else PerExampleClipping)(module, parameters, norms)


def _private_criterion(module: Any, optimizer: PrivateOptimizer, criterion: Any, mode: str) -> tuple[Any, ...]:
    """Return (criterion,) for ghost clipping, where `backward` of the loss clips gradients. Otherwise return ()."""
    if "ghost" not in mode:
        return ()
    loss = nn.CrossEntropyLoss(reduction=optimizer.loss_reduction) if criterion is None else criterion
    ours = {id(p) for p in module.parameters()}
    named = loss.named_parameters() if isinstance(loss, nn.Module) else ()
    own = [name for name, p in named if p.requires_grad and id(p) not in ours]
    if own:
        raise InvalidArgument(
            f"The criterion has its own trainable parameter, {own[0]!r}, which would be trained without noise.",
            hint="make it a parameter of the module, in a layer that the module calls, or freeze it with "
            "requires_grad_(False)",
        )
    return (GhostClippingLoss(module, optimizer, loss),)
