"""Replies as they come, a few at a time, until there are enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

PULLED = 8  # replies held in memory at once
POLL = 0.1  # seconds, growing to
SLOWEST_POLL = 3.0


def replies(
    grid: Grid,
    messages: list[Message],
    asked: dict[str, int],
    wanted: Callable[[], int],
    more: Callable[[int], list[Message]],
    oversampling: float,
    timeout: float,
) -> Iterator[Message]:
    """Sends messages and gives replies, until no more are wanted, none can come, or the time is over.

    Where a reply is not taken, another node is asked in its place. Flower's own `send_and_receive` waits for every
    reply and holds all of them in memory.

    Args:
        grid: Flower's.
        messages: to begin with.
        asked: where the node behind each message is noted.
        wanted: how many replies are still to be taken.
        more: messages to up to so many nodes that were not asked.
        oversampling: how many are asked for one that is wanted.
        timeout: in seconds, from when the messages are out.
    """
    waiting, pause = _push(grid, messages, asked), POLL
    end = time.monotonic() + timeout
    while wanted() > 0:
        short = math.ceil(wanted() * oversampling) - len(waiting)
        if short > 0:
            waiting |= _push(grid, more(short), asked)
        if not waiting:
            return
        count = len(waiting)
        for message in _pulled(grid, waiting):
            yield message
            if wanted() <= 0:
                return
        left = end - time.monotonic()
        if left <= 0.0:
            return
        if len(waiting) < count:
            pause = POLL
        else:
            time.sleep(min(pause, left))
            pause = min(2.0 * pause, SLOWEST_POLL)


def _push(grid: Grid, messages: list[Message], asked: dict[str, int]) -> set[str]:
    """Send messages; the numbers of those that went out."""
    sent = set(grid.push_messages(messages)) if messages else set()
    # A grid numbers the messages themselves; what it could not send is not in its answer.
    numbers = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    made = {number: node for number, node in numbers.items() if number in sent}
    asked.update(made)
    return set(made)


def _pulled(grid: Grid, waiting: set[str]) -> Iterator[Message]:
    ids = sorted(waiting)
    for start in range(0, len(ids), PULLED):
        for message in grid.pull_messages(ids[start : start + PULLED]):
            waiting.discard(message.metadata.reply_to_message_id)
            yield message
