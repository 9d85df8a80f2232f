"""Per-example losses for Hugging Face models, chosen by the class of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn

from antiphase._errors import InvalidArgument, Refused
from antiphase.torch.losses import CausalLMLoss, TokenLoss

CLASSIFICATION = ("SequenceClassification", "ImageClassification", "AudioClassification", "VideoClassification")
TOKENS = ("MaskedLM", "TokenClassification", "ConditionalGeneration", "Seq2SeqLM")


@final
class LogitsLoss(nn.Module):
    """Applies a loss for one label per example to the `logits` of a model's output.

    Args:
        kind: "classes" for cross entropy, "regression" for the squared error, "multi_label" for binary cross entropy.
            As in the models themselves, "classes" becomes "multi_label" if the labels are not integers.
        label_smoothing: as in `torch.nn.CrossEntropyLoss`.
    """

    def __init__(self, kind: str, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.kind, self.label_smoothing, self.reduction = kind, label_smoothing, "mean"
        self.ignore_index = -100

    def forward(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return one value per example, or their sum or mean, as `reduction` says."""
        logits = output.logits.float()
        if self.kind == "classes" and not labels.is_floating_point():
            each = nn.functional.cross_entropy(
                logits, labels.view(-1), reduction="none", label_smoothing=self.label_smoothing
            )
        elif self.kind == "regression":
            each = (logits.view(len(logits), -1) - labels.view(len(logits), -1)).square().mean(1)
        else:
            each = nn.functional.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").mean(1)
        return each if self.reduction == "none" else each.sum() if self.reduction == "sum" else each.mean()


def loss_for(model: Any, label_smoothing: float = 0.0) -> nn.Module:
    """Return the per-example loss for a model, chosen by the name of the model's class.

    Args:
        model: Hugging Face model, not in a PEFT wrapper.
        label_smoothing: as in `TrainingArguments.label_smoothing_factor`.
    """
    name = type(model).__name__
    config = getattr(model, "config", None)
    if name.endswith(("ForCausalLM", "LMHeadModel")) and not getattr(config, "is_encoder_decoder", False):
        return CausalLMLoss(label_smoothing=label_smoothing)
    if name.endswith(TOKENS):
        return TokenLoss(label_smoothing=label_smoothing)
    if name.endswith((*CLASSIFICATION, "MultipleChoice")):
        kinds = {None: "classes", "single_label_classification": "classes", "regression": "regression"}
        problem = getattr(config, "problem_type", None)
        if problem is None and getattr(config, "num_labels", 2) == 1 and not name.endswith("MultipleChoice"):
            problem = "regression"
        return LogitsLoss(kinds.get(problem, "multi_label"), label_smoothing)
    raise InvalidArgument(
        f"There is no per-example loss for {name}. The loss that the model computes itself may be a mean over all "
        "tokens of the batch.",
        hint="pass loss=..., such as antiphase.torch.losses.TokenLoss(): a module with a `reduction` attribute that "
        "maps (output, labels) to one value per example if the reduction is 'none'",
    )


def model_inputs(model: Any, batch: Mapping[str, Any], label_names: list[str]) -> tuple[dict[str, Any], Any]:
    """Split a batch into the inputs of the model and the labels, so that the model does not compute its own loss.

    Args:
        model: Hugging Face model, not in a PEFT wrapper.
        batch: collated batch.
        label_names: names of the labels in the batch.
    """
    inputs = dict(batch)
    found = {name: inputs.pop(name) for name in label_names if name in inputs}
    if not found:
        raise Refused(
            f"The batch has no labels: it has {', '.join(map(str, batch)) or 'nothing'}.",
            hint=f"let the data collator return {' and '.join(label_names) or 'labels'}, or set "
            "TrainingArguments.label_names",
        )
    labels = next(iter(found.values())) if len(found) == 1 else found
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" not in inputs and "labels" in found:
        inputs["decoder_input_ids"] = _decoder_inputs(model, found["labels"])
    return inputs, labels


def _decoder_inputs(model: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the inputs of the decoder: the labels, shifted by one position.

    Encoder-decoder models compute these inputs themselves only if they also compute their own loss.
    """
    prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if prepare is None:
        raise Refused(
            f"{type(model).__name__} needs decoder_input_ids.",
            hint="let the data collator return them, as DataCollatorForSeq2Seq(tokenizer, model=model) does",
        )
    found: torch.Tensor = prepare(labels=labels)
    return found
