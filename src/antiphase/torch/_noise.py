"""The step's noise, added in place to the gradients of a list of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, final

import torch

from antiphase._check import invalid
from antiphase._errors import InvalidArgument, Refused
from antiphase._plan import Plan, require_plan
from antiphase._run import Exclusive, PrivacyReport, digest, refuse_pickle
from antiphase._samplers import Batch
from antiphase._secret import Secret
from antiphase.torch._pieces import flat_gradient, is_mapped, is_sharded, noise_dtype, own_leaves, whole_leaves
from antiphase.torch._shared_run import SharedRun
from antiphase.torch._world import World


@final
class NoiseAdder:
    """Adds a plan's noise to the summed, clipped gradients of any training loop, once a step.

    After `add`, `p.grad` of each parameter is S + clip_norm noise_std (N z)_t, where S is what it was before.

    **Guarantee**: that of the plan, if before `add` the gradients are the *sum*, not the mean, over the step's batch
    of contributions whose norm over all parameters together is at most the plan's `clip_norm`.

    With several processes (torch.distributed), each makes only its own part of the noise: with parameters sharded by
    FSDP2, that of its shard; with replicated parameters, an equal slice of the model, so that the noise is complete
    after the processes' gradients have been *summed*: `add`, then all-reduce, then `commit`.

    The parameters move after `commit` has returned, so that nothing moves them that is not in the ledger.

    Args:
        parameters: all that are trained, in an order that stays the same from start to start.
        plan: what to run.
        directory: of the run; kept apart from the model, since it holds the secret and the noise state.
        examples: size of the data set, for batches from `batch`; needed where the guarantee rests on random ones. None
            where batches come from elsewhere, which the report says.
        secret: None keeps one in the directory.
        source: "host" for AES-256 on the processor; "device" for PyTorch's generator where the parameters are, which
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
        self.plan, self.world = plan, World.current()
        self._is_sharded = is_sharded(self.parameters)
        self._own = own_leaves(self.parameters, self.world)
        self._run = SharedRun(
            plan,
            directory,
            whole_leaves(self.parameters),
            self._own,
            examples=examples,
            secret=secret,
            dtype=noise_dtype(self.parameters),
            world=self.world,
            device=_device_of(self.parameters, source),
        )
        self._step: int | None = 0 if self._run.committed == 0 else None
        self._is_begun = self._is_added = False  # between the two, some gradients have noise and some do not
        self._noisy: list[Any] = []  # the gradients that have it, which are the ones to commit
        self._alone = Exclusive("A step of NoiseAdder")
        self._asked: set[int] = set()  # steps to take whose batches were asked for
        self._expected: str | None = None  # code of the parameters to go on with; None for any

    __reduce_ex__ = refuse_pickle

    @property
    def run_id(self) -> str:
        """Of the run in the directory."""
        return self._run.run_id

    @property
    def step(self) -> int:
        """The step to take next."""
        if self._step is None:
            raise Refused(
                f"The run has {self._run.committed} committed steps; where the model stands is not known.",
                hint="load_state_dict what state_dict gave with the model's checkpoint, "
                "or begin again with restart() and the model as it was first",
            )
        return self._step

    @property
    def is_added(self) -> bool:
        """Whether the gradients hold the noise of the step to take next."""
        return self._is_added

    @property
    def state_bytes(self) -> int:
        """Memory that this process keeps for the noise from step to step; 0 before the first step."""
        return self._run.state_bytes

    def batch(self, step: int | None = None) -> Batch:
        """The examples of a step, by default of the next one, from the sampler that the plan's proof assumes."""
        wanted = self.step if step is None else step
        found = self._run.batch(wanted)
        self._asked.add(int(wanted))
        return found

    def add(self) -> None:
        """Add the step's noise to the gradients, in place; a missing gradient counts as zero."""
        with self._alone:
            self._add()

    def _add(self) -> None:
        if self._is_begun:
            raise Refused(
                f"The noise of step {self.step} was added already.", hint="add noise once a step, then call commit"
            )
        if self._run.examples is not None and self.step not in self._asked:
            raise Refused(
                f"The batch of step {self.step} was not asked for, so the gradients are not those of its examples.",
                hint="take every batch from batch(); where batches come from elsewhere, leave examples out",
            )
        if any(is_mapped(p.grad) for p in self.parameters):
            raise Refused(
                "torch.func.vmap maps NoiseAdder.add over several gradients: all would have the same noise.",
                hint="add the gradients up before the noise, outside of vmap; models side by side need a run each",
            )
        made = list(zip(self._held(), self._run.noise(self.step), strict=True))
        if any(held.numel() != noise.numel() or held.dtype != noise.dtype for held, noise in made):
            raise _changed()
        self._is_begun = True
        self._noisy = [p.grad for p in self.parameters]
        for held, noise in made:
            held.add_(noise.to(held.device), alpha=self.plan.problem.clip_norm)
        self._is_added = True

    def commit(self) -> None:
        """Record the step in the ledger: after `add` and the all-reduce, and before the parameters move.

        Refused where `p.grad` is no longer the tensor that `add` added noise to. Between the two, change gradients only
        in place. Where it raises, the gradients must not be used.
        """
        with self._alone:
            self._commit()

    def _commit(self) -> None:
        if not self._is_added:
            raise Refused(f"Step {self.step} has no noise yet.", hint="call add before commit, for empty batches too")
        self._check_gradients()
        self._run.commit(self.step, self._digest(), self._check_parameters)
        self._is_begun, self._is_added, self._noisy = False, False, []
        self._expected = None
        self._asked.discard(self.step)
        self._step = self.step + 1

    def state_dict(self) -> dict[str, Any]:
        """What belongs in the model's checkpoint: run id, step, codes of the outputs before it and of the parameters.

        Nothing in it is secret. Ledger and noise state are put on disk first.
        """
        if self._is_begun:
            raise Refused(f"Step {self.step} is not committed.", hint="make checkpoints between steps")
        self._run.save()
        code = None if self._is_sharded else self._expected or self._parameters_code()
        return {"run_id": self.run_id, "step": self.step, "branch": self._run.branch(self.step), "parameters": code}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the checkpoint that held `state` was made; steps taken since then are replayed.

        For that the parameters must be those of the checkpoint too, when the first of these steps is taken.
        """
        run_id, step = _position(state)
        if run_id != self.run_id:
            raise InvalidArgument(
                f"The checkpoint belongs to run {run_id}; the directory holds run {self.run_id}.",
                hint="open the directory that the checkpoint was made with",
            )
        if not 0 <= step <= self._run.committed:
            raise Refused(
                f"The checkpoint is from step {step}, but the ledger has {self._run.committed} steps.",
                hint="the run directory is older than the checkpoint: restore the newest copy of it; "
                "where steps were taken again, a checkpoint of the withdrawn ones cannot be used",
            )
        if state.get("branch") != self._run.branch(step):
            raise Refused(
                f"The ledger has other outputs of the {step} steps before the checkpoint than those that made it.",
                hint="this checkpoint is of steps that were taken again; the same noise is in both, so go on from a "
                "checkpoint of the steps that the ledger has, or start a new run and compose the two",
            )
        self._go_to(step)
        self._expected = state.get("parameters") if step < self._run.committed else None

    def restart(self) -> None:
        """Go back to the first step, for a model that begins again as it was first."""
        self._go_to(0)

    def publish(self, label: str) -> None:
        """Record that something leaves the building; call it before, on every rank."""
        self._run.publish(label)

    def report(self) -> PrivacyReport:
        """The guarantee of what ran. On rank 0 alone."""
        return self._run.report()

    def save(self) -> None:
        """Store the noise state, so that resuming here need not generate the noise from the start."""
        self._run.save()

    def close(self) -> None:
        """Put everything on disk and let other processes in."""
        try:
            self._withdraw()
        finally:
            self._run.close()

    def __enter__(self) -> NoiseAdder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _held(self) -> list[torch.Tensor]:
        """The part of each gradient that this process adds noise to."""
        gradients = [flat_gradient(p) for p in self.parameters]
        if self._is_sharded:
            return gradients
        parts = list(self._own.values())
        if any(g.numel() != part.global_shape[0] for g, part in zip(gradients, parts, strict=True)):
            raise _changed()
        return [g[slice(*part.box[0])] for g, part in zip(gradients, parts, strict=True)]

    def _check_gradients(self) -> None:
        """Refuse gradients that were dropped or replaced since noise was added: what moves the parameters has none."""
        replaced = [i for i, (p, g) in enumerate(zip(self.parameters, self._noisy, strict=True)) if p.grad is not g]
        if replaced:
            raise Refused(
                f"The gradient of parameter {replaced[0]} is not the tensor that the noise of step {self.step} was "
                f"added to ({len(replaced)} of {len(self.parameters)} parameters).",
                hint="between add and commit, call neither zero_grad nor backward, and change gradients in place: "
                "p.grad.div_(n) instead of p.grad = p.grad / n",
            )

    def _check_parameters(self) -> None:
        """Refuse to take steps again from a model that has their noise already: it would be in it twice.

        On rank 0, before the step is recorded. Where every rank has a part of each parameter (FSDP) nothing is checked.
        """
        if self._is_sharded:
            return
        if self.step == 0:
            self._run.check_start(bytes.fromhex(self._parameters_code()))
        elif self._expected not in (None, self._parameters_code()):
            raise Refused(
                f"Step {self.step} is to be taken again, but the parameters are not those of the checkpoint.",
                hint="load the model of the checkpoint that the state of the run is from",
            )

    def _parameters_code(self) -> str:
        return digest([p.detach().cpu().numpy() for p in self.parameters]).hex()

    def _go_to(self, step: int) -> None:
        with self._alone:
            self._withdraw()
            self._step, self._expected = step, None
            self._asked.clear()

    def _withdraw(self) -> None:
        """Record an output that has its noise and is not committed: another one may get the same noise."""
        if self._is_begun:
            self._run.withdraw(self.step)
        self._is_begun, self._is_added, self._noisy = False, False, []

    def _digest(self) -> bytes:
        """Over the step's whole output: of all ranks where each holds a part, else the one that all must have."""
        mine = digest([flat_gradient(p).detach().cpu().numpy() for p in self.parameters])
        if self._is_sharded:
            self.world.check_same(self.step, "step", "load the same checkpoint on every rank")
            return self.world.joined_digest(mine)
        self.world.check_same((self.step, mine), "step or noisy gradient", "sum the gradients over the ranks after add")
        return mine


