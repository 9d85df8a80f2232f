"""Checks that loading and collating a batch does not mix its examples, as mixup in a collate function does.

`check_independence` in `_independence.py` compares gradients of batches that are already collated, so it cannot find
such mixing.
`check_collation` collates two batches that differ in one example, and compares the rows of the other examples. A
collator may be random, so both batches are collated with the same random numbers.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from antiphase._errors import Refused
from antiphase.torch._batches import tensors_in

CHECKED_EXAMPLES = 8
WRAPPED = ("data_collator", "collate")  # attributes in which a collator may store another collator that it calls
ROUNDS = 2  # number of checks for each example, since a random collator may not mix examples every time
HINT = (
    "remove mixup, CutMix, in-batch negatives and statistics over the batch from the collate function, from "
    "__getitems__ or batch transforms of the data set, and from hooks that change batches"
)


def loader_of(dataset: Any, collate: Callable[[list[Any]], Any]) -> Callable[[list[int]], Any]:
    """Return a function that loads and collates examples by index, as PyTorch's DataLoader does.

    Each item is read only once, since augmentation may be random, and every call collates copies of the items. The only
    exception is a data set with `__getitems__`, which is read again in every call. Every call also uses copies of the
    collator's own random generators.
    """
    items: dict[int, Any] = {}

    def load(indices: list[int]) -> Any:
        if hasattr(dataset, "__getitems__"):
            found = dataset.__getitems__(indices)
        else:
            for i in indices:
                if i not in items:
                    items[i] = dataset[i]
            found = [_copied(items[i]) for i in indices]
        return _with_own_generators(collate)(found)

    return load


def check_collation(load: Callable[[list[int]], Any], indices: list[int]) -> None:
    """Raise `Refused` if the row of an example in a batch changes when another example is replaced.

    The last example of a batch is replaced by a copy of another example, and the batch is collated again with the same
    random numbers. This is done with every example in the last place. Only tensors with one row per example are
    compared, and only if both batches have the same shapes.

    Args:
        load: function that loads and collates the examples with the given indices.
        indices: indices of two or more examples of the data set.
    """
    for seed in range(ROUNDS * len(indices)):
        place = seed % len(indices)
        kept = indices[:place] + indices[place + 1 :]
        one, other, again = ([*kept, last] for last in (indices[place], kept[seed % len(kept)], indices[place]))
        with _seeded(seed):
            whole = _rows(load(one), len(one))
        with _seeded(seed):
            changed = _rows(load(other), len(one))
        if [t.shape for t in whole] != [t.shape for t in changed] or _same(whole, changed, len(kept)):
            continue
        with _seeded(seed):
            repeated = _rows(load(again), len(one))
        if not _same(whole, repeated, len(one)):
            raise Refused(
                "The same examples give a different batch each time, even with the same seeds. So it cannot be checked "
                "whether the collate function or the data set mixes examples.",
                hint="draw random numbers from the global generators of torch, NumPy or random, not from a generator "
                "of your own; or augment examples one by one in __getitem__ of the data set",
            )
        raise Refused(
            "Collating a batch mixes its examples: the row of one example changes when another example is replaced. "
            "Clipping then does not bound the influence of an example.",
            hint=HINT,
        )


def _copied(value: Any) -> Any:
    """Return a copy, or the value itself if it cannot be copied."""
    try:
        return copy.deepcopy(value)
    except Exception:  # a data set may contain any object, and copying it may raise any exception
        return value


def _with_own_generators(collate: Any) -> Any:
    """Return a shallow copy of a collator, with copies of its random generators.

    If the collator wraps another collator, that collator is copied in the same way.
    """
    if inspect.isroutine(collate) or isinstance(collate, (type, torch.nn.Module)) or not hasattr(collate, "__dict__"):
        return collate
    found = copy.copy(collate)
    for name, value in vars(collate).items():
        if isinstance(value, torch.Generator):
            vars(found)[name] = value.clone_state()
        elif isinstance(value, (random.Random, np.random.Generator, np.random.RandomState)):
            vars(found)[name] = copy.deepcopy(value)
        elif name in WRAPPED:
            vars(found)[name] = _with_own_generators(value)
    return found


def _rows(batch: Any, size: int) -> list[torch.Tensor]:
    return [t for t in tensors_in(batch) if t.dim() > 0 and len(t) == size]


def _same(first: list[torch.Tensor], second: list[torch.Tensor], rows: int) -> bool:
    """Return whether the first `rows` rows of all tensors are equal, up to rounding."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return False
    return all(
        torch.allclose(a[:rows], b[:rows], rtol=1e-4, atol=1e-7, equal_nan=True)
        if a.is_floating_point()
        else torch.equal(a[:rows], b[:rows])
        for a, b in zip(first, second, strict=True)
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch. Restore their states when the context exits."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
