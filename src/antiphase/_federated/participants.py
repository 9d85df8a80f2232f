"""Records which clients took part in which release. Eligibility and the report are computed from this record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

ParticipationRefusal = Literal["early", "exhausted"]


@dataclass(frozen=True)
class Achieved:
    """Summary of how often clients actually took part.

    Args:
        separation: smallest distance between two releases that the same client took part in; None if no client took
            part twice. For releases 3 and 5, the distance is 2.
        participations: largest number of releases that one client took part in.
        clients: number of different clients that took part.
    """

    separation: int | None
    participations: int
    clients: int


@final
class Participants:
    """Records, for each client, the last release that it took part in and its number of participations.

    A client takes part in a release if its update enters the release, even if the server sets the update to zero. With
    dropouts="zero", a client that the server chose for the release takes part even if it sends nothing.

    >>> record = Participants()
    >>> for clients in (["a", "b"], ["c"], ["a"]):
    ...     record.add_release(clients)
    >>> record.achieved
    Achieved(separation=2, participations=2, clients=3)
    >>> record.refusal("a", separation=2, limit=3), record.refusal("b", separation=2, limit=3)
    ('early', None)
    >>> record.clients_by_count, dict(record.gaps)
    ({1: 2, 2: 1}, {2: 1})
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count: dict[str, int] = {}
        self.releases = 0
        self.gaps: Counter[int] = Counter()  # how often each distance between a client's successive releases occurred

    def add_release(self, clients: Sequence[str]) -> None:
        """Record the next release and the clients that took part in it."""
        release = self.releases
        for client in clients:
            if client in self._last:
                self.gaps[release - self._last[client]] += 1
            self._last[client] = release
            self._count[client] = self._count.get(client, 0) + 1
        self.releases += 1

    def refusal(self, client: str, separation: int, limit: int) -> ParticipationRefusal | None:
        """Return the reason why a client may not take part in the next release, or None if it may take part.

        Args:
            client: name of the client.
            separation: minimum distance between two releases that a client takes part in.
            limit: maximum number of participations.
        """
        if client not in self._last:
            return None
        if self._count[client] >= limit:
            return "exhausted"
        return "early" if self.releases < self._last[client] + separation else None

    @property
    def achieved(self) -> Achieved:
        """The participation achieved over all releases so far."""
        separation = min(self.gaps, default=None)
        return Achieved(separation, max(self._count.values(), default=0), len(self._count))

    @property
    def clients_by_count(self) -> dict[int, int]:
        """For each number of participations, the number of clients that took part that many times."""
        return dict(sorted(Counter(self._count.values()).items()))
