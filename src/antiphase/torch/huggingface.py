"""`PrivateTrainer`: Hugging Face's `Trainer` with the plan's batches, per-example clipping, noise and ledger.

`import antiphase.torch` does not load transformers. Use `import antiphase.torch.huggingface`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn

try:
    from transformers import Trainer, TrainingArguments
except ImportError as error:
    raise ImportError(
        "antiphase.torch.huggingface needs transformers and accelerate.\n\nhint: pip install antiphase[huggingface]"
    ) from error

from antiphase._errors import InvalidArgument, Refused
from antiphase._plan import Plan, require_plan
from antiphase._run import PrivacyReport
from antiphase._secret import Secret
from antiphase._traceback import without_locals
from antiphase.torch._batches import select_padded, tensors_in
from antiphase.torch._collation import CHECKED_EXAMPLES, check_collation, loader_of
from antiphase.torch._engine import PrivacyEngine
from antiphase.torch._huggingface_arguments import check_arguments, check_collator, check_directories, check_users
from antiphase.torch._huggingface_loss import loss_for, model_inputs
from antiphase.torch._huggingface_plan import Goal, plan_for
from antiphase.torch.users import UserCollate, UserLoss, check_unit, flatten_users

__all__ = ["PrivateTrainer"]

STATE_FILE = "antiphase.json"
LOSSES = ("loss", "train_loss", "grad_norm")


class PrivateTrainer(Trainer):
    """Hugging Face's `Trainer` for private training with a plan.

    The batches come from the plan, and `per_device_train_batch_size` is only the number of examples (or users) that are
    processed at a time. Each step of the trainer is one step of the plan, and `max_steps` is the plan's number of steps
    unless you choose fewer. Checkpoints contain the state of the engine. After a crash, call
    `train(resume_from_checkpoint=True)`, which also works if there is no checkpoint yet.

    The loss is computed separately for each example. The losses that most models compute themselves cannot be used,
    because they are means over all tokens of a batch. Before the first step, the trainer checks that examples do not
    influence one another. `loss` and `grad_norm` have no noise, so they are not logged; the log shows epsilon instead.
    To log the loss, set `log_training_loss`.

    **Guarantee**: as for `PrivacyEngine`, the training satisfies the plan's guarantee.

    Args:
        model: model to train; only parameters with `requires_grad` are trained, so PEFT adapters work.
        args: training arguments. Arguments that would change the mechanism raise an error.
        plan: plan to train with. Alternatively, pass epsilon, delta and batch_size.
        run_directory: run directory. It holds the secret and the noise state, so it must not be inside
            `args.output_dir`.
        epsilon: epsilon to make a plan for, if `plan` is None. The plan has `args.max_steps` steps, or as many as
            `args.num_train_epochs` needs. The plan is stored in the run directory and used again on resume.
        delta: delta to make a plan for, if `plan` is None.
        batch_size: expected number of examples (or users) per step, if `plan` is None.
        clip_norm: clipping norm of each example (or user), if `plan` is None.
        loss: module that maps (output of the model, labels) to one value per example if its `reduction` attribute is
            "none". By default, the loss is chosen by the class of the model.
        grad_sample_mode: "hooks", "functorch" or "ghost", as in `PrivacyEngine.make_private`.
        clipping: "flat" or "per_layer".
        clip_norms: for "per_layer", one clipping norm per parameter tensor.
        rows_per_user: for user-level privacy, the number of examples that every user is padded to, at least the `limit`
            of the data set. `train_dataset` must then be an `antiphase.torch.users.UserDataset`; the data collator
            collates examples, not users.
        log_training_loss: whether to log the training loss, which has no noise. If True, do not publish checkpoints,
            because they contain the log.
        secret: secret that all noise is derived from. If None, a secret is generated and stored in the run directory.
        source: source of the noise, "host" or "device".
        trainer: other arguments of `Trainer`, such as train_dataset, eval_dataset and data_collator.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        *,
        plan: Plan | None = None,
        run_directory: str | Path,
        epsilon: float | None = None,
        delta: float | None = None,
        batch_size: int | None = None,
        clip_norm: float = 1.0,
        loss: Any = None,
        grad_sample_mode: Literal["hooks", "functorch", "ghost"] = "hooks",
        clipping: str = "flat",
        clip_norms: Sequence[float] | None = None,
        rows_per_user: int | None = None,
        log_training_loss: bool = False,
        secret: Secret | None = None,
        source: Literal["host", "device"] = "host",
        **trainer: Any,
    ) -> None:
        args = TrainingArguments(output_dir="tmp_trainer") if args is None else args
        if type(self).compute_loss is not PrivateTrainer.compute_loss:
            raise InvalidArgument(
                f"{type(self).__name__} overrides compute_loss, which PrivateTrainer uses only for evaluation.",
                hint="pass loss=..., which gives one value per example, such as antiphase.torch.losses.CausalLMLoss()",
            )
        check_users(trainer.get("train_dataset"), rows_per_user)
        if plan is None:
            unit: Literal["example", "user"] = "example" if rows_per_user is None else "user"
            goal = Goal(epsilon, delta, batch_size, clip_norm, unit)
            plan = plan_for(goal, args, trainer.get("train_dataset"), run_directory)
        elif epsilon is not None or delta is not None or batch_size is not None:
            raise InvalidArgument(
                "PrivateTrainer takes either a plan, or epsilon, delta and batch_size.",
                hint="pass only the plan, or only epsilon, delta and batch_size",
            )
        require_plan("PrivateTrainer", plan)
        check_unit(plan, trainer.get("train_dataset"))
        check_arguments(args, plan, trainer, grad_sample_mode=grad_sample_mode, has_loss=loss is not None)
        check_directories(args, run_directory)
        if args.max_steps <= 0:
            args.max_steps = plan.steps
        args.ignore_data_skip = True  # the engine continues with the next step by itself
        super().__init__(model=model, args=args, **trainer)
        check_collator(self.data_collator, self.processing_class)
        self.plan, self._log_training_loss = plan, log_training_loss
        base = _base_model(self.model)
        self._criterion = loss_for(base, args.label_smoothing_factor) if loss is None else loss
        self._rows = rows_per_user
        self._training_loss: Any = (
            self._criterion if rows_per_user is None else UserLoss(self._criterion, rows_per_user)
        )
        self._options: dict[str, Any] = {
            "grad_sample_mode": grad_sample_mode,
            "clipping": clipping,
            "clip_norms": clip_norms,
        }
        self.engine = PrivacyEngine(run_directory, secret=secret, source=source)
        self._private_model: Any = None
        self._private_optimizer: Any = None
        self._loader: Any = None
        self._checkpoint: str | None = None
        self._is_restart = False
        self._is_checked = False
        self._last_loss = torch.zeros(())

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train to the end of the plan, or for `max_steps` steps. Return Trainer's `TrainOutput`.

        Unless `log_training_loss` is set, the result does not contain the training loss. The loss has no noise, and
        scripts often write the result to a file next to the model.

        Args:
            resume_from_checkpoint: True to continue from the last complete checkpoint in `output_dir`, or from the
                initial model if there is none; or the path of a checkpoint.
            options: other arguments of `Trainer.train`.
        """
        if options.get("trial") is not None:
            raise Refused(
                "Hyperparameter search trains several models on the same data, but a run covers only one model.",
                hint="create a PrivateTrainer with its own plan and run directory for each trial",
            )
        self._is_restart = resume_from_checkpoint is True
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(str(self.args.output_dir))
        self._checkpoint = resume_from_checkpoint or None
        found = super().train(resume_from_checkpoint=self._checkpoint, **options)
        if self._log_training_loss:
            return found
        metrics = {name: value for name, value in found.metrics.items() if name not in LOSSES}
        return found._replace(training_loss=float("nan"), metrics=metrics)

    def report(self) -> PrivacyReport:
        """Return the guarantee of the steps that ran, together with the planned guarantee."""
        self._make_private()
        return self.engine.report()

    def get_epsilon(self, delta: float) -> float:
        """Return an upper bound on the epsilon of the steps taken so far, as `PrivacyEngine.get_epsilon` does."""
        self._make_private()
        return self.engine.get_epsilon(delta)

    def close(self) -> None:
        """Write everything to disk and release the lock on the run directory."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_train_dataloader(self) -> Any:
        """Return the private data loader. An item is the batch of a step, as a list of physical batches.

        A physical batch is the input of one forward and backward pass.
        """
        self._make_private()
        self._check_start()
        return self._loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Compute and clip the gradients of all physical batches of a step, add them, and return the mean loss.

        For a step without examples, return the previous loss again. A loss of zero would distort the mean in the log.
        """
        model.train()
        with self.engine._backpropagating_sums():  # undone at the end: training_step of a subclass may use a mean
            if not self._is_checked:
                self._check_independence(model)
            losses = self._add_gradients(model, inputs)
        if losses:
            self._last_loss = torch.stack(losses).mean().to(self.args.device)
        return self._last_loss.to(self.args.device)

    def _add_gradients(self, model: nn.Module, inputs: Any) -> list[torch.Tensor]:
        """Add the clipped gradients of all physical batches of a step, and return the mean loss of each."""
        optimizer, losses = self._private_optimizer, []
        tracker, size = self.engine._started, self._physical_size
        indices = tracker.examples(self.engine.step)[0]
        for i, batch in enumerate(inputs):
            examples = len(indices[i * size : (i + 1) * size])
            if self.plan.mechanism.lattice is not None:
                tracker.generators.seed(self.engine.step, indices[i])
            optimizer.zero_grad(set_to_none=True)
            with self.compute_loss_context_manager():
                loss = self._loss_of(model, self._prepare_inputs(batch))
            _summed(loss, examples).backward()
            losses.append(_value(loss))
            is_last = i == len(inputs) - 1
            optimizer.signal_skip_step(do_skip=not is_last)
            if not is_last:
                optimizer.step()  # adds to the sum of clipped gradients
        return losses

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean of the per-example losses, for evaluation and prediction."""
        inputs, labels = model_inputs(_base_model(self.model), inputs, self.label_names)
        outputs = model(**inputs)
        loss = self._criterion(outputs, labels)
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> Any:
        """Return a context manager with autocast if `args.bf16` is set."""
        return self.accelerator.autocast()

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log epsilon with the training metrics. Leave out the training loss unless `log_training_loss` is set."""
        is_training = "loss" in logs or "train_loss" in logs
        if not self._log_training_loss:
            logs = {name: value for name, value in logs.items() if name not in LOSSES}
        if is_training and self.is_in_train:
            logs["epsilon"] = self.engine.get_epsilon(self.plan.problem.budget.delta)
        super().log(logs, *args, **options)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0. The number of operations would reveal the sizes of the batches."""
        return 0

    def _make_private(self) -> None:
        if self._private_model is not None:
            return
        if self.train_dataset is None:
            raise InvalidArgument("PrivateTrainer needs a train_dataset.", hint="pass train_dataset=...")
        optimizer: Any = self.create_optimizer()
        self.model.train()  # an evaluation may have changed the mode
        users: dict[str, Any] = {} if self._rows is None else {"rows_per_example": self._rows}
        made = self.engine.make_private(
            self.model,
            optimizer,
            self.train_dataset,
            self.plan,
            criterion=self._training_loss,
            loader_options={
                "collate_fn": _PhysicalBatches(self._collator(), self._physical_size),
                "num_workers": self.args.dataloader_num_workers,
                "pin_memory": self.args.dataloader_pin_memory and self.args.device.type != "cpu",
                "prefetch_factor": self.args.dataloader_prefetch_factor,
                # If the loader drew its seed from PyTorch's own generator, it would change that generator's state.
                "generator": torch.Generator().manual_seed(self.args.seed),
            },
            **self._options,
            **users,
        )
        self._private_model, self._private_optimizer, self._loader = made[0], made[1], made[-1]
        if len(made) == 4:
            self._training_loss = made[2]
        # If the loader skipped empty batches, logs and checkpoints would reveal which batches are empty.
        self._loader.batch_sampler.yield_empty()
        self.optimizer = self._private_optimizer
        self.model_wrapped = self._private_model

    @property
    def _physical_size(self) -> int:
        """Number of examples per pass. With lattice noise, gradients are computed one example at a time."""
        return self._train_batch_size if self.plan.mechanism.lattice is None else 1

    def _collator(self) -> Callable[[list[Any]], Any]:
        collator = self._get_collator_with_removed_columns(self.data_collator, description="training")
        return collator if self._rows is None else UserCollate(collator, self._rows, labels=self.label_names)

    def _check_start(self) -> None:
        """If the run has steps but no checkpoint was given, restart the run if requested, or else raise `Refused`."""
        if self._checkpoint is not None:
            return
        try:
            is_started = self.engine.step > 0
        except Refused:
            is_started = True
        if is_started and not self._is_restart:
            raise Refused(
                "The run directory has steps of an earlier training, but this training would start again.",
                hint="to continue, call train(resume_from_checkpoint=True), which also works if there is no checkpoint "
                "yet; to start a new training, use a different run_directory",
            )
        if is_started:
            self.engine.restart()

    def _loss_of(self, model: nn.Module, batch: Any) -> Any:
        rows = batch if self._rows is None else flatten_users(batch)
        inputs, labels = model_inputs(_base_model(self.model), rows, self.label_names)
        if self._rows is not None:
            labels = labels.unflatten(0, (-1, self._rows))
        return self._training_loss(model(**inputs), labels)

    @without_locals
    def _check_independence(self, model: nn.Module) -> None:
        """Check, with some examples of the first batch, that examples do not influence one another.

        First, check that the collator itself does not mix examples. Then compare each example's gradient in the batch
        with its gradient in parts of the batch. The examples are collated again for every part, so padding is also
        checked. If the collator is random, as for masked language models, the examples are collated only once, and each
        part is cut to the length of its longest example.
        """
        indices = self.engine._started.examples(self.engine.step)[0]
        size = min(CHECKED_EXAMPLES, max(2, self._train_batch_size))
        indices = indices[:size]
        if len(indices) < 2:
            return
        load = loader_of(self.train_dataset, self._collator())
        check_collation(load, indices)

        def loss(batch: Any, examples: int) -> Any:
            with self.compute_loss_context_manager():
                return _summed(self._loss_of(model, self._prepare_inputs(batch)), examples)

        with torch.random.fork_rng():
            once, again = dict(load(indices)), dict(load(indices))
            alone = [load([i]) for i in indices]

        def part(rows: torch.Tensor) -> Any:
            if _same(once, again):
                return load([indices[i] for i in rows.tolist()])
            return select_padded(once, rows.tolist(), alone)

        whole = torch.arange(len(indices))
        # The check of a pair compares the pair with each of its examples alone, and a single example has no padding.
        parts = (whole, *whole[: len(whole) // 2 * 2].view(-1, 2))
        checks = [self.engine._is_independent(lambda rows: loss(part(rows), len(rows)), rows) for rows in parts]
        self._is_checked = checks[0]

    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        return self._private_model if self._private_model is not None else super()._wrap_model(model, training)

    def _get_num_items_in_batch(self, *_: Any) -> None:
        return None

    def _track_num_input_tokens(self, inputs: Any) -> None:
        return None

    def _clip_grad_norm(self, model: Any) -> None:
        return None  # max_grad_norm would clip the noisy sum; the gradient of each example is already clipped

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> None:
        return None

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        Path(output_dir, STATE_FILE).write_text(json.dumps(self.engine.state_dict()) + "\n")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = Path(checkpoint, STATE_FILE)
        if not path.is_file():
            raise InvalidArgument(
                f"The checkpoint {checkpoint} has no {STATE_FILE}, so the run cannot continue from it.",
                hint="use a checkpoint that PrivateTrainer saved with save_only_model=False",
            )
        self.engine.load_state_dict(json.loads(path.read_text()))


class _PhysicalBatches:
    """Collates the examples of a step as a list of physical batches."""

    def __init__(self, collate: Callable[[list[Any]], Any], size: int) -> None:
        self._collate, self._size = collate, size

    def __call__(self, examples: list[Any]) -> list[Any]:
        return [self._collate(examples[i : i + self._size]) for i in range(0, len(examples), self._size)]


def last_checkpoint(output_dir: str) -> str | None:
    """Return the newest checkpoint that was written completely, or None."""
    found: list[tuple[int, str]] = []
    for path in Path(output_dir).glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and all(_is_json(path / name) for name in ("trainer_state.json", STATE_FILE)):
            found.append((int(step), os.fspath(path)))
    return max(found)[1] if found else None


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return True


def _base_model(model: Any) -> Any:
    """Return the Hugging Face model inside a PEFT model; any other model is returned unchanged."""
    get = getattr(model, "get_base_model", None)
    return model if get is None else get()


def _value(loss: Any) -> torch.Tensor:
    """Return the mean loss of a physical batch, as a tensor. `loss` may be a private loss of ghost clipping."""
    found = loss if isinstance(loss, torch.Tensor) else loss.loss_per_sample.mean()
    return found.detach().float()


def _summed(loss: Any, examples: int) -> Any:
    """Turn the mean loss of a physical batch into the sum. Return a private loss of ghost clipping unchanged.

    The backward pass of the sum does not depend on the number of examples; see `refuse_rounded_mean`.
    """
    return loss * examples if isinstance(loss, torch.Tensor) else loss


def _same(first: Any, second: Any) -> bool:
    pairs = list(zip(tensors_in(first), tensors_in(second), strict=False))
    return all(torch.equal(a, b) for a, b in pairs)
