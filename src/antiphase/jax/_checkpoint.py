"""`save` and `load`: a tree of arrays in an owner-only file, encrypted and authenticated with the run's secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from antiphase._durable import open_file, regular_target
from antiphase._errors import InvalidArgument
from antiphase._run import Run, secret_of
from antiphase._sealed import Header, Kind, read_sealed, write_sealed

VERSION_1 = b"antiphase jax state, version 1\n"  # authenticated but not encrypted; still read, no longer written
VERSION_2 = b"antiphase jax state, version 2\n"
KEY_LABEL = "jax state"
TAG_BYTES = hashlib.sha256().digest_size


def save(path: str | os.PathLike[str], tree: Any, run: Run) -> None:
    """Write all arrays of a tree to an encrypted file. The write is atomic.

    Use it for the private part of `split`, or for a complete training state that is never shared.

    Args:
        path: a file kept apart from the model, for example under private/ in the run's directory.
        tree: a pytree of arrays.
        run: the run whose secret encrypts the file.
    """
    leaves = jax.tree.leaves(tree)
    described = [[np.dtype(leaf.dtype).name, list(leaf.shape)] for leaf in map(_with_dtype, leaves)]
    arrays = (np.ascontiguousarray(leaf) for leaf in leaves)  # one at a time, since each may be copied from a device
    try:
        write_sealed(regular_target(Path(path)), _kind(run), secret_of(run), {"arrays": described}, arrays)
    finally:
        del tree, leaves  # tracebacks may show local variables


def load(path: str | os.PathLike[str], like: Any, run: Run) -> Any:
    """Read a tree written by `save`, with the shardings of `like`.

    Raises `Corrupted` if the file was changed or truncated, or belongs to another run. Files of earlier versions, which
    were not encrypted, can be read too.

    Args:
        path: file written by `save`.
        like: a tree of the same structure, shapes and dtypes, such as a new state.
        run: the run passed to `save`.
    """
    leaves, tree = jax.tree.flatten(like)
    read = _read_version_1 if _is_version_1(Path(path)) else _read
    pairs = zip(leaves, read(Path(path), leaves, run), strict=True)
    placed = [jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array for leaf, array in pairs]
    return jax.tree.unflatten(tree, placed)


def _read(path: Path, leaves: list[Any], run: Run) -> list[NDArray[Any]]:
    arrays: list[NDArray[Any]] = []

    def prepare(header: Header) -> Iterator[NDArray[Any]]:
        _check_fits(path, header["arrays"], leaves)
        for leaf in leaves:
            arrays.append(np.empty(leaf.shape, leaf.dtype))
            yield arrays[-1]

    read_sealed(path, _kind(run), secret_of(run), prepare)
    return arrays


def _read_version_1(path: Path, leaves: list[Any], run: Run) -> list[NDArray[Any]]:
    with os.fdopen(open_file(path, follow=True), "rb") as file:
        content = file.read()
    data, tag = content[:-TAG_BYTES], content[-TAG_BYTES:]
    if not hmac.compare_digest(tag, hmac.digest(secret_of(run).derive(KEY_LABEL, run.run_id), data, "sha256")):
        raise _kind(run).corrupted(path, "it was changed or truncated, or belongs to another run")
    start = len(VERSION_1) + 8
    at = start + int.from_bytes(data[len(VERSION_1) : start], "big")
    _check_fits(path, json.loads(data[start:at]), leaves)
    arrays = []
    for leaf in leaves:
        arrays.append(np.frombuffer(data, leaf.dtype, leaf.size, at).reshape(leaf.shape).copy())
        at += arrays[-1].nbytes
    return arrays


def _is_version_1(path: Path) -> bool:
    try:
        with os.fdopen(open_file(path, follow=True), "rb") as file:
            return file.read(len(VERSION_1)) == VERSION_1
    except OSError as error:
        raise InvalidArgument(
            f"The file {path} cannot be read: {error.strerror}.",
            hint="pass the path of a file written by antiphase.jax.save",
        ) from error


def _check_fits(path: Path, described: list[Any], leaves: list[Any]) -> None:
    stored = [(name, tuple(shape)) for name, shape in described]
    wanted = [(leaf.dtype.name, leaf.shape) for leaf in leaves]
    if stored != wanted:
        raise InvalidArgument(
            f"The file {path} holds the arrays {stored}, but 'like' has {wanted}.",
            hint="pass a state of the optimizer and parameters that were saved",
        )


def _with_dtype(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _kind(run: Run) -> Kind:
    return Kind("training state", VERSION_2, (KEY_LABEL, run.run_id), "run", "use an older checkpoint")
