"""Who took part in which release: the record that eligibility and the report rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

Refusal = Literal["early", "exhausted"]


@dataclass(frozen=True)
class Achieved:
    """What the participations that happened satisfy.

    Args:
        separation: the smallest difference between two releases with one client; None where none came twice.
        participations: the most releases with one client.
        clients: how many different clients took part.
    """

    separation: int | None
    participations: int
    clients: int


@final
class Participants:
    """For each client its last release and how often it took part.

    A participation is an update that entered a release, also where the server set it to zero.

    >>> record = Participants()
    >>> for clients in (["a", "b"], ["c"], ["a"]):
    ...     record.enter(clients)
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

    def enter(self, clients: Sequence[str]) -> None:
        """The next release, with the clients whose updates entered it."""
        release = self.releases
        for client in clients:
            if client in self._last:
                apart = release - self._last[client]
                self._separation = apart if self._separation is None else min(apart, self._separation)
            self._last[client] = release
            self._count[client] = self._count.get(client, 0) + 1
        self.releases += 1

    def refusal(self, client: str, separation: int, limit: int) -> Refusal | None:
        """Why a client may not take part in the next release, or None where it may."""
        if client not in self._last:
            return None
        if self._count[client] >= limit:
            return "exhausted"
        return "early" if self.releases < self._last[client] + separation else None

    @property
    def achieved(self) -> Achieved:
        """Over all releases so far."""
        return Achieved(self._separation, max(self._count.values(), default=0), len(self._count))
