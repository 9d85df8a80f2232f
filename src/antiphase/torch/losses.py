"""Sequence losses with one value per example, for private training of language models.

The losses that Hugging Face models compute themselves (`model(**batch).loss`), and `CrossEntropyLoss` applied to all
tokens of a batch, are means over all tokens that are not padding. The weight of every token then depends on the lengths
of the other examples. So one example changes the gradients of all others, and clipping does not bound its influence.
The losses here take the mean over the tokens of each example first.

With `reduction="mean"` (the default), these losses then return the mean over the examples. Use this reduction with
`loss_reduction="mean"` in `make_private`. With ghost clipping, pass the loss as `criterion`, so that Opacus can compute
one value per example.

>>> import torch
>>> from antiphase.torch.losses import CausalLMLoss
>>> logits, labels = torch.zeros(2, 4, 10), torch.tensor([[1, 2, 3, 4], [1, 2, -100, -100]])
>>> CausalLMLoss(reduction="none")(logits, labels)
tensor([2.3026, 2.3026])
"""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import nn

from antiphase._check import one_of
from antiphase._errors import InvalidArgument

__all__ = ["CausalLMLoss", "TokenLoss"]

REDUCTIONS = ("mean", "sum", "none")


class _PerExample(nn.Module):
    """Base class: computes the mean over the tokens of each example, then the reduction over the examples."""

    def __init__(
        self,
        reduction: Literal["mean", "sum", "none"] = "mean",
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.reduction = one_of(type(self).__name__, "reduction", reduction, REDUCTIONS, "use 'mean' over the examples")
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def _reduced(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = nn.functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten().to(logits.device),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        ).view(labels.shape)
        counted = (labels != self.ignore_index).sum(1).clamp(min=1).to(losses)
        each = losses.sum(1) / counted
        return each if self.reduction == "none" else each.sum() if self.reduction == "sum" else each.mean()


@final
class CausalLMLoss(_PerExample):
    """Cross entropy of the next token: the mean over the tokens of each example, then over the examples.

    Args:
        reduction: "mean" or "sum" over the examples, or "none" for one value per example.
        ignore_index: label of tokens that do not count, such as padding.
        label_smoothing: as in `torch.nn.CrossEntropyLoss`.
    """

    def forward(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss.

        Args:
            output: logits (examples, length, vocabulary), or the output of a Hugging Face model, which has `logits`.
            labels: token ids (examples, length); position t is predicted from the logits at t - 1.
        """
        logits = _logits(output, labels)
        return self._reduced(logits[:, :-1], labels[:, 1:])


@final
class TokenLoss(_PerExample):
    """Cross entropy of a label for each token: the mean over the tokens of each example, then over the examples.

    Use it for masked language models, token classification, and the decoder of sequence-to-sequence models. Labels are
    not shifted.

    Args:
        reduction: "mean" or "sum" over the examples, or "none" for one value per example.
        ignore_index: label of tokens that do not count, such as padding and tokens that are not masked.
        label_smoothing: as in `torch.nn.CrossEntropyLoss`.
    """

    def forward(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss.

        Args:
            output: logits (examples, length, classes), or the output of a Hugging Face model, which has `logits`.
            labels: label of each token, shape (examples, length).
        """
        return self._reduced(_logits(output, labels), labels)


def _shape(tensor: torch.Tensor) -> str:
    """Return the shape without the first number, since the size of a batch may be secret."""
    return f"({', '.join(['...', *map(str, tensor.shape[1:])])})"


def _logits(output: Any, labels: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 3 or labels.shape != logits.shape[:2]:
        got = _shape(logits) if isinstance(logits, torch.Tensor) else type(output).__name__
        raise InvalidArgument(
            f"The loss needs logits of shape (examples, length, classes) and labels of shape (examples, length). Got "
            f"{got} and {_shape(labels)}.",
            hint="for one label per example, use torch.nn.CrossEntropyLoss",
        )
    return logits
