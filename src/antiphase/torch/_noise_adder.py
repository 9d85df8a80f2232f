"""NoiseAdder: adds a plan's noise to the gradients of a list of parameters, in place."""

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
from antiphase._noise import Leaf, check_sizes
from antiphase._plan import Plan, require_plan
from antiphase._run import (
    Exclusive,
    Run,
    check_lineage,
    commit_after,
    digest,
    examples_of,
    open_shared,
    outputs_digest,
    record_withdrawal,
    state_bytes_of,
)
from antiphase._samplers import Batch
from antiphase._secret import Secret
from antiphase.torch._device import DeviceReplay, check_device_noise
from antiphase.torch._distributed import TorchDistributed
from antiphase.torch._run_methods import RunMethods
from antiphase.torch._shards import flat_gradient, is_sharded, is_vmapped, noise_dtype, own_leaves, whole_leaves


@final
class NoiseAdder(RunMethods):
    """Adds a plan's noise to the summed, clipped gradients of any training loop, once per step.

    After `add`, `p.grad` of each parameter is S + clip_norm noise_std (N z)_t, where S is its previous value.

    **Guarantee**: that of the plan, if before `add` the gradients are the *sum*, not the mean, over the step's batch
    of contributions whose norm over all parameters together is at most the plan's `clip_norm`.

    With several processes (torch.distributed), each makes only its own part of the noise. If parameters are sharded by
    FSDP2, that is the noise of its shard. If they are replicated, it is an equal slice of the model, so the noise is
    complete after the gradients of the processes have been *summed*: `add`, then all-reduce, then `commit`.

    Update the parameters after `commit` has returned, so that every update is in the ledger.

    Args:
        parameters: all trained parameters, in the same order every time the run is opened.
        plan: what to run.
        directory: run directory. It holds the secret and the noise state; store it apart from the model.
        examples: size of the data set, for batches from `batch`; required if the guarantee relies on random batches.
            None if batches come from elsewhere, which the report says.
        secret: None to generate one and store it in the directory.
        source: "host" for AES-256 on the CPU; "device" for PyTorch's generator on the device of the parameters, which
            is not cryptographic and is named in the report.

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
    ) -> None:
        self.parameters = _checked(parameters)
        require_plan("NoiseAdder", plan)
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
            dtype=dtype,
        )
        self._step: int | None = 0 if self._run.committed == 0 else None
        self._is_adding = self._is_added = False  # between the two, some gradients have noise and some do not
        self._noisy: list[Any] = []  # the gradients that noise was added to; these must be committed
        self._is_reserved = False
        self._exclusive = Exclusive("A step of NoiseAdder")
        self._requested: set[int] = set()  # uncommitted steps whose batches were requested
        self._expected: str | None = None  # digest of the parameters to continue with; None for any

    @property
    def _open_run(self) -> Run:
        return self._run

    @property
    def step(self) -> int:
        """The next step to take."""
        if self._step is None:
            raise Refused(
                f"The run has {self._run.committed} committed steps, and it is unknown which step the model is at.",
                hint="call load_state_dict with the state in the model's checkpoint, "
                "or start over with restart() and the initial model",
            )
        return self._step

    @property
    def is_added(self) -> bool:
        """Whether the gradients contain the noise of the next step."""
        return self._is_added

    @property
    def state_bytes(self) -> int:
        """Memory of the noise state that this process keeps on the host; 0 before the first step."""
        return state_bytes_of(self._run)

    def batch(self, step: int | None = None) -> Batch:
        """The examples of a step, by default the next one, drawn by the sampler that the plan's proof assumes."""
        wanted = self.step if step is None else step
        found = self._run.batch(wanted)
        self._requested.add(int(wanted))
        return found

    def add(self) -> None:
        """Add the step's noise to the gradients, in place. A missing gradient counts as zero."""
        self._refuse_engine("add")
        self._add_for_engine()

    def _add_for_engine(self) -> None:
        """As `add`, for the private optimizer of an engine, which has clipped the gradients."""
        with self._exclusive:
            self._add()

    def _add(self) -> None:
        if self._is_adding:
            raise Refused(
                f"The noise of step {self.step} was added already.", hint="call add once per step, then commit"
            )
        if examples_of(self._run) is not None and self.step not in self._requested:
            raise Refused(
                f"The batch of step {self.step} was not requested, so the gradients cannot be those of its examples.",
                hint="take every batch from batch(); if batches come from elsewhere, leave out examples",
            )
        if any(is_vmapped(p.grad) for p in self.parameters):
            raise Refused(
                "NoiseAdder.add was called inside torch.func.vmap: all gradients would get the same noise.",
                hint="sum the gradients and call add outside of vmap; each model of an ensemble needs its own run",
            )
        noise = [torch.as_tensor(part) for part in self._run.noise(self.step)]
        pairs = list(zip(self._own_gradients(), noise, strict=True))
        if any(gradient.numel() != part.numel() or gradient.dtype != part.dtype for gradient, part in pairs):
            raise _changed()
        self._is_adding = True
        self._noisy = [p.grad for p in self.parameters]
        for gradient, part in pairs:
            gradient.add_(part.to(gradient.device), alpha=self.plan.problem.clip_norm)
        self._is_added = True

    def commit(self) -> None:
        """Record the step in the ledger: after `add` and the all-reduce, and before you update the parameters.

        Refused if `p.grad` is no longer the tensor that `add` added noise to; in between, change gradients only in
        place. If this raises, do not use the gradients.
        """
        self._refuse_engine("commit")
        self._commit_for_engine()

    def _commit_for_engine(self) -> None:
        """As `commit`, for the private optimizer of an engine."""
        with self._exclusive:
            self._commit()

    def _reserve_for_engine(self) -> None:
        """From now on, refuse `add` and `commit`: the private optimizer of an engine takes the steps."""
        self._is_reserved = True

    def _refuse_engine(self, name: str) -> None:
        if self._is_reserved:
            raise Refused(
                f"{name} cannot be called on the noise of a PrivacyEngine: it does not know whether the gradients are "
                "clipped.",
                hint="call step() of the optimizer that make_private returned; for a loop of your own, make a "
                "NoiseAdder",
            )

    def _commit(self) -> None:
        if not self._is_added:
            raise Refused(
                f"Step {self.step} has no noise yet.", hint="call add before commit, even if the batch is empty"
            )
        self._check_gradients()
        commit_after(self._run, self.step, self._digest(), self._check_parameters)
        self._is_adding, self._is_added, self._noisy = False, False, []
        self._expected = None
        self._requested.discard(self.step)
        self._step = self.step + 1

    def state_dict(self) -> dict[str, Any]:
        """State for the model's checkpoint: run id, step, and digests of the earlier outputs and of the parameters.

        None of it is secret. Ledger and noise state are written to disk first.
        """
        if self._is_adding:
            raise Refused(f"Step {self.step} is not committed.", hint="make checkpoints between steps")
        self._run.save()
        code = None if self._is_sharded else self._expected or self._parameters_digest()
        return {
            "run_id": self.run_id,
            "step": self.step,
            "branch": outputs_digest(self._run, self.step),
            "parameters": code,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the checkpoint that contained `state`; steps taken since then are replayed.

        When the first of them is taken, the parameters must be those of the checkpoint too.
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
                hint="either the run directory is an older copy: restore the newest one; or the checkpoint is of steps "
                "that were replaced later, and cannot be used",
            )
        if state.get("branch") != outputs_digest(self._run, step):
            raise Refused(
                f"The checkpoint does not follow from the outputs of the {step} steps before it in the ledger.",
                hint="these steps were replaced later, and both outputs contain the same noise: continue from a "
                "checkpoint of the steps in the ledger, or start a new run and compose the two",
            )
        self._go_to(step)
        self._expected = state.get("parameters") if step < self._run.committed else None

    def restart(self) -> None:
        """Go back to the first step, with the initial model."""
        self._go_to(0)

    def close(self) -> None:
        """Write everything to disk and let other processes open the directory."""
        try:
            self._withdraw()
        finally:
            self._run.close()

    def _own_gradients(self) -> list[torch.Tensor]:
        """The part of each gradient that this process adds noise to."""
        gradients = [flat_gradient(p) for p in self.parameters]
        if self._is_sharded:
            return gradients
        parts = list(self._own.values())
        if any(g.numel() != part.global_shape[0] for g, part in zip(gradients, parts, strict=True)):
            raise _changed()
        return [g[slice(*part.box[0])] for g, part in zip(gradients, parts, strict=True)]

    def _check_gradients(self) -> None:
        """Refuse gradients that were dropped or replaced since noise was added: the new ones have no noise."""
        replaced = [i for i, (p, g) in enumerate(zip(self.parameters, self._noisy, strict=True)) if p.grad is not g]
        if replaced:
            raise Refused(
                f"The gradient of parameter {replaced[0]} is not the tensor that the noise of step {self.step} was "
                f"added to ({len(replaced)} of {len(self.parameters)} parameters).",
                hint="between add and commit, call neither zero_grad nor backward, and change gradients in place: "
                "p.grad.div_(n) instead of p.grad = p.grad / n",
            )

    def _check_parameters(self) -> None:
        """Refuse to replay steps from a model that already contains their noise: it would contain it twice.

        Called on rank 0, before the step is recorded. With FSDP, where each rank has a part of each parameter, nothing
        is checked.
        """
        if self._is_sharded:
            return
        if self.step == 0:
            check_lineage(self._run, 0, bytes.fromhex(self._parameters_digest()))
        elif self._expected not in (None, self._parameters_digest()):
            raise Refused(
                f"Step {self.step} is replayed, but the parameters are not those of the checkpoint.",
                hint="load the model from the same checkpoint as the state of the run",
            )

    def _parameters_digest(self) -> str:
        return digest([p.detach().cpu().numpy() for p in self.parameters]).hex()

    def _go_to(self, step: int) -> None:
        with self._exclusive:
            self._withdraw()
            self._step, self._expected = step, None
            self._requested.clear()

    def _withdraw(self) -> None:
        """Record that a noisy output is dropped uncommitted: another output may get the same noise."""
        if self._is_adding:
            record_withdrawal(self._run, self.step)
        self._is_adding, self._is_added, self._noisy = False, False, []

    def _digest(self) -> bytes:
        """A digest of the step's output: over all ranks if each holds a part, else that of the common output."""
        mine = digest([flat_gradient(p).detach().cpu().numpy() for p in self.parameters])
        if self._is_sharded:
            self.transport.check_same(self.step, "step", "load the same checkpoint on every rank")
            parts = self.transport.all_gather(mine)
            return mine if len(parts) == 1 else hashlib.sha256(b"".join(parts)).digest()
        same = (self.step, mine)
        hint = (
            "sum the gradients over the ranks once, after add; if you sum them before add too, remove that, since a "
            "second sum counts every example several times"
        )
        self.transport.check_same(same, "step or noisy gradient", hint)
        return mine


