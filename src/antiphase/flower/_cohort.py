"""The clients that have a place in a release, fixed before any of them touches its data (`dropouts="zero"`).

Clients first check in: they say who they are and that their timer allows a participation, without training. Those that
get a place are in the ledger before the first task to train is sent. From then on the place stays taken: whatever a
client sends, and also if it sends nothing, it has taken part in the release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

Dropouts = Literal["zero", "replace"]
Refusal = Literal["duplicate", "no-place"]


@final
class Cohort:
    """The places of one release and the nodes that hold them.

    Args:
        size: how many places there are.
        fixed: the names of the clients with a place, where an earlier process of the server has given them out. Nobody
            else is let in.

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
        self._pseudonyms: set[str] = set()  # where keys count, two nodes may still share one disk

    @property
    def nodes(self) -> list[int]:
        """The nodes that have checked in and hold a place."""
        return list(self._present)

    @property
    def names(self) -> list[str]:
        """The names of their clients."""
        return [name for name, _ in self._present.values()]

    @property
    def missing(self) -> int:
        """Places whose client has not checked in."""
        return self._places - len(self._present)

    def may_join(self, name: str) -> bool:
        """Whether a client could still check in."""
        return name not in self._names and (self._fixed is None or name in self._fixed)

    def check_in(self, node: int, name: str, pseudonym: str) -> Refusal | None:
        """Give a client its place, or say why not."""
        if name in self._names or pseudonym in self._pseudonyms:
            return "duplicate"
        if not self.may_join(name):
            return "no-place"
        self._present[node] = (name, pseudonym)
        self._names.add(name)
        self._pseudonyms.add(pseudonym)
        return None

    def has(self, node: int, name: str, pseudonym: str) -> bool:
        """Whether this client checked in from this node."""
        return self._present.get(node) == (name, pseudonym)
