"""The client's side: a mod that clips the update and keeps the participation timer on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from antiphase import _check
from antiphase.flower._clip import clip_factor, norm
from antiphase.flower._timer import held
from antiphase.flower._wire import (
    ARRAYS,
    METRICS,
    TAG,
    Answer,
    Arrays,
    Malformed,
    Task,
    read_task,
    to_array_record,
    to_arrays,
    to_record,
)

LOG = logging.getLogger("flwr")
PRECONDITION = 6  # Flower's code for a mod that cannot do its work


def participation_mod(directory: str | Path | Callable[[Context], str | Path], separation: int = 1) -> Mod:
    """A mod for training that turns the new weights of a `ClientApp` into a clipped update, not sent too often.

    The app trains as usual and replies with one ArrayRecord: the model's arrays after training. The mod sends
    their difference to the arrays that came, clipped. Where the client's own timer has not run out it declines, and
    the app is not called. Metrics stay on the client unless the server was told to release them raw. A check-in, by
    which the server finds out who may take part, is answered without calling the app.

    The client trains for release t where the last release it trained for is at most t - separation, or is t itself: a
    release that failed is tried again, and at most one update of a client enters it. The timer starts before the app
    is called, so that a client that is killed while it trains has used up its participation.

    Where the app raises, replies with an error or with other arrays, the update is NaN in every entry: the server adds
    zero and the place stays taken. The client's data may be the cause, and they must not decide who else takes part.
    What went wrong is in the client's log and nowhere else.

    **Guarantee**: the timer that counts a participation is on disk before the app sees the task, also where several
    processes share the directory. The timer and the pseudonym are as durable as the directory. Whether the server
    honours them is the server's part.

    Args:
        directory: of this client alone, or a function that gives it; virtual clients of a simulation have a
            `context.node_config["partition-id"]` to tell them apart.
        separation: the least that this client accepts, whatever the server says.
    """
    own = _check.positive_integer("participation_mod", "separation", separation, "1 leaves it to the server")
    if not callable(directory):
        directory = Path(directory).absolute()  # an app may change its working directory

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            task = read_task(message.content)
            before = {} if task.phase == "check-in" else to_arrays(message.content.array_records[ARRAYS])
        except (Malformed, KeyError, ValueError, TypeError) as error:
            return _failed(message, f"this is no task of antiphase.flower.DPFTRL: {error}")
        place = Path(directory(context) if callable(directory) else directory).absolute()
        with held(place) as timer:
            answer = timer.answer(task, own)
            timer.note(task)
            if answer.status == "update":
                timer.start(task)
        if answer.status != "update":
            return _without_update(message, answer)
        update, metrics = _trained(lambda: call_next(message, context), before, task)
        with held(place) as timer:  # another process of this client may have begun a later release meanwhile
            now = timer.answer(task, own)
        if now.status == "declined":
            return _without_update(message, now)
        return Message(_content(answer, update, metrics), reply_to=message)

    return mod


def _trained(train: Callable[[], Message], before: Arrays, task: Task) -> tuple[Arrays, list[MetricRecord]]:
    """The clipped update and the metrics that may leave; NaN and none where the app fails, in whatever way."""
    try:
        reply = train()
        if reply.has_error():
            raise Malformed(f"the ClientApp replied with an error: {reply.error.reason}")
        update = _update(before, list(reply.content.array_records.values()), task.clip_norm)
        return update, list(reply.content.metric_records.values())[: 1 if task.raw_metrics else 0]
    except KeyboardInterrupt:
        raise
    except BaseException:  # an error, or no reply, would free the place; not all that data raise is an Exception
        LOG.exception("participation_mod: the ClientApp failed; its update counts as zero")
        return {name: np.full_like(value, np.nan) for name, value in before.items()}, []


def _update(before: Arrays, records: list[ArrayRecord], clip_norm: float) -> Arrays:
    """After minus before, clipped; NaN and infinity go to the server, which counts them and adds zero."""
    if len(records) != 1:
        raise Malformed(f"the ClientApp must reply with one ArrayRecord, not {len(records)}")
    after = to_arrays(records[0])
    if {name: value.shape for name, value in after.items()} != {name: value.shape for name, value in before.items()}:
        raise Malformed("the ClientApp must reply with arrays of the names and shapes that came, in any order")
    with np.errstate(invalid="ignore", over="ignore"):
        update = {name: (after[name] - value).astype(value.dtype) for name, value in before.items()}
        factor = clip_factor(norm(update.values()), clip_norm)
        return {name: (value * factor).astype(value.dtype) for name, value in update.items()}


def _content(answer: Answer, update: Arrays, metrics: list[MetricRecord]) -> RecordDict:
    content = RecordDict({ARRAYS: to_array_record(update), TAG: to_record(answer)})
    for record in metrics:
        content[METRICS] = record
    return content


def _without_update(message: Message, answer: Answer) -> Message:
    return Message(RecordDict({TAG: to_record(answer)}), reply_to=message)


def _failed(message: Message, reason: str) -> Message:
    return Message(Error(code=PRECONDITION, reason=f"participation_mod: {reason}."), reply_to=message)
