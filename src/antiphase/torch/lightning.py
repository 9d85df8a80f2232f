"""`PrivateTraining`: a Lightning callback for private training with a plan.

`import antiphase.torch` does not load Lightning. Use `import antiphase.torch.lightning`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, Self, final

import torch

try:
    from lightning.pytorch import Callback, LightningModule
except ImportError as error:
    raise ImportError("antiphase.torch.lightning needs Lightning.\n\nhint: pip install antiphase[lightning]") from error

from antiphase._check import one_of
from antiphase._errors import InvalidArgument, Refused
from antiphase._participation import Deterministic, FixedSize, Participation, PoissonMinSeparation
from antiphase._plan import Plan, require_plan
from antiphase._run import PrivacyReport
from antiphase._secret import Secret
from antiphase.torch._batches import batch_size_of, select, tensors_in
from antiphase.torch._collation import CHECKED_EXAMPLES, check_collation, loader_of
from antiphase.torch._engine import PrivacyEngine
from antiphase.torch._loader import check_dataset
from antiphase.torch._options import epoch_length
from antiphase.torch._positions import expand_positions
from antiphase.torch._random_state import reseed

__all__ = ["PrivateTraining"]

NEGLIGIBLE = 1e-6  # a probability, relative to delta


@final
class PrivateTraining(Callback):
    """Lightning callback that trains with a plan: its batches, clipping, noise and ledger.

    Pass the callback to the trainer and its `loader` to `fit`. Everything else stays as it is: `training_step` returns
    the mean over the examples of a loss, and `configure_optimizers` returns one optimizer.

    ```python
    privacy = PrivateTraining(plan, "run", train_set)
    trainer = Trainer(max_epochs=-1, callbacks=[privacy])
    trainer.fit(model, privacy.loader)
    print(privacy.report())
    privacy.close()
    ```

    The callback stops the trainer after the last step of the plan, so the trainer needs no limit of its own. Before the
    first step, the callback checks that examples do not influence one another. Checkpoints contain the state
    of the engine, so `fit(..., ckpt_path=...)` continues the run. After every step, the random generators are seeded
    from their first seed and the step, so a resumed run has the same dropout. Epsilon is logged as "epsilon"
    every `log_every_n_steps` steps.

    **Guarantee**: as for `PrivacyEngine`.

    Args:
        plan: plan to train with. If its guarantee relies on random batches, they must be so large that none is empty.
        run_directory: run directory. It holds the secret and the noise state, so do not store it with the model.
        dataset: map-style data set, with one item for each example (or user) that the plan protects.
        grad_sample_mode: "hooks" or "functorch".
        clipping: "flat" or "per_layer".
        clip_norms: for "per_layer", one clipping norm per parameter tensor.
        loader_options: options of PyTorch's DataLoader, such as collate_fn, num_workers or pin_memory.
        restart: whether to replay the run from the initial model, after a crash before the first checkpoint.
        secret: secret that all noise is derived from. If None, one is generated and stored in the run directory.
        source: source of the noise, "host" or "device".
    """

    def __init__(
        self,
        plan: Plan,
        run_directory: str | Path,
        dataset: Any,
        *,
        grad_sample_mode: Literal["hooks", "functorch"] = "hooks",
        clipping: str = "flat",
        clip_norms: Sequence[float] | None = None,
        loader_options: Mapping[str, Any] | None = None,
        restart: bool = False,
        secret: Secret | None = None,
        source: Literal["host", "device"] = "host",
    ) -> None:
        require_plan("PrivateTraining", plan)
        hint = "ghost clipping needs a loss that Lightning does not accept; write a training loop of your own"
        one_of("PrivateTraining", "grad_sample_mode", grad_sample_mode, ("hooks", "functorch"), hint)
        self.plan, self.dataset = plan, dataset
        examples = check_dataset(dataset)
        _check_empty_batches(plan, examples)
        self.loader = _LateLoader(epoch_length(plan, examples))
        self.engine = PrivacyEngine(run_directory, secret=secret, source=source)
        self._mode: dict[str, Any] = {
            "grad_sample_mode": grad_sample_mode,
            "clipping": clipping,
            "clip_norms": clip_norms,
        }
        # If the loader drew its seed from PyTorch's own generator, dropout would differ after a resume.
        self._loader_options = {"generator": torch.Generator().manual_seed(0), **(loader_options or {})}
        self._is_restart = restart
        self._is_checked = self._is_made = False
        self._loaded: dict[str, Any] | None = None
        self._seed, self._is_resumed = 0, False

    def report(self) -> PrivacyReport:
        """Return a report of the guarantee of the steps that ran, compared with the plan."""
        return self.engine.report()

    def get_epsilon(self, delta: float) -> float:
        """Return an upper bound on the epsilon of the steps taken so far, as `PrivacyEngine.get_epsilon` does."""
        return self.engine.get_epsilon(delta)

    def close(self) -> None:
        """Write everything to disk and release the lock on the run directory."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the module, its optimizer and the loader private."""
        self._seed = torch.initial_seed()
        if self._is_made:
            raise Refused("This callback has already been used in fit.", hint="create another one, with the same plan")
        _check_trainer(trainer, pl_module)
        made = self.engine.make_private(
            pl_module, trainer.optimizers[0], self.dataset, self.plan, loader_options=self._loader_options, **self._mode
        )
        self._is_made = True
        for child in pl_module.children():  # Lightning does not call the module itself
            expand_positions(child)
        trainer.strategy.optimizers = [made[1]]
        self.loader.loader = made[2]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Continue from the checkpoint, if there is one."""
        if self._loaded is not None:
            self.engine.load_state_dict(self._loaded["engine"])
            self._seed, self._loaded = self._loaded["seed"], None
            self._is_resumed = True
            return
        if self._is_restart:
            self.engine.restart()
            return
        try:
            self.engine.step  # noqa: B018  # raises if the run has steps
        except Refused as error:
            raise Refused(
                "The run directory has steps of an earlier training, but this training would start again.",
                hint="to continue, call fit with ckpt_path='last' or the path of a checkpoint; if there is no "
                "checkpoint yet, use PrivateTraining(..., restart=True) and the same initial model",
            ) from error

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Before the first step, check that examples do not influence one another."""
        if self._is_resumed:
            reseed(self._seed, self.engine.step)
            self._is_resumed = False
        if self._is_checked or batch_size_of(batch) < 2:
            return

        def loss(part: Any) -> Any:
            with trainer.precision_plugin.train_step_context():
                found = pl_module.training_step(part, batch_idx)
            return found["loss"] if isinstance(found, Mapping) else found

        self._check_batches(trainer, pl_module, batch, batch_idx)
        with _without_logging(pl_module):
            self._is_checked = self.engine._is_independent(loss, batch)

    def _check_batches(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Check that neither collation nor the hooks of the module that change batches mix examples."""
        load = loader_of(self.dataset, self.loader.loader.collate_fn)

        def transferred(indices: list[int]) -> Any:
            found = trainer.precision_plugin.convert_input(load(indices))
            found = module._on_before_batch_transfer(found, dataloader_idx=0)
            return trainer.strategy.batch_to_device(found, dataloader_idx=0)

        with _without_logging(module):
            check_collation(transferred, list(range(min(CHECKED_EXAMPLES, len(self.dataset)))))
            if type(module).on_train_batch_start is LightningModule.on_train_batch_start:
                return
            copied = select(batch, list(range(batch_size_of(batch))), batch_size_of(batch))
            before = [t.clone() for t in tensors_in(copied)]
            module.on_train_batch_start(copied, batch_idx)
        after = list(tensors_in(copied))
        if len(before) != len(after) or not all(map(torch.equal, before, after)):
            raise Refused(
                f"on_train_batch_start of {type(module).__name__} changes the batch, which the check of the examples "
                "does not see.",
                hint="change the batch in training_step",
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log epsilon, and stop after the last step of the plan."""
        reseed(self._seed, self.engine.step)
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            pl_module.log("epsilon", self.engine.get_epsilon(self.plan.problem.budget.delta), batch_size=1)
        if self.engine.step >= self.plan.steps:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the engine, for the checkpoint. It is not secret."""
        if not self._is_made:
            return {}
        return {"engine": self.engine.state_dict(), "seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state from a checkpoint until the model and the optimizer are loaded."""
        self._loaded = state_dict or None


def _check_empty_batches(plan: Plan, examples: int) -> None:
    """Raise `InvalidArgument` if a secret batch may be empty.

    Lightning counts the batches that have examples. Its step numbers, which its logs and checkpoints contain, would
    reveal which batches are empty, and the guarantee assumes that nobody knows the batches.
    """
    participation = plan.mechanism.participation
    if isinstance(participation, (Deterministic, FixedSize)):
        return  # the batches are not secret, or all have the same size
    chance = sum((1 - rate) ** examples for rate in _step_rates(participation, plan.steps))
    if chance > NEGLIGIBLE * plan.problem.budget.delta:
        raise InvalidArgument(
            f"Batches of this plan may be empty (with probability {min(chance, 1.0):.2g}). Lightning's step numbers "
            "would reveal which ones, and the guarantee assumes that nobody knows the batches.",
            hint="use an expected batch size of 40 or more, or a participation whose batches are not secret, such as "
            "MinSeparation; or train with PrivateTrainer or a loop of your own",
        )


def _step_rates(participation: Participation, steps: int) -> Iterator[float]:
    """Yield the probability that a given example is in the batch of each step."""
    if not isinstance(participation, PoissonMinSeparation) or participation.warm_start:
        yield from repeat(participation.expected_batch(1, steps), steps)
        return
    waiting, recent = 0.0, deque[float]()  # share of the examples that were drawn in the last steps
    for _ in range(steps):
        rate = participation.rate * (1 - waiting)
        yield rate
        recent.append(rate)
        waiting += rate
        if len(recent) == participation.separation:
            waiting -= recent.popleft()


@final
class _LateLoader:
    """The private loader, which exists only after Lightning has set up the optimizer."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.loader: Any = None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        if self.loader is None:
            raise Refused(
                "The private loader was used before its callback had prepared it.",
                hint="pass the PrivateTraining callback to the trainer: Trainer(callbacks=[privacy]); remove callbacks "
                "that train before fit does, such as LearningRateFinder",
            )
        yield from self.loader


def _check_trainer(trainer: Any, module: Any) -> None:
    """Raise `InvalidArgument` for options of the trainer that would change the mechanism."""
    clip, accumulate = trainer.gradient_clip_val, trainer.accumulate_grad_batches
    if clip:
        raise InvalidArgument(
            f"Trainer(gradient_clip_val={clip}) would clip the gradient of the whole batch.",
            hint="set the clipping norm in the plan, Problem(clip_norm=...), which clips the gradient of each example",
        )
    if accumulate != 1:
        raise InvalidArgument(
            f"Trainer(accumulate_grad_batches={accumulate}) cannot be used: the batch of a step comes from the plan.",
            hint="set the batch size in the plan: Problem(batch_size=...)",
        )
    if trainer.world_size > 1:
        raise InvalidArgument(
            f"The callback uses one process. Got {trainer.world_size}.", hint="use Trainer(devices=1, num_nodes=1)"
        )
    if str(trainer.precision) not in ("32-true", "64-true", "bf16-mixed"):
        raise InvalidArgument(
            f"Trainer(precision={trainer.precision!r}) scales or rounds gradients before they are clipped.",
            hint="use '32-true' or 'bf16-mixed'",
        )
    if not module.automatic_optimization:
        raise InvalidArgument(
            "The callback needs automatic optimization.", hint="leave automatic_optimization=True in the module"
        )
    if len(trainer.optimizers) != 1:
        raise InvalidArgument(
            f"The module has {len(trainer.optimizers)} optimizers.",
            hint="return one optimizer for all trainable parameters from configure_optimizers",
        )


@contextmanager
def _without_logging(module: Any) -> Iterator[None]:
    """Inside this context, `log` and `log_dict` of a module do nothing."""
    vars(module).update(log=_ignore, log_dict=_ignore)
    try:
        yield
    finally:
        del module.log, module.log_dict


def _ignore(*_: Any, **__: Any) -> None:
    return None
