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
from antiphase.torch._lattice import refuse_lightning
from antiphase.torch._loader import check_dataset
from antiphase.torch._options import epoch_length
from antiphase.torch._positions import expand_positions

__all__ = ["PrivateTraining"]

NEGLIGIBLE = 1e-6  # the probability of an empty batch is ignored if it is below this multiple of delta


@final
class PrivateTraining(Callback):
    """Lightning callback that makes training private, with the batches, clipping, noise and ledger of a plan.

    Pass the callback to the trainer, and the callback's `loader` to `fit`. Nothing else changes: `training_step`
    returns the mean loss of the examples in the batch, and `configure_optimizers` returns one optimizer.

    ```python
    privacy = PrivateTraining(plan, "run", train_set)
    trainer = Trainer(max_epochs=-1, callbacks=[privacy])
    trainer.fit(model, privacy.loader)
    print(privacy.report())
    privacy.close()
    ```

    The callback stops the trainer after the last step of the plan, so you need not set max_steps or max_epochs. Before
    the first step, the callback checks that examples do not influence one another. Checkpoints contain the state of the
    engine, so `fit(..., ckpt_path=...)` continues the run. Epsilon is logged as "epsilon" every
    `log_every_n_steps` steps.

    **Guarantee**: as for `PrivacyEngine`, the training satisfies the plan's guarantee.

    Args:
        plan: plan to train with. If its guarantee relies on random batches, the batches must be so large that the
            probability of an empty batch is negligible.
        run_directory: run directory. It holds the secret and the noise state, so do not store it with the model.
        dataset: map-style data set, with one item for each example (or user) that the plan protects.
        grad_sample_mode: "hooks" or "functorch".
        clipping: "flat" or "per_layer".
        clip_norms: for "per_layer", one clipping norm per parameter tensor.
        loader_options: options of PyTorch's DataLoader, such as collate_fn, num_workers or pin_memory.
        restart: whether to replay the run from the initial model. Use this after a crash before the first checkpoint.
        secret: secret that all noise is derived from. If None, a secret is generated and stored in the run directory.
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
        refuse_lightning(plan)
        hint = "ghost clipping needs a loss that Lightning does not accept; for ghost clipping, write your own loop"
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
        # If the loader drew its seed from PyTorch's own generator, it would change that generator's state.
        self._loader_options = {"generator": torch.Generator().manual_seed(0), **(loader_options or {})}
        self._is_restart = restart
        self._is_checked = self._is_made = False
        self._loaded: dict[str, Any] | None = None

    def report(self) -> PrivacyReport:
        """Return the guarantee of the steps that ran, together with the planned guarantee."""
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
        if self._is_made:
            raise Refused(
                "This callback has already been used in fit.", hint="create another callback with the same plan"
            )
        _check_trainer(trainer, pl_module)
        made = self.engine.make_private(
            pl_module, trainer.optimizers[0], self.dataset, self.plan, loader_options=self._loader_options, **self._mode
        )
        self._is_made = True
        self.engine._backpropagate_sums()
        for child in pl_module.children():  # Lightning does not call the module itself
            expand_positions(child)
        trainer.strategy.optimizers = [made[1]]
        self.loader.loader = made[2]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Continue from the checkpoint, if there is one."""
        if self._loaded is not None:
            self.engine.load_state_dict(self._loaded["engine"])
            self._loaded = None
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
        if self._is_checked or batch_size_of(batch) < 2:
            return

        def loss(part: Any) -> Any:
            with trainer.precision_plugin.train_step_context():
                found = pl_module.training_step(part, batch_idx)
            mean = found["loss"] if isinstance(found, Mapping) else found
            return mean * batch_size_of(part)

        self._check_batches(trainer, pl_module, batch, batch_idx)
        with _without_logging(pl_module) as logged:
            self._is_checked = self.engine._is_independent(loss, batch)
        _check_monitors(trainer, {name for name, values in logged.items() if len(values) > 1})

    def _check_batches(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        """Check that collation and the module's hooks that can change a batch do not mix its examples."""
        load = loader_of(self.dataset, self.loader.loader.own_collate)

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
                f"on_train_batch_start of {type(module).__name__} changes the batch. The check that examples do not "
                "influence one another does not see this change.",
                hint="change the batch in training_step",
            )

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Start the backward pass from the sum of the losses instead of their mean; see `refuse_rounded_mean`."""
        examples = len(self.engine._started.examples(self.engine.step)[0])
        loss.register_hook(lambda gradient: gradient * examples)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log epsilon, and stop after the last step of the plan."""
        if (batch_idx + 1) % trainer.log_every_n_steps == 0:
            pl_module.log("epsilon", self.engine.get_epsilon(self.plan.problem.budget.delta), batch_size=1)
        if self.engine.step >= self.plan.steps:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the engine, for the checkpoint. It is not secret."""
        if not self._is_made:
            return {}
        return {"engine": self.engine.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the state from a checkpoint. `on_train_start` loads it, after the model and the optimizer."""
        self._loaded = state_dict or None