def _changed() -> Refused:
    return Refused(
        "A parameter no longer has the size and dtype that the noise was made for.",
        hint="resize and convert the model before you start the run",
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
            hint="such as [p for p in model.parameters() if p.requires_grad]",
        )
    if len({id(p) for p in found}) < len(found):
        raise InvalidArgument("A parameter is listed twice.", hint="list each parameter once")
    return found


def _position(state: Any) -> tuple[Any, int]:
    """The run id and the step in a state from `state_dict`."""
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
    """Refuse a plan whose noise, multiplied by its clipping norm, is not right in this dtype."""
    if like is not None:
        check_device_noise(plan, like)
    else:
        mechanism, clip_norm = plan.mechanism, plan.problem.clip_norm
        check_sizes(mechanism.strategy, mechanism.noise_std, np.dtype(dtype), clip_norm=clip_norm)


def _device_tensor(parameters: list[torch.Tensor], source: str) -> torch.Tensor | None:
    """An empty tensor with the device and dtype of device noise; None for the host source."""
    if source == "host":
        return None
    if source != "device":
        raise invalid(
            "NoiseAdder",
            "source",
            "'host' or 'device'",
            source,
            "use 'host' unless noise is the bottleneck: it is cryptographic",
        )
    if len({p.device for p in parameters}) > 1:
        raise Refused("The parameters are on several devices.", hint="use source='host'")
    return torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
