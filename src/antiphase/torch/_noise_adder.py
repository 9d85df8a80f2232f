"""NoiseAdder: adds a plan's noise to gradients in place, in your own training loop."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch

from antiphase._check import invalid, shown
from antiphase._errors import InvalidArgument, Refused
from antiphase._lattice import Lattice
from antiphase._noise import Leaf, check_sizes
from antiphase._plan import Plan, require_plan
from antiphase._run import (
    Exclusive,
    Run,
    check_lineage,
    commit_after,
    digest,
    draw_batch,
    examples_of,
    open_shared,
    outputs_digest,
    read_noise,
    record_withdrawal,
    start_noise,
    state_bytes_of,
)
from antiphase._samplers import Batch
from antiphase._secret import Secret
from antiphase._traceback import without_locals
from antiphase.torch._compile import untraced
from antiphase.torch._device import DeviceReplay, check_device_noise
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._lattice import check_lattice_source, refuse_float_sums, set_released, summed_over_ranks
from antiphase.torch._random_state import StepGenerators
from antiphase.torch._run_methods import RunMethods
from antiphase.torch._shards import flat_gradient, is_sharded, is_vmapped, noise_dtype, own_leaves, whole_leaves


@final
class NoiseAdder(RunMethods):
    """Adds a plan's noise to the sum of clipped gradients, once per step, in your own training loop.

    In step t, `add` changes each `p.grad` from a sum S to S + clip_norm * noise_std * (N z)_t. Here z holds independent
    standard normals, and N is the noising matrix of the plan's mechanism.

    **Guarantee**: the plan's guarantee holds if, before `add`, the gradients are the *sum* (not the mean) of one
    clipped gradient per example (or user) in the step's batch. The norm of each clipped gradient, over all parameters
    together, must be at most the plan's `clip_norm`.

    With torch.distributed, each process generates only part of the noise. If parameters are sharded by FSDP2, a process
    generates the noise of its own shard. If parameters are replicated, each process generates the noise for an equal
    slice of the model. With replicated parameters, the noise is complete only after the gradients have been *summed*
    over the processes. So call `add`, then all-reduce, then `commit`.

    Update the parameters only after `commit` has returned, so that every update is in the ledger.

    Args:
        parameters: all trained parameters, in the same order every time the run is opened.
        plan: plan to train with.
        directory: run directory. It holds the secret and the noise state, so do not store it with the model.
        examples: number of examples in the data set, if batches come from `batch`. Required if the guarantee relies on
            random batches. Pass None if batches come from elsewhere; the report then says so.
        secret: secret that all noise is derived from. If None, a secret is generated and stored in the directory.
        source: "host" draws the noise with AES-256 on the CPU. "device" draws it with PyTorch's generator on the device
            of the parameters, which is faster but not cryptographic. The report names the source.
        background_noise: whether `batch` starts to compute the step's noise on a background thread (host noise only).
            This does not change the noise, and it needs no extra memory.

    >>> import tempfile, antiphase as ap
    >>> plan = ap.plan(ap.Problem(steps=4, budget=ap.Budget(4.0, 1e-6), participation=ap.EveryStep()))
    >>> weight = torch.zeros(3, requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as directory, NoiseAdder([weight], plan, directory, examples=8) as noise:
    ...     while noise.step < plan.steps:
    ...         indices, mask = noise.batch()
    ...         weight.grad = torch.ones(3)  # the sum of the clipped gradients of these examples
    ...         noise.add()
    ...         noise.commit()
    ...     noise.report().steps_run
    4
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        plan: Plan,
        directory: str | Path,
        *,
        examples: int | None = None,
        secret: Secret | None = None,
        source: Literal["host", "device"] = "host",
        background_noise: bool = False,
    ) -> None:
        require_plan("NoiseAdder", plan)
        refuse_float_sums(plan)
        self._open(parameters, plan, directory, examples, secret, source, background_noise)

    @classmethod
    def _for_engine(
        cls,
        parameters: Iterable[torch.Tensor],
        plan: Plan,
        directory: str | Path,
        *,
        examples: int,
        secret: Secret | None,
        source: Literal["host", "device"],
        background_noise: bool,
    ) -> NoiseAdder:
        """Return a NoiseAdder for a PrivacyEngine. Unlike the constructor, this accepts plans with lattice noise."""
        made = cls.__new__(cls)
        made._open(parameters, plan, directory, examples, secret, source, background_noise)
        return made

    def _open(
        self,
        parameters: Iterable[torch.Tensor],
        plan: Plan,
        directory: str | Path,
        examples: int | None,
        secret: Secret | None,
        source: Literal["host", "device"],
        background_noise: bool,
    ) -> None:
        self.parameters = _checked(parameters)
        check_lattice_source(plan, source)
        self.plan, self.transport = plan, TorchDistributed.current()
        self._is_sharded = is_sharded(self.parameters)
        self._own = own_leaves(self.parameters, self.transport)
        dtype, like = noise_dtype(self.parameters), _device_tensor(self.parameters, source)
        _check_noise(plan, dtype, like)  # before anything is written
        self._run = open_shared(
            plan,
            directory,
            self.transport,
            leaves=whole_leaves(self.parameters),
            own_leaves=self._own,
            device_noise=None if like is None else partial(_device_replay, plan, self._own, like),
            examples=examples,
            secret=secret,
            dtype=dtype if plan.mechanism.lattice is None else "int64",
            background_noise=background_noise,
        )
        self._step: int | None = 0 if self._run.committed == 0 else None
        # _is_adding is True from the start of add until commit, and _is_added from the end of add until commit.
        self._is_adding = self._is_added = False
        self._watches: list[Any] = []  # hooks on the parameters between add and commit
        self._is_accumulated = False  # True if a hook in _watches was called
        self._noisy: list[Any] = []  # the gradient tensors that noise was added to; commit requires the same tensors
        self._is_reserved = False
        self._exclusive = Exclusive("A step of NoiseAdder")
        self._requested: set[int] = set()  # uncommitted steps whose batches were requested
        self._expected: str | None = None  # digest that the parameters must have at the next step, if not None

    @property
    def _open_run(self) -> Run:
        return self._run

    @property
    def _transport(self) -> TorchDistributed:
        return self.transport

    @property
    def step(self) -> int:
        """Index of the next step to take, from 0."""
        if self._step is None:
            raise Refused(
                f"The run has {self._run.committed} committed steps, but it is unknown how many of them the model has "
                "taken.",
                hint="call load_state_dict with the state in the model's checkpoint, or call restart() and start over "
                "from the initial model",
            )
        return self._step

    @property
    def is_added(self) -> bool:
        """True if the noise of the next step has been added to the gradients, but not committed."""
        return self._is_added

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the noise state that this process keeps in host memory; 0 before the first step."""
        return state_bytes_of(self._run)

    @untraced
    @without_locals
    def batch(self, step: int | None = None) -> Batch:
        """Return the batch of a step, drawn by the sampler that the plan's guarantee assumes.

        Args:
            step: index of the step, from 0; by default, the next step.
        """
        wanted = self.step if step is None else step
        found = self._draw_for_engine(wanted)
        start_noise(self._run, wanted)
        return found

    def _draw_for_engine(self, step: int) -> Batch:
        """Return the batch of a step. Do not start the step's noise yet, since loaders draw batches ahead of time."""
        found = draw_batch(self._run, step)
        self._requested.add(int(step))
        return found

    def _generators_for_engine(self) -> StepGenerators:
        """Return an object that seeds the random generators of each step."""
        return StepGenerators(self._run, self.transport.rank, self.parameters)

    def _start_for_engine(self) -> None:
        """Start computing the noise of the next step, because its batch is about to be processed."""
        start_noise(self._run, self.step)

    @untraced
    def add(self) -> None:
        """Add the step's noise to the gradients in place. If `p.grad` is None, it is set to zero first.

        Raises `Refused` if replicated gradients are already equal on all ranks. Before `add`, each rank must have the
        sum over its own examples only. Sum the gradients over the ranks after `add`.
        """
        self._refuse_engine("add")
        self._refuse_equal_sums()
        self._add_for_engine()
        for p in self.parameters:
            if p.requires_grad and p.is_leaf:
                watch = p.register_post_accumulate_grad_hook(self._note_backward)  # type: ignore[no-untyped-call]
                self._watches.append(watch)

    def _note_backward(self, _parameter: torch.Tensor) -> None:
        """Hook that PyTorch calls if a backward pass changes a gradient between `add` and `commit`."""
        self._is_accumulated = True

    def _end_watch(self) -> None:
        for watch in self._watches:
            watch.remove()
        self._watches.clear()
        self._is_accumulated = False

    def _refuse_equal_sums(self) -> None:
        if self._is_sharded or self.transport.size == 1:
            return
        gradients = [flat_gradient(p) for p in self.parameters]
        mine = self._run.digest(self.step, gradients) if any(bool(g.any()) for g in gradients) else b""
        found = self.transport.all_gather(mine)
        if mine and all(other == mine for other in found):
            raise Refused(
                f"All {self.transport.size} ranks have the same gradients before the noise is added. After the sum "
                "over the ranks, every example would count several times.",
                hint="process different examples on each rank, and sum the gradients over the ranks only once, after "
                "add",
            )

    @untraced
    def _add_for_engine(self) -> None:
        """Add the noise without the extra checks of `add`. Only for the private optimizer of an engine."""
        with self._exclusive:
            self._add()

    @untraced
    def _release_for_engine(self, sums: list[torch.Tensor], lattice: Lattice) -> None:
        """Add the step's lattice noise to integer sums, add the sums of all ranks, and set the gradients to the result.

        Args:
            sums: for each parameter, the sum over this rank's examples, in units of the lattice's grid, dtype int64.
                These tensors are overwritten.
            lattice: lattice of the plan, which converts integers to gradients.
        """
        with self._exclusive:
            self._check_add()
            flat, noise = [total.view(-1) for total in sums], read_noise(self._run, self.step)
            if any(total.numel() != p.numel() for total, p in zip(flat, self.parameters, strict=True)):
                raise _changed()
            self._is_adding = True
            for total, part, made in zip(flat, self._own.values(), noise, strict=True):
                total[slice(*part.box[0])].add_(torch.from_numpy(made))  # modulo 2^64, as in Run.release
            ranks = self.transport.size
            released = [summed_over_ranks(t, p.device, ranks) for t, p in zip(flat, self.parameters, strict=True)]
            set_released(self.parameters, released, lattice)
            self._noisy = [p.grad for p in self.parameters]
            self._is_added = True

    def _check_add(self) -> None:
        if self._is_adding:
            raise Refused(
                f"The noise of step {self.step} has already been added.", hint="call add once per step, then commit"
            )
        if examples_of(self._run) is not None and self.step not in self._requested:
            raise Refused(
                f"The batch of step {self.step} was not requested, so the gradients cannot be from its examples.",
                hint="take every batch from batch(); if batches come from elsewhere, create the NoiseAdder without "
                "examples",
            )
        if any(is_vmapped(p.grad) for p in self.parameters):
            raise Refused(
                "NoiseAdder.add was called inside torch.func.vmap, where all gradients would get the same noise.",
                hint="sum the gradients and call add outside vmap; each model of an ensemble needs its own run",
            )

    def _add(self) -> None:
        self._check_add()
        noise = [torch.as_tensor(part) for part in read_noise(self._run, self.step)]
        pairs = list(zip(self._own_gradients(), noise, strict=True))
        if any(gradient.numel() != part.numel() or gradient.dtype != part.dtype for gradient, part in pairs):
            raise _changed()
        self._is_adding = True
        self._noisy = [p.grad for p in self.parameters]
        for gradient, part in pairs:
            gradient.add_(part.to(gradient.device), alpha=self.plan.problem.clip_norm)
        self._is_added = True

    @untraced
    def commit(self) -> None:
        """Record the step in the ledger. Call it after `add` and the all-reduce, before you update the parameters.

        Between `add` and `commit`, change gradients only in place: `commit` raises `Refused` if a `p.grad` is no longer
        the tensor that noise was added to. If `commit` raises an error, do not use the gradients.
        """
        self._refuse_engine("commit")
        self._commit_for_engine()

    @untraced
    def _commit_for_engine(self) -> None:
        """Do the same as `commit`. Only for the private optimizer of an engine."""
        with self._exclusive:
            self._commit()

    def _reserve_for_engine(self) -> None:
        """Make `add` and `commit` raise `Refused` from now on: the private optimizer of an engine takes the steps."""
        self._is_reserved = True

    def _refuse_engine(self, name: str) -> None:
        if self._is_reserved:
            raise Refused(
                f"{name} cannot be called on the NoiseAdder of a PrivacyEngine, since {name} cannot know whether the "
                "gradients are clipped.",
                hint="call step() of the optimizer that make_private returned; for your own training loop, create a "
                "NoiseAdder",
            )

    def _commit(self) -> None:
        if not self._is_added:
            raise Refused(
                f"The noise of step {self.step} has not been added.",
                hint="call add before commit, even if the batch is empty",
            )
        self._check_gradients()
        commit_after(self._run, self.step, self._digest(), self._check_parameters)
        self._end_watch()
        self._is_adding, self._is_added, self._noisy = False, False, []
        self._expected = None
        self._requested.discard(self.step)
        self._step = self.step + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state to store in the model's checkpoint. It contains nothing secret.

        The state has the run id, the next step, a digest of the outputs of all earlier steps, and a digest of the
        parameters (None with FSDP). Before this method returns, the ledger and the noise state are written to disk.
        """
        if self._is_adding:
            raise Refused(
                f"Step {self.step} is not committed.", hint="make checkpoints after commit and before the next add"
            )
        self._run.save()
        code = None if self._is_sharded else self._expected or self._parameters_digest()
        return {
            "run_id": self.run_id,
            "step": self.step,
            "branch": outputs_digest(self._run, self.step),
            "parameters": code,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the checkpoint that contained `state`.

        Steps that were taken after the checkpoint are replayed, that is, taken again with the same noise. Load the
        parameters from the same checkpoint. If a step is replayed, the first `commit` compares the parameters with
        those in the checkpoint, and raises `Refused` if they differ. With FSDP, parameters are not compared.
        """
        run_id, step = _position(state)
        if run_id != self.run_id:
            raise InvalidArgument(
                f"The checkpoint belongs to run {run_id}; the directory holds run {self.run_id}.",
                hint="open the directory of the run that made the checkpoint",
            )
        if not 0 <= step <= self._run.committed:
            raise Refused(
                f"The checkpoint is from step {step}, but the ledger has {self._run.committed} steps.",
                hint="if the run directory is an older copy, restore the newest one; otherwise, the steps before the "
                "checkpoint were replaced later, so the checkpoint cannot be used",
            )
        if state.get("branch") != outputs_digest(self._run, step):
            raise Refused(
                f"The checkpoint was not made from the outputs that the ledger records for the first {step} steps.",
                hint="these steps were replaced later by steps with the same noise; continue from a checkpoint made "
                "after the replacement, or start a new run and compose the guarantees of both runs",
            )
        self._go_to(step)
        self._expected = state.get("parameters") if step < self._run.committed else None

    def restart(self) -> None:
        """Go back to step 0. Load the initial model before you continue."""
        self._go_to(0)

    def close(self) -> None:
        """Write everything to disk and release the lock on the directory."""
        try:
            self._withdraw()
        finally:
            self._run.close()

    def _own_gradients(self) -> list[torch.Tensor]:
        """Return flat views of the part of each gradient that this process adds noise to."""
        gradients = [flat_gradient(p) for p in self.parameters]
        if self._is_sharded:
            return gradients
        parts = list(self._own.values())
        if any(g.numel() != part.global_shape[0] for g, part in zip(gradients, parts, strict=True)):
            raise _changed()
        return [g[slice(*part.box[0])] for g, part in zip(gradients, parts, strict=True)]

    def _check_gradients(self) -> None:
        """Raise `Refused` if a `p.grad` was dropped or replaced, or if backward was called, after `add`."""
        replaced = [i for i, (p, g) in enumerate(zip(self.parameters, self._noisy, strict=True)) if p.grad is not g]
        if replaced:
            raise Refused(
                f"The gradient of parameter {replaced[0]} is not the tensor that the noise of step {self.step} was "
                f"added to. Number of such parameters: {len(replaced)} of {len(self.parameters)}.",
                hint="between add and commit, do not call zero_grad or backward, and change gradients only in place: "
                "p.grad.div_(n) instead of p.grad = p.grad / n",
            )
        if self._is_accumulated:
            raise Refused(
                f"backward was called after the noise of step {self.step} was added, so a part of the gradients has no "
                "noise.",
                hint="compute all gradients of a step before add",
            )

    def _check_parameters(self) -> None:
        """Raise `Refused` if a step is replayed on a model that already contains the step's noise.

        This is called on rank 0, before the step is recorded. With FSDP, nothing is checked, because each rank has only
        part of each parameter.
        """
        if self._is_sharded:
            return
        if self.step == 0:
            check_lineage(self._run, 0, bytes.fromhex(self._parameters_digest()))
        elif self._expected is not None and self._expected != self._parameters_digest():
            raise Refused(
                f"Step {self.step} is being replayed, but the parameters differ from those in the checkpoint.",
                hint="load the model and the state for load_state_dict from the same checkpoint",
            )

    def _parameters_digest(self) -> str:
        return digest([p.detach().cpu().numpy() for p in self.parameters]).hex()

    def _go_to(self, step: int) -> None:
        with self._exclusive:
            self._withdraw()
            self._step, self._expected = step, None
            self._requested.clear()

    def _withdraw(self) -> None:
        """If noise was added but not committed, record this in the ledger, since the noise may be used again."""
        self._end_watch()
        if self._is_adding:
            record_withdrawal(self._run, self.step)
        self._is_adding, self._is_added, self._noisy = False, False, []

    def _digest(self) -> bytes:
        """Return a digest of the step's noisy gradients.

        If parameters are replicated, the gradients must be equal on all ranks. If parameters are sharded, the digests
        of all ranks are combined.
        """
        mine = self._run.digest(self.step, [flat_gradient(p) for p in self.parameters])
        if self._is_sharded:
            self.transport.check_same(self.step, "step", "load the same checkpoint on every rank")
            parts = self.transport.all_gather(mine)
            return mine if len(parts) == 1 else hashlib.sha256(b"".join(parts)).digest()
        same = (self.step, mine)
        hint = (
            "sum the gradients over the ranks exactly once, after add; if you also sum them before add, every example "
            "counts several times"
        )
        self.transport.check_same(same, "step or noisy gradient", hint)
        return mine


