"""Replies as they come, a few at a time, until there are enough."""

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
PULLED = 8  # replies held in memory at once
POLL = 0.1  # seconds, growing to
SLOWEST_POLL = 3.0
UNREACHABLE = (httpx.HTTPError, ConnectionError)  # the SuperLink is gone, whatever clients sent


@final
class Mailbox:
    """Messages that are out, and their replies.

    Flower reads the bytes of clients inside `pull_messages`: what one of them sends can make it raise. The other
    replies of that pull are lost then, since the SuperLink gives a reply once. All of them count as "failed", and from
    then on replies are pulled one by one, so that such a client loses its own only.

    Args:
        grid: Flower's.
        counts: what happened to replies.
        size: of a pull. With 1 no client can ever lose the reply of another.
    """

    def __init__(self, grid: Grid, counts: Counter[str], size: int = PULLED) -> None:
        self._grid, self._counts, self._size = grid, counts, size
        self._pulled: list[Message] = []  # and not given yet
        self._waiting: set[str] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        """Wait for nothing more that was sent so far."""
        self._pulled.clear()
        self._waiting.clear()

    def push(self, messages: list[Message], asked: dict[str, int]) -> None:
        """Send messages; the node behind each one that went out is noted in `asked`."""
        sent = set(self._grid.push_messages(messages)) if messages else set()
        # A grid numbers the messages themselves; what it could not send is not in its answer.
        numbers = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        made = {number: node for number, node in numbers.items() if number in sent}
        asked.update(made)
        self._waiting.update(made)

    def replies(self) -> Iterator[Message]:
        """Those that are there; what is not taken from this iterator is given by the next one."""
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
        except Exception as error:  # whatever the bytes of a client make Flower raise
            LOG.warning(
                "Flower cannot read what a client sent (%s): %d replies dropped", type(error).__name__, len(ids)
            )
            self._waiting.difference_update(ids)
            self._counts["failed"] += len(ids)
            self._size = 1
            return []


def replies(
    mailbox: Mailbox,
    messages: list[Message],
    asked: dict[str, int],
    wanted: Callable[[], int],
    more: Callable[[int], list[Message]],
    oversampling: float,
    timeout: float,
    overtime: bool = False,
) -> Iterator[Message]:
    """Sends messages and gives replies, until no more are wanted, none can come, or the time is over.

    Where a reply is not taken, another node is asked in its place. Flower's own `send_and_receive` waits for every
    reply and holds all of them in memory.

    Args:
        mailbox: replies to what is in it already are given too; what is in it when this ends was sent and not given.
        messages: to begin with.
        asked: where the node behind each message is noted.
        wanted: how many replies are still to be taken.
        more: messages to up to so many nodes that were not asked.
        oversampling: how many are asked for one that is wanted.
        timeout: in seconds, from when the messages are out.
        overtime: whether to go on after that for as long as each look brings a reply.
    """
    mailbox.push(messages, asked)
    pause, end = POLL, time.monotonic() + timeout
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
            pause = POLL
        else:
            time.sleep(min(pause, left))
            pause = min(2.0 * pause, SLOWEST_POLL)
