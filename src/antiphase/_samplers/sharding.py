"""Splitting a batch over workers without communication."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._check import invalid
from antiphase._samplers.base import Batch


def shard(indices: NDArray[np.int64], mask: NDArray[np.bool_], rank: int, world: int) -> Batch:
    """The part of a batch that worker `rank` of `world` processes: every world-th entry.

    **Guarantee**: the parts of all ranks together are the batch, each entry once; their sizes differ by at
    most one. Every worker makes the whole batch from the same secret, so nothing is sent.

    Args:
        indices: those of a batch.
        mask: that of the batch.
        rank: in [0, world).
        world: number of workers.

    >>> shard(np.arange(5), np.ones(5, bool), rank=1, world=2).indices.tolist()
    [1, 3]
    """
    _check.positive_integer("shard", "world", world)
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < world:
        raise invalid("shard", "rank", f"an integer in [0, {world})", rank, "ranks count from 0")
    return Batch(indices[rank::world], mask[rank::world])
