"""Who is behind a node, and which nodes may be asked.

Flower numbers a node without keys anew at every start, and so does a simulation. Participations are counted by what
lasts: the node's authentication key, or a pseudonym from the client's disk that comes with its reply.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
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

    def candidates(
        self,
        grid: Grid,
        allowed: Callable[[bytes], bool],
        wanted: int,
        wait: float,
        asked: Collection[int] = (),
        first: Collection[int] = (),
    ) -> list[int]:
        """Nodes that may be asked, in random order, once there are enough or the time is over.

        A node that has not replied to this process yet may be asked: its reply says who it is.

        Args:
            grid: Flower's.
            allowed: whether a known client may take part.
            wanted: how many nodes are enough.
            wait: in seconds.
            asked: nodes that were asked for this release before. They come last, so that one that is silent does not
                take up attempt after attempt.
            first: nodes to be asked before others, where they are still there.
        """
        end = time.monotonic() + wait
        while True:
            nodes = list(grid.get_nodes())
            found = [node.node_id for node in nodes if self._is_known(node) and self._may_join(node, allowed)]
            if len(found) >= wanted or time.monotonic() >= end:
                self._check_keys(len(nodes))
                secrets.SystemRandom().shuffle(found)
                return sorted(found, key=lambda node: (node not in first, node in asked))
            time.sleep(min(SECOND, max(end - time.monotonic(), 0.0)))

    def _is_known(self, node: Any) -> bool:
        """Whether there is, or will be, something lasting to know a node by."""
        return self._kind == "pseudonym" or bool(node.public_key)

    def _check_keys(self, nodes: int) -> None:
        """Refuse to go on where keys count and nobody ever had one; nodes without must not stop those with keys."""
        if self._kind == "key" and nodes and not self._known:
            raise Refused(
                f"None of {nodes} nodes has an authentication key, so there is nothing lasting to know them by.",
                hint="authenticate SuperNodes at the SuperLink, or use identity='pseudonym'",
            )

    def _may_join(self, node: Any, allowed: Callable[[bytes], bool]) -> bool:
        if self._kind == "key":
            self._known[node.node_id] = bytes(node.public_key)
        return node.node_id not in self._known or allowed(self._known[node.node_id])
