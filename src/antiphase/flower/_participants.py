"""The record of who took part in which release, which decides eligibility and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

ParticipationRefusal = Literal["early", "exhausted"]


@dataclass(frozen=True)
class Achieved:
    """The participation that was achieved.

    Args:
        separation: smallest distance between two releases of the same client; None if no client took part twice.
        participations: largest number of releases of one client.
        clients: number of different clients.
    """

    separation: int | None
    participations: int
    clients: int


@final
class Participants:
    """The last release of each client and how often it took part.

    A participation is an update that entered a release, even if the server set it to zero.

    >>> record = Participants()
    >>> for clients in (["a", "b"], ["c"], ["a"]):
    ...     record.add_release(clients)
    >>> record.achieved
    Achieved(separation=2, participations=2, clients=3)
    >>> record.refusal("a", separation=2, limit=3), record.refusal("b", separation=2, limit=3)
    ('early', None)
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count: dict[str, int] = {}
        self._separation: int | None = None
        self.releases = 0

    def add_release(self, clients: Sequence[str]) -> None:
        """Record the next release and the clients that took part in it."""
        release = self.releases
        for client in clients:
            if client in self._last:
                apart = release - self._last[client]
                self._separation = apart if self._separation is None else min(apart, self._separation)
            self._last[client] = release
            self._count[client] = self._count.get(client, 0) + 1
        self.releases += 1

    def refusal(self, client: str, separation: int, limit: int) -> ParticipationRefusal | None:
        """Return why a client may not take part in the next release, or None if it may."""
        if client not in self._last:
            return None
        if self._count[client] >= limit:
            return "exhausted"
        return "early" if self.releases < self._last[client] + separation else None

    @property
    def achieved(self) -> Achieved:
        """The participation achieved over all releases so far."""
        return Achieved(self._separation, max(self._count.values(), default=0), len(self._count))