def _changed() -> Refused:
    return Refused(
        "A parameter is no longer of the size and dtype that the noise was made for.",
        hint="resize and convert the model before the run begins",
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
            f"The 'parameters' parameter of NoiseAdder must be one or more tensors. Got {found!r} instead.",
            hint="such as [p for p in model.parameters() if p.requires_grad]",
        )
    if len({id(p) for p in found}) < len(found):
        raise InvalidArgument("A parameter is there twice.", hint="list each parameter once")
    return found


def _position(state: Any) -> tuple[Any, int]:
    """Run id and step of what `state_dict` gave."""
    run_id, step = (state.get(name) for name in ("run_id", "step")) if isinstance(state, dict) else (None, None)
    if run_id is None or isinstance(step, bool) or not isinstance(step, int):
        raise invalid(
            "NoiseAdder.load_state_dict",
            "state",
            "what state_dict gave: a dict with the run id and a step",
            state,
            "load the entry of the checkpoint that NoiseAdder.state_dict was stored under",
        )
    return run_id, step


def _device_of(parameters: list[torch.Tensor], source: str) -> torch.Tensor | None:
    """A tensor like those that device noise is made as; None for the host source."""
    if source == "host":
        return None
    if source != "device":
        raise invalid("NoiseAdder", "source", "'host' or 'device'", source, "'host' is cryptographic")
    if len({p.device for p in parameters}) > 1:
        raise Refused("The parameters are on several devices.", hint="use source='host'")
    return torch.empty(0, dtype=parameters[0].dtype, device=parameters[0].device)
