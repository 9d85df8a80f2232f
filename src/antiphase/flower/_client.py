"""The client mod, which clips the update and keeps the participation timer on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from antiphase import _check
from antiphase.flower._clip import clip_factor, norm
from antiphase.flower._timer import locked_timer
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
MOD_FAILED_PRECONDITION = 6  # Flower's error code


def participation_mod(directory: str | Path | Callable[[Context], str | Path], separation: int = 1) -> Mod:
    """Return a client mod that turns the new weights of a `ClientApp` into a clipped update and limits participation.

    The app trains as usual and replies with one ArrayRecord: the model's arrays after training. The mod sends the
    clipped difference between them and the arrays it received. If the client's own timer does not allow it to take
    part, the mod declines without calling the app. Metrics stay on the client unless the server releases them raw.
    Check-ins, by which the server finds out who may take part, are answered without calling the app.

    A client may train for release t if the last release it trained for is at most t - separation, or is t itself: a
    failed release is tried again, and at most one update of a client enters it. The timer starts before the app is
    called, so a client that is killed during training has used up its participation.

    If the app raises, or replies with an error or with different arrays, the mod sends an update of NaN: the server
    adds zero, and the client keeps its place. The client's data may have caused the failure, and they must not affect
    who else takes part. The reason is only in the client's log.

    **Guarantee**: the timer that counts a participation is on disk before the app sees the task, even if several
    processes share the directory. The timer and the pseudonym are as durable as the directory. The mod cannot make the
    server honour them.

    Args:
        directory: a directory for this client only, or a function that returns it. Virtual clients of a simulation
            differ in `context.node_config["partition-id"]`.
        separation: the smallest separation that this client accepts, whatever the server requests.
    """
    own = _check.positive_integer(
        "participation_mod", "separation", separation, "use 1 to leave the separation to the server"
    )
    if not callable(directory):
        directory = Path(directory).absolute()  # the app may change the working directory

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            task = read_task(message.content)
            before = {} if task.phase == "check-in" else to_arrays(message.content.array_records[ARRAYS])
        except (Malformed, KeyError, ValueError, TypeError) as error:
            return _failed(message, f"the message is not a task of antiphase.flower.DPFTRL: {error}")
        place = Path(directory(context) if callable(directory) else directory).absolute()
        with locked_timer(place) as timer:
            answer = timer.answer(task, own)
            timer.record(task)
            if answer.status == "update":
                timer.start(task)
        if answer.status != "update":
            return _without_update(message, answer)
        update, metrics = _trained(lambda: call_next(message, context), before, task)
        with locked_timer(place) as timer:  # another process of this client may have started on a later release
            now = timer.answer(task, own)
        if now.status == "declined":
            return _without_update(message, now)
        return Message(_content(answer, update, metrics), reply_to=message)

    return mod


def _trained(train: Callable[[], Message], before: Arrays, task: Task) -> tuple[Arrays, list[MetricRecord]]:
    """Return the clipped update and the metrics to send; NaN and no metrics if the app fails in any way."""
    try:
        reply = train()
        if reply.has_error():
            raise Malformed(f"the ClientApp replied with an error: {reply.error.reason}")
        update = _update(before, list(reply.content.array_records.values()), task.clip_norm)
        return update, list(reply.content.metric_records.values())[: 1 if task.raw_metrics else 0]
    except KeyboardInterrupt:
        raise
    except BaseException:  # an error reply, or none, would free the place; data can also cause SystemExit
        LOG.exception("participation_mod: the ClientApp failed; its update counts as zero")
        return {name: np.full_like(value, np.nan) for name, value in before.items()}, []


def _update(before: Arrays, records: list[ArrayRecord], clip_norm: float) -> Arrays:
    """Return after - before, clipped. NaN and infinity are sent; the server counts them and adds zero."""
    if len(records) != 1:
        raise Malformed(f"the ClientApp must reply with one ArrayRecord, not {len(records)}")
    after = to_arrays(records[0])
    if {name: value.shape for name, value in after.items()} != {name: value.shape for name, value in before.items()}:
        raise Malformed("the ClientApp must reply with arrays of the names and shapes it received, in any order")
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
    return Message(Error(code=MOD_FAILED_PRECONDITION, reason=f"participation_mod: {reason}."), reply_to=message)
