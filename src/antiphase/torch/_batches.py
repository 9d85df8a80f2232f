"""Functions for batches: iterate over the tensors, count the examples, and select some of the examples.

A batch is a tensor, or tensors in nested tuples, lists and mappings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from antiphase._errors import InvalidArgument


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def batch_size_of(batch: Any) -> int:
    """Return the number of examples in a batch, which is the length of its first tensor that is not a scalar."""
    first = next((t for t in tensors_in(batch) if t.dim() > 0), None)
    if first is None:
        raise InvalidArgument(
            f"The batch, a {type(batch).__name__}, contains no tensor, or only tensors without dimensions.",
            hint="pass a tuple, list or mapping of tensors, as the data loader yields",
        )
    return len(first)


def select(batch: Any, rows: list[int], size: int) -> Any:
    """Return a batch with only some of the examples.

    Rows are selected from every tensor of length `size`, and from every list or tuple of that length that contains no
    tensors. Other tensors and values are returned whole.

    Args:
        batch: whole batch.
        rows: indices of the examples to keep.
        size: number of examples in the whole batch.
    """
    if isinstance(batch, torch.Tensor):
        return batch[rows] if batch.dim() > 0 and len(batch) == size else batch
    if isinstance(batch, Mapping):
        found = {key: select(value, rows, size) for key, value in batch.items()}
        return found if type(batch) is dict else type(batch)(found)  # type: ignore[call-arg]
    if isinstance(batch, (list, tuple)):
        if len(batch) == size and not any(True for _ in tensors_in(batch)):
            return type(batch)([batch[row] for row in rows])
        items = [select(value, rows, size) for value in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    return batch


def select_padded(batch: Mapping[str, Any], rows: list[int], alone: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch with only some of the examples, without the padding that only the other examples need.

    Args:
        batch: whole batch, padded at the end of each dimension to the length of the longest example.
        rows: indices of the examples to keep.
        alone: one batch for each example, with only this example. The shapes of its tensors are those without padding.
    """
    found = select(dict(batch), rows, len(alone))
    for name, value in found.items():
        if isinstance(value, torch.Tensor) and value.dim() > 1 and len(value) == len(rows):
            for dimension in range(1, value.dim()):
                longest = max(alone[row][name].shape[dimension] for row in rows)
                value = value.narrow(dimension, 0, min(longest, value.shape[dimension]))  # noqa: PLW2901
            found[name] = value
    return found
