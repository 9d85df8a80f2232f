"""User-level privacy for models that process one sequence or image per row, such as Hugging Face models.

An item of the data set is a user with up to k examples. Each user is padded to k examples, and the model processes each
example as one row. The gradients of a user's examples are added before the sum is clipped. Use `UserDataset` and
`UserCollate` for the data, `UserLoss` for the loss, and `make_private(..., rows_per_example=k)`.
`PrivateTrainer(..., rows_per_user=k)` does all of this except for the data set.

>>> from antiphase.torch.users import UserDataset
>>> users = UserDataset(["a1", "b1", "a2", "a3"], ["a", "b", "a", "a"], limit=2)
>>> len(users), users[0], users[1]
(2, ['a1', 'a2'], ['b1'])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, final

import torch
from torch import nn
from torch.utils.data import Dataset

from antiphase._check import invalid, one_of
from antiphase._errors import InvalidArgument
from antiphase._plan import Plan

__all__ = ["UserCollate", "UserDataset", "UserLoss", "flatten_users"]


@final
class UserDataset(Dataset[list[Any]]):
    """A data set with one item per user: a list of up to `limit` of the user's examples.

    Args:
        dataset: map-style data set of examples.
        users: user id of each example, in the order of the data set. Ids are strings, integers or other values that can
            be compared for equality. A missing id (None or NaN) raises an error.
        limit: largest number of examples per user. The first `limit` examples of a user are used; others are left out.
    """

    def __init__(self, dataset: Any, users: Iterable[Hashable], limit: int) -> None:
        self.limit = _positive("UserDataset", "limit", limit)
        self._dataset = dataset
        groups: dict[Hashable, list[int]] = {}
        count = 0
        for count, user in enumerate(users, start=1):
            groups.setdefault(_user_id(user), []).append(count - 1)
        if count != len(dataset):
            raise InvalidArgument(
                f"UserDataset needs one user for each example: {len(dataset)} examples, but {count} users were given.",
                hint="pass the user of each example, in the order of the data set",
            )
        self.users = list(groups)
        self._examples = [indices[: self.limit] for indices in groups.values()]

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> list[Any]:
        return [self._dataset[i] for i in self._examples[index]]


@final
class UserCollate:
    """Collates users to tensors of shape (users, limit, ...). Users with fewer examples are padded.

    A padding example is a copy of the user's first example, with all labels set to `ignore_index`. So its loss and
    gradient are zero with the losses in `antiphase.torch.losses` and with `torch.nn.CrossEntropyLoss`.

    Args:
        collate: function that collates a list of examples to a dict of tensors.
        limit: number of examples per user, as in `UserDataset`.
        labels: names of the label tensors.
        ignore_index: label that the loss ignores.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        limit: int,
        *,
        labels: Iterable[str] = ("labels",),
        ignore_index: int = -100,
    ) -> None:
        self.collate, self.labels, self.ignore_index = collate, tuple(labels), ignore_index
        self.limit = _positive("UserCollate", "limit", limit)

    def __call__(self, users: list[list[Any]]) -> dict[str, Any]:
        """Return tensors of shape (users, limit, ...)."""
        sizes = [len(user) for user in users]
        if not all(1 <= size <= self.limit for size in sizes):
            raise InvalidArgument(
                f"A user must have between 1 and {self.limit} examples.", hint="use UserDataset with the same limit"
            )
        rows = [row for user in users for row in (*user, *[user[0]] * (self.limit - len(user)))]
        found = dict(self.collate(rows))
        padding = torch.arange(self.limit) >= torch.tensor(sizes)[:, None]
        for name in self.labels:
            if name not in found or found[name].is_floating_point():
                raise InvalidArgument(
                    f"The labels {name!r} must be integers, so that padding can be ignored.",
                    hint="pass the names of the label tensors as labels=; for labels that are not integers, give every "
                    "user the same number of examples",
                )
            found[name] = found[name].clone()
            found[name][padding.flatten()] = self.ignore_index
        return {name: self._by_user(name, value, len(users)) for name, value in found.items()}

    def _by_user(self, name: str, value: Any, users: int) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 0 or len(value) != users * self.limit:
            raise InvalidArgument(
                f"The collated tensor {name!r} does not have one row per example.",
                hint="use a collate function that returns one row per example in every tensor",
            )
        return value.unflatten(0, (users, self.limit))  # type: ignore[no-untyped-call]


