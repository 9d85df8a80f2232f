"""What server and clients tell each other beside Flower's own envelope, and arrays read from untrusted bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

TAG = "antiphase"  # the record that carries a Task one way and an Answer the other
ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
LONGEST_NAME = 128
MOST_MARKS = 64  # that a client keeps and shows

Arrays = dict[str, NDArray[Any]]
Phase = Literal["check-in", "train"]
Status = Literal["ready", "update", "declined"]


class Malformed(Exception):
    """A message that does not have the agreed form; the text says why."""


@dataclass(frozen=True)
class Task:
    """What the server asks a client for one release: whether it may take part, or an update.

    Args:
        run_id: the run of the server; a client has one timer for each.
        release: index of the release that the update is for, from 0. Not Flower's round number, which starts again
            with the process and counts rounds that failed.
        separation: releases between two participations of a client.
        clip_norm: the largest norm of an update.
        raw_metrics: whether the client's metrics may leave it.
        mark: of the release, to be shown again (`_marks.py`).
        phase: "check-in" asks who the client is and whether its timer has run out, and carries no model; "train" asks
            for an update.
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
    """What a client says beside its update.

    Args:
        client: the pseudonym that it keeps on disk.
        release: the release that it answers for.
        status: "ready" to a check-in, "update" to a task to train, "declined" where its own timer has not run out.
        last: the latest release it began to train for before, -1 for none.
        seen: the releases it was asked for before, at most MOST_MARKS.
        marks: that came with them.
    """

    client: str
    release: int
    status: Status
    last: int
    seen: list[int]
    marks: list[str]


def to_record(item: Task | Answer) -> ConfigRecord:
    """As Flower sends it."""
    return ConfigRecord(asdict(item))


def read_task(content: RecordDict) -> Task:
    """The task in a message from the server."""
    fields = _fields(content, Task)
    if fields["release"] < 0 or fields["separation"] < 1 or not fields["clip_norm"] > 0.0:
        raise Malformed("the task has a release, a separation or a clipping norm that cannot be")
    if fields["phase"] not in ("check-in", "train"):
        raise Malformed(f"the phase is {fields['phase'][:20]!r}")
    return Task(**fields)


def read_answer(content: RecordDict) -> Answer:
    """The answer in a message from a client."""
    answer = Answer(**_fields(content, Answer))
    if answer.status not in ("ready", "update", "declined"):
        raise Malformed(f"the status is {answer.status[:20]!r}")
    if not 0 < len(answer.client) <= LONGEST_NAME:
        raise Malformed("the pseudonym is empty or too long")
    if len(answer.seen) != len(answer.marks) or len(answer.seen) > MOST_MARKS:
        raise Malformed("there are too many marks, or another number of them than of releases")
    if not all(text.isascii() and len(text) <= LONGEST_NAME for text in (answer.client, *answer.marks)):
        raise Malformed("the pseudonym or a mark has other characters than the mod sends, or too many")
    return answer


def _fields(content: RecordDict, kind: type[Task] | type[Answer]) -> dict[str, Any]:
    record = content.config_records.get(TAG)
    wanted: dict[str, str] = dict(kind.__annotations__)
    if record is None or set(record) != set(wanted):
        raise Malformed(f"there is no record {TAG!r} with {', '.join(wanted)}")
    for name, annotation in wanted.items():
        if not _is(record[name], annotation):
            raise Malformed(f"{name} is of type {type(record[name]).__name__}, not {annotation}")
    return dict(record)


def _is(value: object, annotation: str) -> bool:
    kinds = {"str": str, "Status": str, "Phase": str, "int": int, "float": float, "bool": bool}
    if annotation in kinds:
        return type(value) is kinds[annotation]
    inner = annotation.removeprefix("list[").removesuffix("]")
    return isinstance(value, list) and len(value) <= MOST_MARKS and all(_is(item, inner) for item in value)


def to_arrays(record: ArrayRecord) -> Arrays:
    """Arrays by name, from a record that is trusted."""
    return {name: array.numpy() for name, array in record.items()}


def to_array_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """As Flower sends it: C-contiguous, so that `read_update` can view it without a copy."""
    # ascontiguousarray would give a scalar one dimension.
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def read_update(content: RecordDict, model: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays of a client's reply, which must have the names, shapes and dtypes of the model.

    Nothing in the reply is trusted, and no header is parsed: an array must begin with the very bytes that NumPy writes
    before one like the model's, and what follows is viewed in place.
    """
    if list(content.array_records) != [ARRAYS]:
        raise Malformed(f"there must be one ArrayRecord {ARRAYS!r}")
    record = content.array_records[ARRAYS]
    if list(record) != list(model):
        raise Malformed("the arrays have other names than the model's")
    return {name: _view(record[name], like) for name, like in model.items()}


def _view(array: Array, like: NDArray[Any]) -> NDArray[Any]:
    if array.stype != "numpy.ndarray":
        raise Malformed(f"the serialisation is {array.stype[:20]!r}")
    header = _header(like)
    if tuple(array.shape) != like.shape or not array.data.startswith(header):
        raise Malformed(f"an array has another header than one of shape {like.shape} and dtype {like.dtype}")
    if len(array.data) - len(header) != like.nbytes:
        raise Malformed("an array is cut short or too long")
    return np.frombuffer(array.data, dtype=like.dtype, offset=len(header)).reshape(like.shape)


def _header(like: NDArray[Any]) -> bytes:
    """What NumPy writes before the entries of such an array in C order."""
    file, descr = io.BytesIO(), np.lib.format.dtype_to_descr(like.dtype)
    np.lib.format.write_array_header_1_0(file, {"shape": like.shape, "fortran_order": False, "descr": descr})
    return file.getvalue()