def _check_empty_batches(plan: Plan, examples: int) -> None:
    """Raise `InvalidArgument` if the guarantee needs secret batches, and a batch may be empty.

    Lightning counts only batches that have examples. Its logs and checkpoints contain step numbers, which would reveal
    which batches are empty. But the guarantee assumes that nobody knows the batches.
    """
    participation = plan.mechanism.participation
    if isinstance(participation, (Deterministic, FixedSize)):
        return  # the batches are not secret, or all have the same size
    chance = sum((1 - rate) ** examples for rate in _step_rates(participation, plan.steps))
    if chance > NEGLIGIBLE * plan.problem.budget.delta:
        raise InvalidArgument(
            f"Batches of this plan may be empty (probability at most {min(chance, 1.0):.2g}). Lightning's step numbers "
            "would reveal which batches are empty, but the guarantee assumes that nobody knows the batches.",
            hint="use an expected batch size of 40 or more, or a participation whose batches are not secret, such as "
            "MinSeparation; or train with PrivateTrainer or your own training loop",
        )


def _step_rates(participation: Participation, steps: int) -> Iterator[float]:
    """For each step, yield the probability that a given example is in the batch."""
    if not isinstance(participation, PoissonMinSeparation) or participation.warm_start:
        yield from repeat(participation.expected_batch(1, steps), steps)
        return
    recent = deque[float]()  # expected fraction of the examples drawn in each of the last separation - 1 steps
    waiting = 0.0  # sum of the fractions in `recent`
    for _ in range(steps):
        rate = participation.rate * (1 - waiting)
        yield rate
        recent.append(rate)
        waiting += rate
        if len(recent) == participation.separation:
            waiting -= recent.popleft()


@final
class _LateLoader:
    """Placeholder for the private loader, which cannot be made before Lightning has set up the optimizer."""

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
            f"PrivateTraining supports one process. Got {trainer.world_size}.",
            hint="use Trainer(devices=1, num_nodes=1)",
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


def _check_monitors(trainer: Any, metrics: set[str]) -> None:
    """Raise `InvalidArgument` if a callback or scheduler depends on a metric of the training data, without noise.

    Args:
        trainer: trainer with callbacks and schedulers.
        metrics: names of the metrics that `training_step` logs and that depend on the data.
    """
    names = {name + ending for name in metrics for ending in ("", "_step", "_epoch")}
    plateaus = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    found = [(type(callback).__name__, getattr(callback, "monitor", None)) for callback in trainer.callbacks]
    found += [(type(config.scheduler).__name__, config.monitor) for config in plateaus]
    for kind, monitor in found:
        if monitor in names:
            raise InvalidArgument(
                f"{kind} monitors {monitor!r}, which training_step computes from the private data, without noise. The "
                "guarantee does not cover choices that depend on this metric.",
                hint="monitor a metric of public validation data, or use a fixed schedule and a fixed number of steps",
            )


@contextmanager
def _without_logging(module: Any) -> Iterator[dict[str, set[object]]]:
    """Inside this context, `log` and `log_dict` of a module only record the values of each metric."""
    found: dict[str, set[object]] = {}

    def log(name: str, value: Any, *_: Any, **__: Any) -> None:
        value = value.detach() if isinstance(value, torch.Tensor) else value
        is_number = isinstance(value, (int, float, torch.Tensor))
        # Anything else, such as an object of torchmetrics, counts as a new value every time.
        found.setdefault(name, set()).add(float(value) if is_number else object())

    def log_dict(values: Mapping[str, Any], *_: Any, **__: Any) -> None:
        for name, value in values.items():
            log(name, value)

    vars(module).update(log=log, log_dict=log_dict)
    try:
        yield found
    finally:
        del module.log, module.log_dict
