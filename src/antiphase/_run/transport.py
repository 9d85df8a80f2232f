"""Collective operations among the processes (ranks) that share one run.

Only rank 0 opens the run directory and writes the ledger. The other ranks wait for rank 0, which sends them the public
ledger entries that it wrote. Secrets are never sent: every rank reads the secret itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, final

from antiphase._errors import Refused

T = TypeVar("T")


class Transport(ABC):
    """Collective operations among the ranks of a run. Every rank must call the same operations in the same order.

    Args:
        rank: rank of this process, from 0 to size - 1.
        size: number of processes.
    """

    rank: int
    size: int

    @abstractmethod
    def broadcast(self, value: Any) -> Any:
        """Return the `value` that rank 0 passed, on every rank."""

    @abstractmethod
    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""

    def run_on_first(self, act: Callable[[], T]) -> T:
        """Call `act` on rank 0 and return its result on every rank. If `act` raises, every rank raises.

        The result is sent to the other ranks, so it must not contain secrets.
        """
        if self.size == 1:
            return act()
        problem: Exception | None = None
        result: Any = None
        if self.rank == 0:
            try:
                result = act()
            except Exception as error:
                problem = error
        message, result = self.broadcast((None if problem is None else str(problem), result))
        if problem is not None:
            raise problem
        if message is not None:
            raise Refused(f"Rank 0 raised an error: {message}", hint="fix the error on rank 0")
        found: T = result
        return found

    def run_on_all(self, act: Callable[[], T]) -> T:
        """Call `act` on every rank and return its result. If `act` raises on any rank, every rank raises.

        A rank that raises alone would leave the others waiting in the next collective operation. `act` itself must not
        call collective operations.
        """
        if self.size == 1:
            return act()
        problem: Exception | None = None
        result: Any = None
        try:
            result = act()
        except Exception as error:
            problem = error
        messages = self.all_gather(None if problem is None else str(problem))
        if problem is not None:
            raise problem
        for rank, message in enumerate(messages):
            if message is not None:
                raise Refused(f"Rank {rank} raised an error: {message}", hint=f"fix the error on rank {rank}")
        found: T = result
        return found

    def check_same(self, value: Any, what: str, hint: str) -> None:
        """Raise `Refused` on every rank unless all ranks pass the same `value`."""
        values = self.all_gather(value)
        if any(other != values[0] for other in values):
            raise Refused(f"The ranks do not have the same {what}.", hint=hint)


@final
class SingleProcess(Transport):
    """Transport of a run that only one process uses."""

    rank, size = 0, 1

    def broadcast(self, value: Any) -> Any:
        """Return `value`."""
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Return `value` in a list."""
        return [value]
