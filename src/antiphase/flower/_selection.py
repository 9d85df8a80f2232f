"""Who is behind a node, and which nodes may be asked.

Flower numbers a node without keys anew at every start, and so does a simulation. Participations are counted by what
lasts: the node's authentication key, or a pseudonym from the client's disk that comes with its reply.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Literal, final

from flwr.serverapp import Grid

from antiphase._errors import Refused
from antiphase.flower._wire import Answer

Identity = Literal["pseudonym", "key"]
SECOND = 1.0


@final
class Selection:
    """Identities of nodes, as far as this process has learnt them.

    Args:
        kind: "pseudonym" or "key".
    """

    def __init__(self, kind: Identity) -> None:
        self._kind = kind
        self._known: dict[int, bytes] = {}

    def identify(self, node: int, answer: Answer) -> bytes | None:
        """The lasting identity of the client that sent an answer; None where the node had another pseudonym before."""
        if self._kind == "key":
            return self._known[node]
        pseudonym = answer.client.encode()
        return pseudonym if self._known.setdefault(node, pseudonym) == pseudonym else None

    def candidates(self, grid: Grid, allowed: Callable[[bytes], bool], wanted: int, wait: float) -> list[int]:
        """Nodes that may be asked, in random order, once there are enough or the time is over.

        A node that has not replied to this process yet may be asked: its reply says who it is.

        Args:
            grid: Flower's.
            allowed: whether a known client may take part.
            wanted: how many nodes are enough.
            wait: in seconds.
        """
        end = time.monotonic() + wait
        while True:
            found = [node.node_id for node in grid.get_nodes() if self._may_join(node, allowed)]
            if len(found) >= wanted or time.monotonic() >= end:
                secrets.SystemRandom().shuffle(found)
                return found
            time.sleep(min(SECOND, max(end - time.monotonic(), 0.0)))

    def _may_join(self, node: Any, allowed: Callable[[bytes], bool]) -> bool:
        if self._kind == "key":
            self._known[node.node_id] = _key(node)
        return node.node_id not in self._known or allowed(self._known[node.node_id])


def _key(node: Any) -> bytes:
    if not node.public_key:
        raise Refused(
            f"Node {node.node_id} has no authentication key, so there is nothing lasting to know it by.",
            hint="authenticate SuperNodes at the SuperLink, or use identity='pseudonym'",
        )
    return bytes(node.public_key)
