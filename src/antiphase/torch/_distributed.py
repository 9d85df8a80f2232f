"""torch.distributed as the transport of a run: the processes that train one model together."""

from __future__ import annotations

from typing import Any, final

import torch.distributed as dist

from antiphase._run import Transport


@final
class TorchDistributed(Transport):
    """The default process group of torch.distributed.

    Args:
        rank: rank of this process; rank 0 writes the ledger.
        size: number of processes; 1 if torch.distributed is not in use.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def current(cls) -> TorchDistributed:
        """The default group, or a single process if none was initialized."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value` on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values
