"""Tracks which clients have a place in a release, with `dropouts="zero"`. Places are fixed before any client trains.

A place is the right to take part in a release, which has a fixed number of places. Clients first check in, without
training: they send their identity, and say that their timer (their own record of past participations) allows them to
take part. The server writes the clients that get a place to the ledger before it sends the first training task. From
then on, these clients count as having taken part in the release, whatever they send, and even if they send nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

CheckInRefusal = Literal["duplicate", "no-place"]


@final
class Cohort:
    """Assigns the places of one release to the clients that check in.

    Args:
        size: number of places.
        fixed: names of the clients to which an earlier server process gave the places. If given, only these clients may
            join.

    >>> cohort = Cohort(2)
    >>> cohort.check_in(7, "a", "pseudonym a"), cohort.check_in(8, "a", "pseudonym a"), cohort.missing
    (None, 'duplicate', 1)
    >>> cohort.has(7, "a", "pseudonym a"), cohort.has(8, "a", "pseudonym a")
    (True, False)
    >>> Cohort(2, ["b", "c"]).check_in(7, "a", "pseudonym a")
    'no-place'
    """

    def __init__(self, size: int, fixed: Sequence[str] | None = None) -> None:
        self._places = size if fixed is None else len(fixed)
        self._fixed = None if fixed is None else frozenset(fixed)
        self._present: dict[int, tuple[str, str]] = {}
        self._names: set[str] = set()
        self._pseudonyms: set[str] = set()  # clients with different names may use the same directory

    @property
    def nodes(self) -> list[int]:
        """Ids of the nodes whose clients have checked in and have a place."""
        return list(self._present)

    @property
    def names(self) -> list[str]:
        """Names of the clients that have checked in and have a place."""
        return [name for name, _ in self._present.values()]

    @property
    def missing(self) -> int:
        """Number of places for which no client has checked in yet."""
        return self._places - len(self._present)

    def may_join(self, name: str) -> bool:
        """Return whether the client with this name may still check in."""
        return name not in self._names and (self._fixed is None or name in self._fixed)

    def check_in(self, node: int, name: str, pseudonym: str) -> CheckInRefusal | None:
        """Give a client a place and return None, or return the reason why the client gets no place.

        Args:
            node: Flower's id of the node that the client answered from.
            name: name of the client in the ledger.
            pseudonym: random identity that is stored on the client's disk.
        """
        if name in self._names or pseudonym in self._pseudonyms:
            return "duplicate"
        if not self.may_join(name):
            return "no-place"
        self._present[node] = (name, pseudonym)
        self._names.add(name)
        self._pseudonyms.add(pseudonym)
        return None

    def has(self, node: int, name: str, pseudonym: str) -> bool:
        """Return whether this client checked in from this node."""
        return self._present.get(node) == (name, pseudonym)
