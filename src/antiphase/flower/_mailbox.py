"""Sends messages to clients and reads the replies, a few at a time, until enough replies have arrived."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import final

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

LOG = logging.getLogger("flwr")
PULL_SIZE = 8  # replies in memory at once
FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.1, 3.0
UNREACHABLE = (httpx.HTTPError, ConnectionError)  # raised if the SuperLink is not reachable; no client can cause them


@final
class Mailbox:
    """Sends messages and pulls the replies.

    Flower parses the clients' bytes inside `pull_messages`, so a malformed reply can make that call raise an error. The
    SuperLink returns each reply only once, so the other replies of this call are lost too. All replies that the call
    asked for count as "failed". Afterwards, replies are pulled one at a time, so that a malformed reply affects no
    other client.

    Args:
        grid: Flower's grid.
        counts: number of replies of each kind, such as "failed". Failed pulls are added here.
        size: number of replies per call of `pull_messages`. With 1, no client can make the server lose the reply of
            another client.
    """

    def __init__(self, grid: Grid, counts: Counter[str], size: int = PULL_SIZE) -> None:
        self._grid, self._counts, self._size = grid, counts, size
        self._pulled: list[Message] = []  # pulled, but not yielded yet
        self._waiting: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        """Stop waiting for replies to the messages sent so far."""
        self._pulled.clear()
        self._waiting.clear()

    def push(self, messages: list[Message], asked: dict[str, int]) -> None:
        """Send messages, and record in `asked` the node that each one went to."""
        sent = set(self._grid.push_messages(messages)) if messages else set()
        # The grid sets the ids of all messages, but returns only the ids of messages that it could send.
        nodes = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        delivered = {message_id: node for message_id, node in nodes.items() if message_id in sent}
        asked.update(delivered)
        self._waiting.update(delivered)

    def replies(self) -> Iterator[Message]:
        """Iterate over the replies that have arrived. If the caller stops early, the next call yields the rest."""
        left = sorted(self._waiting)
        while self._pulled or left:
            if not self._pulled:
                ids, left = left[: self._size], left[self._size :]
                self._pulled.extend(self._pull(ids))
            while self._pulled:
                yield self._pulled.pop(0)

    def _pull(self, ids: list[str]) -> list[Message]:
        try:
            found = list(self._grid.pull_messages(ids))
            self._waiting.difference_update(message.metadata.reply_to_message_id for message in found)
            return found
        except UNREACHABLE:
            raise
        except Exception as error:  # a client's bytes can make Flower raise anything
            LOG.warning(
                "Flower cannot parse what a client sent (%s): %d replies dropped", type(error).__name__, len(ids)
            )
            self._waiting.difference_update(ids)
            self._counts["failed"] += len(ids)
            self._size = 1
            return []


def collect_replies(
    mailbox: Mailbox,
    messages: list[Message],
    asked: dict[str, int],
    wanted: Callable[[], int],
    more: Callable[[int], list[Message]],
    oversampling: float,
    timeout: float,
    overtime: bool = False,
) -> Iterator[Message]:
    """Send messages and yield replies until enough have arrived, no more can arrive, or the time is up.

    If the caller cannot use a reply, another node is asked. This differs from Flower's `send_and_receive`, which waits
    for every reply and keeps all of them in memory.

    Args:
        mailbox: mailbox to use. Replies to messages sent earlier are also yielded. Afterwards, the mailbox still waits
            for replies that have not arrived.
        messages: messages to send first.
        asked: dictionary from message ids to nodes. Each message that is sent is added.
        wanted: function that returns how many replies are still needed.
        more: function that takes a number and returns at most that many messages, to nodes that were not asked yet.
        oversampling: number of nodes to ask per reply that is needed.
        timeout: longest time in seconds, from when the first messages are sent.
        overtime: if True, continue after the timeout as long as every poll brings a reply.
    """
    mailbox.push(messages, asked)
    pause, end = FIRST_POLL_SECONDS, time.monotonic() + timeout
    while wanted() > 0:
        short = math.ceil(wanted() * oversampling) - len(mailbox)
        if short > 0:
            mailbox.push(more(short), asked)
        if not mailbox:
            return
        count = len(mailbox)
        for message in mailbox.replies():
            yield message
            if wanted() <= 0:
                return
        left, progress = end - time.monotonic(), len(mailbox) < count
        if left <= 0.0 and not (overtime and progress):
            return
        if progress:
            pause = FIRST_POLL_SECONDS
        else:
            time.sleep(min(pause, left))
            pause = min(2.0 * pause, LONGEST_POLL_SECONDS)
