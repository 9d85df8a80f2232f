"""Communication between the processes (ranks) that train one model, through torch.distributed."""

from __future__ import annotations

from typing import Any, final

import torch.distributed as dist

from antiphase._errors import Refused
from antiphase._run import Transport


@final
class TorchDistributed(Transport):
    """Sends objects between the ranks of torch.distributed's default process group.

    Args:
        rank: rank of this process; rank 0 writes the ledger.
        size: number of processes; 1 if torch.distributed is not in use.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def current(cls) -> TorchDistributed:
        """Return the default process group, or a single process if torch.distributed is not initialized."""
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

    def check_operation(self, operation: str) -> None:
        """Raise `Refused` on every rank unless all ranks are about to perform the same operation.

        Without the check, ranks with different operations would wait for one another until torch.distributed times out.

        Args:
            operation: what this rank is about to do, such as "take step 3". The text is sent to the other ranks.
        """
        found = self.all_gather(operation)
        if any(other != found[0] for other in found):
            words = [f"rank {i}: {text if isinstance(text, str) else 'something else'}" for i, text in enumerate(found)]
            raise Refused(
                f"The ranks are about to perform different operations ({'; '.join(words)}).",
                hint="call publish and other collective operations on every rank, and only between two passes through "
                "the loader; within a pass, the ranks may be at different steps, because the loader of a rank skips "
                "the steps in which the rank has no examples",
            )
