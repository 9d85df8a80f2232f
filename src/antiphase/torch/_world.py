"""The processes that train one model together, and what they tell each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch.distributed as dist

from antiphase._errors import Refused


@final
@dataclass(frozen=True)
class World:
    """The place of this process among those that train one model: the default group of torch.distributed.

    Args:
        rank: in [0, size); rank 0 keeps the run.
        size: how many there are; 1 where torch.distributed is not in use.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> World:
        """From torch.distributed, where a process group was made."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())

    def from_first(self, value: Any) -> Any:
        """What rank 0 gave, on every rank; waits for all."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def first_does(self, act: Callable[[], Any] | None) -> Any:
        """Let rank 0 act while the others wait, and tell all what it found; where that fails, every rank stops."""
        problem: Exception | None = None
        found: Any = None
        if act is not None:
            try:
                found = act()
            except Exception as error:
                problem = error
        words, found = self.from_first((None if problem is None else str(problem), found))
        if problem is not None:
            raise problem
        if words is not None:
            raise Refused(f"Rank 0 stopped: {words}", hint="the run is with rank 0; see there")
        return found

    def check_same(self, value: Any, what: str, hint: str) -> None:
        """Refuse where ranks differ; waits for all."""
        if self.size == 1:
            return
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        if any(other != values[0] for other in values):
            raise Refused(f"The ranks do not have the same {what}.", hint=hint)

    def joined_digest(self, mine: bytes) -> bytes:
        """One digest over those of all ranks; waits for all."""
        if self.size == 1:
            return mine
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, mine)
        return hashlib.sha256(b"".join(parts)).digest()
