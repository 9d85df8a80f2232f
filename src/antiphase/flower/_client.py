"""`participation_mod`: a client mod that clips the update and keeps a record of the client's participations on disk."""

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
    """Return a client mod that clips the update of a `ClientApp` and limits how often the client takes part.

    The app trains as usual and replies with one ArrayRecord, the model's arrays after training. The mod subtracts the
    arrays that the client received, clips the difference (the update), and sends it to the server. Metrics stay on the
    client, unless the server was started with `raw_metrics`.

    A release is one new model that the server makes from the updates of several clients. For each run, the mod keeps a
    timer on disk: a record of the last release that the client started to train for. The client may train for release t
    if its last release is at most t - separation. It may also train for the same release again if the server retries
    the release; at most one of these updates enters the release. If the timer does not allow the client to take part,
    the mod declines without calling the app. Before a release, the server may ask clients to check in, to find out who
    may take part. The mod answers check-ins without calling the app. The timer is updated before the app is called, so
    a client that is killed during training still counts as having taken part.

    If the app raises an error, replies with an error, or replies with arrays of other names or shapes, the mod sends an
    update of NaN. The server then adds zero, and the client still counts as a participant of the release. The reason is
    that the client's data may have caused the failure, and the data must not affect who else takes part. The error
    appears only in the client's log.

    **Guarantee**: a participation is recorded on disk before the app gets the task, even if several processes share the
    directory. The timer and the pseudonym (the random identity that the mod creates) last as long as the directory. The
    mod cannot force the server to respect the timer.

    Args:
        directory: directory of this client only, or a function from the Flower context to that directory. For the
            virtual clients of a simulation, derive it from `context.node_config["partition-id"]`.
        separation: smallest distance between two releases that this client takes part in, whatever the server requests.
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
    """Return the clipped update and the metrics to send. If the app fails in any way, return NaN and no metrics."""
    try:
        reply = train()
        if reply.has_error():
            raise Malformed(f"the ClientApp replied with an error: {reply.error.reason}")
        update = _update(before, list(reply.content.array_records.values()), task.clip_norm)
        return update, list(reply.content.metric_records.values())[: 1 if task.raw_metrics else 0]
    except KeyboardInterrupt:
        raise
    except BaseException:  # also SystemExit: if the mod sent no update, another client could take part instead
        LOG.exception("participation_mod: the ClientApp failed; its update counts as zero")
        return {name: np.full_like(value, np.nan) for name, value in before.items()}, []


def _update(before: Arrays, records: list[ArrayRecord], clip_norm: float) -> Arrays:
    """Return (after - before), clipped to `clip_norm`. The server replaces a non-finite update by zero."""
    if len(records) != 1:
        raise Malformed(f"the ClientApp must reply with one ArrayRecord, not {len(records)}")
    after = to_arrays(records[0])
    if {name: value.shape for name, value in after.items()} != {name: value.shape for name, value in before.items()}:
        raise Malformed("the ClientApp must reply with arrays of the same names and shapes as it received")
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
