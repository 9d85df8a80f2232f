"""The batches of a run, padded so that JAX compiles for few shapes."""

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
        step: index of the step in the plan.
        data: a tree of arrays, with the examples along the first axis.
        mask: True for examples, False for padding.
        indices: indices of the examples in the data set, without padding; pass them to `commit`.
    """

    step: int
    data: Any
    mask: NDArray[np.bool_]
    indices: NDArray[np.int64]


def pad(batch: Batch, multiple: int) -> Batch:
    """Pad a batch, even an empty one, to the next positive multiple of `multiple`, to limit the number of shapes.

    Args:
        batch: from `run.batch(step)`.
        multiple: the padded size is a multiple of this, such as 64.

    >>> pad(Batch(np.array([3, 5, 8]), np.ones(3, bool)), 4).mask.tolist()
    [True, True, True, False]
    """
    step = _check.positive_integer("pad", "multiple", multiple)
    missing = max(-(-batch.indices.size // step), 1) * step - batch.indices.size
    return Batch(np.pad(batch.indices, (0, missing)), np.pad(batch.mask, (0, missing)))


def batches(run: Run, data: Any, *, multiple: int = 64, start: int | None = None) -> Iterator[Examples]:
    """Iterate over the run's own batches, drawn by the sampler that the proof assumes.

    The padded size still depends on the secret batch size, so keep it secret too.

    Args:
        run: a run opened with examples=len(data).
        data: a tree of NumPy arrays, with the examples along the first axis.
        multiple: batches are padded to a multiple of this.
        start: the first step; None for the first step that is not committed. When you resume from a checkpoint, pass
            its step, which may be earlier.
    """
    examples = examples_of(run)
    for leaf in jax.tree.leaves(data):
        if len(leaf) != examples:
            hint = "put the examples along the first axis of every array, and open the run with examples=len(data)"
            must = f"arrays of {examples} examples, as many as the run was opened with"
            raise _check.invalid("batches", "data", must, len(leaf), hint)
    for step in range(run.committed if start is None else start, run.steps):
        indices, mask = pad(run.batch(step), multiple)
        yield Examples(step, jax.tree.map(lambda a, i=indices: np.asarray(a)[i], data), mask, indices[mask])