def _changed() -> Refused:
    return Refused(
        "The size or dtype of a parameter changed after the NoiseAdder was created.",
        hint="resize and convert the model before you create the NoiseAdder",
    )


def _checked(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor):
        raise InvalidArgument(
            "The 'parameters' parameter of NoiseAdder must be a list of tensors. Got one tensor instead.",
            hint="put it in a list",
        )
    if isinstance(parameters, torch.nn.Module) or not isinstance(parameters, Iterable):
        raise invalid("NoiseAdder", "parameters", "a list of tensors", parameters, "pass list(model.parameters())")
    found = list(parameters)
    if not found or not all(isinstance(p, torch.Tensor) for p in found):
        raise InvalidArgument(
            f"The 'parameters' parameter of NoiseAdder must be one or more tensors. Got {shown(found)} instead.",
            hint="pass [p for p in model.parameters() if p.requires_grad]",
        )
    if len({id(p) for p in found}) < len(found):
        raise InvalidArgument("The list of parameters has the same tensor twice.", hint="list each parameter once")
    return found


def _position(state: Any) -> tuple[Any, int]:
    """Return the run id and the step from the result of `state_dict`."""
    run_id, step = (state.get(name) for name in ("run_id", "step")) if isinstance(state, dict) else (None, None)
    if run_id is None or isinstance(step, bool) or not isinstance(step, int):
        raise invalid(
            "NoiseAdder.load_state_dict",
            "state",
            "a dict from state_dict, with the run id and a step",
            state,
            "pass the part of the checkpoint that state_dict returned",
        )
    return run_id, step