@final
class UserLoss(nn.Module):
    """The loss of a batch of users: the sum or mean over the examples of each user, then a reduction over the users.

    Args:
        loss: loss with a `reduction` attribute. If this is "none", the loss must return one value per example, as
            `antiphase.torch.losses.CausalLMLoss()` and `torch.nn.CrossEntropyLoss()` do.
        limit: number of examples per user, as in `UserCollate`.
        reduction: "mean" or "sum" over the users, or "none" for one value per user.
        within: "sum" or "mean" over the examples of a user; padding does not count.
    """

    def __init__(
        self,
        loss: Any,
        limit: int,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        within: Literal["sum", "mean"] = "sum",
    ) -> None:
        super().__init__()
        self.limit = _positive("UserLoss", "limit", limit)
        hint = "use 'mean' over the users"
        self.reduction = one_of("UserLoss", "reduction", reduction, ("mean", "sum", "none"), hint)
        self.within = one_of("UserLoss", "within", within, ("sum", "mean"), "use 'sum'")
        if not hasattr(loss, "reduction"):
            raise invalid("UserLoss", "loss", "a loss with a `reduction`", loss, "use antiphase.torch.losses")
        self.loss = copy.copy(loss)
        self.loss.reduction = "none"
        self.ignore_index = getattr(loss, "ignore_index", -100)

    def forward(self, output: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss.

        Args:
            output: output of the model for users * limit rows.
            labels: labels of shape (users, limit, ...).
        """
        each = self.loss(output, labels.flatten(0, 1)).view(-1, self.limit)
        total = each.sum(1)
        if self.within == "mean":
            real = (labels.flatten(2) if labels.dim() > 2 else labels[..., None]) != self.ignore_index
            total = total / real.any(2).sum(1).clamp(min=1)
        return total if self.reduction == "none" else total.sum() if self.reduction == "sum" else total.mean()


def flatten_users(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Change all tensors of a batch from shape (users, limit, ...) to (users * limit, ...), for the model."""
    return {name: v.flatten(0, 1) if isinstance(v, torch.Tensor) else v for name, v in batch.items()}


def _user_id(user: Any) -> Hashable:
    """Return the id of a user. Raise `InvalidArgument` if two ids of the same user might not compare equal."""
    found: Hashable = user.item() if isinstance(user, torch.Tensor) else user
    if isinstance(found, (tuple, frozenset)):
        for part in found:
            if isinstance(part, torch.Tensor):
                raise _not_comparable(part)
            _user_id(part)
    elif not _equals_itself(found) or type(found).__hash__ is object.__hash__:
        raise _not_comparable(found)
    return found


def _equals_itself(user: Hashable) -> bool:
    try:
        return bool(user == user)  # noqa: PLR0124
    except (TypeError, ValueError):  # missing values of pandas
        return False


def _not_comparable(user: Any) -> InvalidArgument:
    return InvalidArgument(
        f"The id of a user ({type(user).__name__}) is missing, or cannot be compared with other ids. The examples of "
        "one user would count as several users.",
        hint="use strings or integers as ids, and leave out examples without an id",
    )


def check_unit(plan: Plan, dataset: Any) -> None:
    """Raise `InvalidArgument` for a data set of users with a plan that protects single examples."""
    if isinstance(dataset, UserDataset) and plan.problem.unit == "example":
        raise InvalidArgument(
            "The items of a UserDataset are users, but the plan protects examples: Problem(unit='example'). The report "
            "would name the wrong unit.",
            hint="make a plan with Problem(unit='user')",
        )


def _positive(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise invalid(owner, name, "a positive integer", value, "use the largest number of examples per user")
    return value
