"""Batches of a run as arrays of few different shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._run import Run, examples_of
from antiphase._samplers import Batch


class Examples(NamedTuple):
    """The examples of one step.

    Attributes:
        step: of the plan.
        data: arrays with the examples along their first axes.
        mask: which of them count; the others are padding.
        indices: of the examples that count.
    """

    step: int
    data: Any
    mask: NDArray[np.bool_]
    indices: NDArray[np.int64]


def pad(batch: Batch, multiple: int) -> Batch:
    """The batch with padding up to the next multiple, at least one: random sizes, few shapes to compile for.

    Args:
        batch: from `run.batch(step)`.
        multiple: such as 64.

    >>> pad(Batch(np.array([3, 5, 8]), np.ones(3, bool)), 4).mask.tolist()
    [True, True, True, False]
    """
    step = _check.positive_integer("pad", "multiple", multiple)
    missing = max(-(-batch.indices.size // step), 1) * step - batch.indices.size
    return Batch(np.pad(batch.indices, (0, missing)), np.pad(batch.mask, (0, missing)))


def batches(run: Run, data: Any, *, multiple: int = 64, start: int | None = None) -> Iterator[Examples]:
    """The run's own batches, from the sampler that its proof assumes, step after step.

    Args:
        run: opened with examples=len(data).
        data: a tree of NumPy arrays with the examples along their first axes.
        multiple: batches are padded to a multiple of this; it depends on the secret, so must stay as secret as it.
        start: the first step; None for the next that the run has not committed. A checkpoint may be older.
    """
    examples = examples_of(run)
    for leaf in jax.tree.leaves(data):
        if len(leaf) != examples:
            hint = "every array has the examples along its first axis; open the run with their number"
            raise _check.invalid("batches", "data", f"of {examples} examples, as the run", len(leaf), hint)
    for step in range(run.committed if start is None else start, run.steps):
        indices, mask = pad(run.batch(step), multiple)
        yield Examples(step, jax.tree.map(lambda a, i=indices: np.asarray(a)[i], data), mask, indices[mask])