def _device_replay(plan: Plan, own: dict[str, Leaf], like: torch.Tensor, secret: Secret, run_id: str) -> DeviceReplay:
    return DeviceReplay(plan, secret, run_id, own, like)


def _check_noise(plan: Plan, dtype: str, like: torch.Tensor | None) -> None:
    """Raise an error if this dtype cannot represent the plan's noise, multiplied by the clipping norm, accurately."""
    if like is not None:
        check_device_noise(plan, like)
    elif plan.mechanism.lattice is None:  # lattice noise is checked when the run is opened
        mechanism, clip_norm = plan.mechanism, plan.problem.clip_norm
        check_sizes(mechanism.strategy, mechanism.noise_std, np.dtype(dtype), clip_norm=clip_norm)


def _device_tensor(parameters: list[torch.Tensor], source: str) -> torch.Tensor | None:
    """Return an empty tensor with the device and dtype of device noise, or None for source="host"."""
    if source == "host":
        return None
    if source != "device":
        raise invalid(
            "NoiseAdder",
            "source",
            "'host' or 'device'",
            source,
            "use 'host', which is cryptographic, unless noise generation is the bottleneck",
        )
    if len({p.device for p in parameters}) > 1:
        raise Refused("With source='device', all parameters must be on one device.", hint="use source='host'")
    return torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
