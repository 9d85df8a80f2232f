"""Checks the arguments of `PrivateTrainer`. Arguments that would change the mechanism raise an error."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antiphase._errors import InvalidArgument
from antiphase._plan import Plan
from antiphase.torch.users import UserDataset

# Training arguments that must keep their default value. The text is the hint of the error: why, or what to do instead.
DEFAULTS = {
    "gradient_accumulation_steps": "the batch of a step comes from the plan: Problem(batch_size=...); to save memory, "
    "set per_device_train_batch_size, the number of examples that are processed at a time",
    "fp16": "fp16 scales the loss, which changes gradients before they are clipped; use bf16=True with "
    "grad_sample_mode='hooks', or full precision",
    "train_sampling_strategy": "the plan's own sampler draws the batches",
    "neftune_noise_alpha": "the size of this noise depends on the longest example of the batch",
    "use_liger_kernel": "its fused loss is a mean over all tokens of the batch",
    "auto_find_batch_size": "set per_device_train_batch_size yourself",
    "torch_compile": "per-example gradients are computed by hooks, which compilation would remove",
    "deepspeed": "use one process",
    "fsdp": "use one process; for your own training loop, see grad_sample_mode='ghost_fsdp' of make_private",
    "dataloader_persistent_workers": "epochs that share workers could get each other's batches",
    "dataloader_in_order": "leave it True; otherwise, a step could get the batch of a different step",
    "include_num_input_tokens_seen": "the number of tokens has no noise, and would be stored in checkpoints",
}


def check_arguments(
    args: Any, plan: Plan, trainer: Mapping[str, Any], *, grad_sample_mode: str, has_loss: bool
) -> None:
    """Raise `InvalidArgument` for arguments that would change the mechanism, and for several processes.

    Args:
        args: training arguments.
        plan: plan to train with.
        trainer: other arguments of `Trainer`.
        grad_sample_mode: how per-example gradients are computed.
        has_loss: whether the user passed a `loss` to `PrivateTrainer`.
    """
    fields = {field.name: field for field in dataclasses.fields(args)}
    for name, hint in DEFAULTS.items():
        value = getattr(args, name, None)
        if name in fields and value and value != fields[name].default and value != "no":
            raise InvalidArgument(f"TrainingArguments({name}={value!r}) cannot be used in private training.", hint=hint)
    if not getattr(args, "dataloader_in_order", True):
        raise InvalidArgument(
            "TrainingArguments(dataloader_in_order=False) cannot be used in private training.",
            hint=DEFAULTS["dataloader_in_order"],
        )
    if args.world_size > 1 or args.n_gpu > 1:
        raise InvalidArgument(
            f"PrivateTrainer uses one process and one device. Got {args.world_size} processes and {args.n_gpu} GPUs.",
            hint="set CUDA_VISIBLE_DEVICES to one device; for several processes, write a training loop with Opacus's "
            "DifferentiallyPrivateDistributedDataParallel",
        )
    _check_checkpointing(args, grad_sample_mode)
    clip_norm = plan.problem.clip_norm
    if args.max_grad_norm not in (0.0, None, fields["max_grad_norm"].default, clip_norm):
        raise InvalidArgument(
            f"TrainingArguments(max_grad_norm={args.max_grad_norm}) would clip the noisy sum of a step. The plan clips "
            f"the gradient of each example to {clip_norm}.",
            hint="set the clipping norm in the plan: Problem(clip_norm=...); leave max_grad_norm at its default, which "
            "is ignored",
        )
    if args.max_steps > plan.steps:
        raise InvalidArgument(
            f"TrainingArguments(max_steps={args.max_steps}) is more than the {plan.steps} steps of the plan.",
            hint="leave max_steps at its default, or make a plan for more steps",
        )
    if trainer.get("model_init") is not None:
        raise InvalidArgument("PrivateTrainer does not take model_init.", hint="pass model=...")
    if trainer.get("compute_loss_func") is not None:
        raise InvalidArgument(
            "PrivateTrainer does not take compute_loss_func, which returns one number for the whole batch.",
            hint="pass loss=..., which gives one value per example, such as antiphase.torch.losses.CausalLMLoss()",
        )
    if has_loss and args.label_smoothing_factor:
        raise InvalidArgument(
            "TrainingArguments(label_smoothing_factor=...) has no effect on the loss that was passed.",
            hint="pass label_smoothing to the loss",
        )


def check_users(dataset: Any, rows_per_user: int | None) -> None:
    """Raise `InvalidArgument` if `rows_per_user` does not fit the data set.

    A `UserDataset` needs a value of at least its `limit`. With any other data set, the value must be None.

    Args:
        dataset: training data set.
        rows_per_user: number of examples that every user is padded to; None for a data set of examples.
    """
    if isinstance(dataset, UserDataset) and rows_per_user is None:
        raise InvalidArgument(
            "The items of a UserDataset are users. PrivateTrainer must know how many examples a user can have.",
            hint=f"pass rows_per_user={dataset.limit}",
        )
    if rows_per_user is None:
        return
    if not isinstance(dataset, UserDataset):
        raise InvalidArgument(
            f"With rows_per_user, train_dataset must be a UserDataset. Got {type(dataset).__name__}.",
            hint="pass antiphase.torch.users.UserDataset(dataset, users, limit=rows_per_user)",
        )
    if rows_per_user < dataset.limit:
        raise InvalidArgument(
            f"rows_per_user={rows_per_user} is less than the limit of the UserDataset, {dataset.limit} examples per "
            "user.",
            hint=f"pass rows_per_user={dataset.limit}, or UserDataset(..., limit={rows_per_user})",
        )


def check_directories(args: Any, run_directory: str | Path) -> None:
    """Raise `InvalidArgument` if the output directory and the run directory overlap.

    They overlap if the output directory contains the run directory, or if the output directory is inside the folder
    `private` of the run directory.
    """
    output, run = Path(args.output_dir).resolve(), Path(run_directory).resolve()
    if run.is_relative_to(output) or output.is_relative_to(run / "private"):
        raise InvalidArgument(
            f"The run directory {str(run_directory)!r} overlaps with the output directory {args.output_dir!r}. The run "
            "directory holds the secret and the noise state, so it must not be stored or published with the model.",
            hint="use a run_directory next to the output directory",
        )


def check_collator(collator: Any, processing_class: Any) -> None:
    """Raise `InvalidArgument` if the collator has a seed, or pads on the left to the length of the longest example.

    With a known seed, leaving out one example would change the random numbers of later examples; see
    `_random_state.py`. With padding on the left, models that count positions from the left would see positions that
    depend on the other examples.
    """
    if getattr(collator, "seed", None) is not None:
        raise InvalidArgument(
            f"{type(collator).__name__}(seed={collator.seed}) draws random numbers from a known seed. Leaving out one "
            "example would change the random numbers of later examples, which clipping does not cover.",
            hint="leave seed=None: the random numbers then come from the run's secret, and are the same on resume",
        )
    tokenizer = getattr(collator, "tokenizer", None) or processing_class
    if getattr(tokenizer, "padding_side", "right") == "left" and getattr(collator, "padding", True) != "max_length":
        raise InvalidArgument(
            "The tokenizer pads on the left, so the positions of an example depend on the longest example of the "
            "batch.",
            hint="set tokenizer.padding_side = 'right', or pad to a fixed length with padding='max_length'",
        )


def _check_checkpointing(args: Any, mode: str) -> None:
    is_on = getattr(args, "activation_checkpointing", None) or getattr(args, "gradient_checkpointing", None)
    if not is_on:
        return
    options = getattr(args, "activation_checkpointing_kwargs", None) or getattr(
        args, "gradient_checkpointing_kwargs", None
    )
    if mode == "functorch":
        raise InvalidArgument(
            "Activation checkpointing cannot be used with grad_sample_mode='functorch', which copies layers together "
            "with the checkpointing hooks of transformers.",
            hint="use grad_sample_mode='hooks' or 'ghost'",
        )
    if mode == "ghost" and isinstance(options, dict) and options.get("use_reentrant", False):
        raise InvalidArgument(
            "Activation checkpointing with use_reentrant=True cannot be used with grad_sample_mode='ghost', because "
            "the graph does not show which weights the checkpointed layers use.",
            hint="leave use_reentrant=False, the default of transformers, or use grad_sample_mode='hooks'",
        )
