"""Which client a node belongs to, and which nodes may be asked.

A node without keys gets a new id from Flower at every start, and so does every node of a simulation. Participations are
therefore counted by a lasting identity: the node's authentication key, or a pseudonym on the client's disk, which it
sends with every reply.
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
POLL_SECONDS = 1.0


@final
class NodeSelection:
    """The identities of nodes that this process knows, and the choice of nodes to ask.

    Args:
        kind: "pseudonym" or "key".
    """

    def __init__(self, kind: Identity) -> None:
        self._kind = kind
        self._known: dict[int, bytes] = {}

    def identify(self, node: int, answer: Answer) -> bytes | None:
        """Return the identity of the client that sent an answer; None if its node used another pseudonym before."""
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
        """Return the nodes that may be asked, in random order, once there are enough or the time is up.

        A node that has not replied to this process yet may be asked: its reply tells who it is.

        Args:
            grid: Flower's grid.
            allowed: returns whether a known client may take part.
            wanted: number of nodes that are enough.
            wait: in seconds.
            asked: nodes already asked for this release. They come last, so that silent nodes do not use up every
                attempt.
            first: nodes that come before all others, if they are connected.
        """
        end = time.monotonic() + wait
        while True:
            nodes = list(grid.get_nodes())
            found = [node.node_id for node in nodes if self._is_known(node) and self._may_join(node, allowed)]
            if len(found) >= wanted or time.monotonic() >= end:
                self._check_keys(len(nodes))
                secrets.SystemRandom().shuffle(found)
                return sorted(found, key=lambda node: (node not in first, node in asked))
            time.sleep(min(POLL_SECONDS, max(end - time.monotonic(), 0.0)))

    def _is_known(self, node: Any) -> bool:
        """Return whether a node has, or its reply will have, a lasting identity."""
        return self._kind == "pseudonym" or bool(node.public_key)

    def _check_keys(self, nodes: int) -> None:
        """Raise if identities are keys and no node ever had one. Single nodes without a key are ignored."""
        if self._kind == "key" and nodes and not self._known:
            raise Refused(
                f"None of the {nodes} nodes has an authentication key, so clients have no lasting identity.",
                hint="enable SuperNode authentication at the SuperLink, or use identity='pseudonym'",
            )

    def _may_join(self, node: Any, allowed: Callable[[bytes], bool]) -> bool:
        if self._kind == "key":
            self._known[node.node_id] = bytes(node.public_key)
        return node.node_id not in self._known or allowed(self._known[node.node_id])
