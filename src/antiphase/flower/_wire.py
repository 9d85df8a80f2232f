"""Defines the records that server and clients exchange in Flower messages, and parses arrays from untrusted bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

TAG = "antiphase"  # name of the record that carries a Task to the client and an Answer back
ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
LONGEST_NAME = 128
MOST_TOKENS = 64  # largest number of rollback tokens that a client keeps and returns

Arrays = dict[str, NDArray[Any]]
Phase = Literal["check-in", "train"]
Status = Literal["ready", "update", "declined"]


class Malformed(Exception):
    """Raised for a message that does not have the expected format."""


@dataclass(frozen=True)
class Task:
    """Request from the server to check in or to train for one release. Field names are part of the wire format.

    Args:
        run_id: id of the server's run. For each run, a client keeps a separate timer (a record of its participations).
        release: index of the release, from 0. It differs from Flower's round number, which starts again with every
            server process and also counts failed rounds.
        separation: minimum distance between two releases that a client takes part in.
        clip_norm: clipping norm of an update.
        raw_metrics: True if the client may send its metrics.
        mark: rollback token of the release, a random token that the client stores and returns later. With it, the
            server detects that its directory was restored from an older copy (see `RollbackTokens`).
        phase: "check-in" asks who the client is and whether its timer allows it to take part; a check-in message does
            not contain the model. "train" asks for an update.
    """

    run_id: str
    release: int
    separation: int
    clip_norm: float
    raw_metrics: bool
    mark: str
    phase: Phase = "train"


@dataclass(frozen=True)
class Answer:
    """Answer of a client to a task. Field names are part of the wire format.

    Args:
        client: pseudonym, a random identity that is stored on the client's disk.
        release: release of the task.
        status: "ready" after a check-in, "update" after training, or "declined" if the client's timer does not allow it
            to take part.
        last: last release that the client started to train for before this task; -1 if none.
        seen: releases of the last tasks that the client received before this task, at most MOST_TOKENS.
        marks: rollback tokens of these releases, in the same order.
    """

    client: str
    release: int
    status: Status
    last: int
    seen: list[int]
    marks: list[str]


def to_record(item: Task | Answer) -> ConfigRecord:
    """Return the Flower record of a task or an answer."""
    return ConfigRecord(asdict(item))


def read_task(content: RecordDict) -> Task:
    """Return the task in a message from the server."""
    fields = _fields(content, Task)
    if fields["release"] < 0 or fields["separation"] < 1 or not fields["clip_norm"] > 0.0:
        raise Malformed("the release, the separation or the clipping norm is out of range")
    if fields["phase"] not in ("check-in", "train"):
        raise Malformed(f"unknown phase {fields['phase'][:20]!r}")
    return Task(**fields)


def read_answer(content: RecordDict) -> Answer:
    """Return the answer in a message from a client."""
    answer = Answer(**_fields(content, Answer))
    if answer.status not in ("ready", "update", "declined"):
        raise Malformed(f"unknown status {answer.status[:20]!r}")
    if not 0 < len(answer.client) <= LONGEST_NAME:
        raise Malformed("the pseudonym is empty or too long")
    if len(answer.seen) != len(answer.marks) or len(answer.seen) > MOST_TOKENS:
        raise Malformed("there are too many rollback tokens, or their number differs from the number of releases")
    if not all(text.isascii() and len(text) <= LONGEST_NAME for text in (answer.client, *answer.marks)):
        raise Malformed("the pseudonym or a rollback token is too long or not ASCII")
    return answer


def _fields(content: RecordDict, kind: type[Task] | type[Answer]) -> dict[str, Any]:
    record = content.config_records.get(TAG)
    wanted: dict[str, str] = dict(kind.__annotations__)
    if record is None or set(record) != set(wanted):
        raise Malformed(f"there is no record {TAG!r} with the fields {', '.join(wanted)}")
    for name, annotation in wanted.items():
        if not _is(record[name], annotation):
            raise Malformed(f"{name} has type {type(record[name]).__name__}, not {annotation}")
    return dict(record)


def _is(value: object, annotation: str) -> bool:
    kinds = {"str": str, "Status": str, "Phase": str, "int": int, "float": float, "bool": bool}
    if annotation in kinds:
        return type(value) is kinds[annotation]
    inner = annotation.removeprefix("list[").removesuffix("]")
    return isinstance(value, list) and len(value) <= MOST_TOKENS and all(_is(item, inner) for item in value)


def to_arrays(record: ArrayRecord) -> Arrays:
    """Return the arrays of a trusted record, by name."""
    return {name: array.numpy() for name, array in record.items()}


def to_array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the arrays as a Flower record. They are made C-contiguous: `read_update` accepts no other layout."""
    # np.ascontiguousarray would turn a scalar into a vector.
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def read_update(content: RecordDict, model: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return the arrays in a client's reply. Raise `Malformed` unless names, shapes and dtypes match the model.

    The reply is not trusted, so its array headers are not parsed. Each array must start with exactly the header that
    NumPy writes for the model's array. The bytes after the header are used without a copy.
    """
    if list(content.array_records) != [ARRAYS]:
        raise Malformed(f"the reply must have exactly one ArrayRecord, {ARRAYS!r}")
    record = content.array_records[ARRAYS]
    if list(record) != list(model):
        raise Malformed("the names of the arrays differ from the names in the model")
    return {name: _view(record[name], like) for name, like in model.items()}


def _view(array: Array, like: NDArray[Any]) -> NDArray[Any]:
    if array.stype != "numpy.ndarray":
        raise Malformed(f"unknown serialisation {array.stype[:20]!r}")
    header = _header(like)
    if tuple(array.shape) != like.shape or not array.data.startswith(header):
        raise Malformed(f"an array does not have the header for shape {like.shape} and dtype {like.dtype}")
    if len(array.data) - len(header) != like.nbytes:
        raise Malformed("an array is too short or too long")
    return np.frombuffer(array.data, dtype=like.dtype, offset=len(header)).reshape(like.shape)


def _header(like: NDArray[Any]) -> bytes:
    """Return the header that NumPy writes for an array in C order with the shape and dtype of `like`."""
    file, descr = io.BytesIO(), np.lib.format.dtype_to_descr(like.dtype)
    np.lib.format.write_array_header_1_0(file, {"shape": like.shape, "fortran_order": False, "descr": descr})
    return file.getvalue()
