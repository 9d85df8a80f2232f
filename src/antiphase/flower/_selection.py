"""Identifies the client behind each node, and selects the nodes to ask.

At every start, Flower gives new ids to nodes without an authentication key and to all nodes of a simulation.
Participations are therefore counted by a persistent identity. The identity is either the node's authentication key, or
a pseudonym on the client's disk, which the client sends with every reply.
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
    """Remembers the identities of nodes, and selects the nodes to ask.

    Args:
        kind: type of identity, "pseudonym" or "key".
    """

    def __init__(self, kind: Identity) -> None:
        self._kind = kind
        self._known: dict[int, bytes] = {}
        self.connected = 0  # number of connected nodes in the last call of `candidates`
        self.eligible = 0  # number of these nodes that could be asked

    def identify(self, node: int, answer: Answer) -> bytes | None:
        """Return the identity of the client that sent an answer; None if its node used a different pseudonym before."""
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
        """Wait until enough nodes may be asked or the time is up, and return these nodes in random order.

        If identities are pseudonyms, nodes that have not yet replied to this process may be asked as well, because
        their pseudonyms become known only with their replies.

        Args:
            grid: Flower's grid.
            allowed: function that takes the identity of a client and returns True if the client may take part.
            wanted: number of nodes to wait for.
            wait: longest time to wait, in seconds.
            asked: nodes already asked for this release. They come last in the result. Otherwise, nodes that do not
                reply could use up every attempt.
            first: nodes that come first in the result, if they are connected.
        """
        end = time.monotonic() + wait
        while True:
            nodes = list(grid.get_nodes())
            found = [node.node_id for node in nodes if self._is_known(node) and self._may_join(node, allowed)]
            if len(found) >= wanted or time.monotonic() >= end:
                self._check_keys(len(nodes))
                self.connected, self.eligible = len(nodes), len(found)
                secrets.SystemRandom().shuffle(found)
                return sorted(found, key=lambda node: (node not in first, node in asked))
            time.sleep(min(POLL_SECONDS, max(end - time.monotonic(), 0.0)))

    def _is_known(self, node: Any) -> bool:
        """Return True if a node has a persistent identity. Every node has one if identities are pseudonyms."""
        return self._kind == "pseudonym" or bool(node.public_key)

    def _check_keys(self, nodes: int) -> None:
        """Raise `Refused` if identities are keys but no node has a key. If only some nodes lack a key, do nothing."""
        if self._kind == "key" and nodes and not self._known:
            raise Refused(
                f"None of the {nodes} nodes has an authentication key, so clients have no persistent identity.",
                hint="enable SuperNode authentication at the SuperLink, or use identity='pseudonym'",
            )

    def _may_join(self, node: Any, allowed: Callable[[bytes], bool]) -> bool:
        if self._kind == "key":
            self._known[node.node_id] = bytes(node.public_key)
        return node.node_id not in self._known or allowed(self._known[node.node_id])
