"""Iterates over the batches of a run. The batches are padded, so that JAX compiles for only a few shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from antiphase import _check
from antiphase._run import Run, examples_of
from antiphase._samplers import Batch
from antiphase._traceback import without_locals
from antiphase.jax._example_keys import key_words, typed


class Examples(NamedTuple):
    """The batch of one step.

    Attributes:
        step: index of the step, from 0.
        data: a tree of arrays, with the examples along the first axis, including padding.
        mask: True for examples, False for padding.
        indices: indices of the examples in the data set, without padding; pass them to `commit`.
        keys: one random key per row, as from `example_keys`, for dropout or augmentation. They are secret.
    """

    step: int
    data: Any
    mask: Any
    indices: NDArray[np.int64]
    keys: jax.Array


def pad(batch: Batch, multiple: int) -> Batch:
    """Return the batch, padded to the next positive multiple of `multiple`, so that JAX compiles for few shapes.

    Padding entries have index 0 and mask False. An empty batch is padded to size `multiple`. If you read the data
    yourself, set the rows of padding to zero, as `batches` does. Otherwise, example 0 would be counted many times if a
    mask were wrong.

    Args:
        batch: batch from `run.batch(step)`.
        multiple: the padded size is a multiple of this number, such as 64.

    >>> pad(Batch(np.array([3, 5, 8]), np.ones(3, bool)), 4).mask.tolist()
    [True, True, True, False]
    """
    step = _check.positive_integer("pad", "multiple", multiple)
    missing = max(-(-batch.indices.size // step), 1) * step - batch.indices.size
    return Batch(np.pad(batch.indices, (0, missing)), np.pad(batch.mask, (0, missing)))


def batches(
    run: Run, data: Any, *, multiple: int = 64, start: int | None = None, sharding: NamedSharding | None = None
) -> Iterator[Examples]:
    """Iterate over the run's batches, which are drawn by the sampler that the plan's guarantee assumes.

    With random batches, the batch size is secret. Keep the padded size secret too, because it depends on the batch
    size.

    Rows of padding are zero and must not be counted, so pass the mask to `clipped_sum`. Make the mask an argument of
    the compiled step function. If the function closes over the mask, the mask becomes a constant of the program and is
    wrong for later batches.

    Args:
        run: a run opened with examples=len(data).
        data: a tree of NumPy arrays, with the examples along the first axis.
        multiple: each batch is padded to a multiple of this number.
        start: index of the first step; None for the first step that is not committed. When you resume from a
            checkpoint, pass the step of the checkpoint, which may be before the first step that is not committed.
        sharding: places the data and the mask on the devices of a mesh, such as
            NamedSharding(mesh, PartitionSpec("data")). Each process reads only the examples of its own devices. If
            None, the data and the mask are NumPy arrays.
    """
    examples = examples_of(run)
    for leaf in jax.tree.leaves(data):
        if len(leaf) != examples:
            hint = "put the examples along the first axis of every array, and open the run with examples=len(data)"
            must = f"arrays of {examples} examples, as many as the run was opened with"
            raise _check.invalid("batches", "data", must, len(leaf), hint)
    for step in range(run.committed if start is None else start, run.steps):
        yield _examples(run, data, step, multiple, sharding)


@without_locals
def _examples(run: Run, data: Any, step: int, multiple: int, sharding: NamedSharding | None) -> Examples:
    indices, mask = pad(run.batch(step), multiple)

    def rows_of(array: Any) -> Any:
        if sharding is None:
            return _rows(array, indices, mask)
        shape = (indices.size, *np.shape(array)[1:])

        def rows(part: Any) -> Any:
            return _rows(array, indices[part[0]], mask[part[0]])[(slice(None), *part[1:])]

        return jax.make_array_from_callback(shape, sharding, rows)

    def placed(array: NDArray[Any]) -> Any:
        if sharding is None:
            return array
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    keys = typed(placed(key_words(run, step, indices)))
    return Examples(step, jax.tree.map(rows_of, data), placed(mask), indices[mask], keys)


def _rows(array: Any, indices: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Return rows of an array, with zeros for padding.

    Padding has index 0, so without the zeros its rows would be copies of example 0. If a step used the mask of a
    different batch, these copies would be counted, and example 0 would contribute many times the clipping norm.
    """
    rows = np.asarray(array)[indices]
    rows[~mask] = np.zeros((), rows.dtype)
    return rows
