"""A tree of arrays in a file that its owner alone can read, encrypted and sealed with the secret of the run."""

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
from antiphase.jax._keys import seal_key

HINT = "use an older checkpoint"
OLD_MAGIC = b"antiphase jax state, version 1\n"  # authenticated, but not encrypted: read, no longer written
SEAL = hashlib.sha256().digest_size


def save(path: str | os.PathLike[str], tree: Any, run: Run) -> None:
    """Write all arrays of a tree, encrypted; the file is whole or not there.

    Meant for the private part of `split`, or for a whole training state that never leaves the building.

    Args:
        path: a file apart from the model, such as one in the run's directory under private/.
        tree: a pytree of arrays.
        run: whose secret seals it.
    """
    leaves = jax.tree.leaves(tree)
    described = [[np.dtype(leaf.dtype).name, list(leaf.shape)] for leaf in map(_with_dtype, leaves)]
    arrays = (np.ascontiguousarray(leaf) for leaf in leaves)  # one at a time: each may be a copy from a device
    try:
        write_sealed(regular_target(Path(path)), _kind(run), secret_of(run), {"arrays": described}, arrays)
    finally:
        del tree, leaves  # tracebacks may show the variables of this function


def load(path: str | os.PathLike[str], like: Any, run: Run) -> Any:
    """Read what `save` wrote, placed like the arrays of `like`.

    Raises `Corrupted` where the file was changed or cut short, or belongs to another run. Files of earlier versions,
    which were not encrypted, can be read too.

    Args:
        path: written by `save`.
        like: a tree of the same structure, shapes and dtypes, such as a new state; its shardings are taken over.
        run: that of `save`.
    """
    leaves, tree = jax.tree.flatten(like)
    read = _read_old if _is_old(Path(path)) else _read
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


def _read_old(path: Path, leaves: list[Any], run: Run) -> list[NDArray[Any]]:
    with os.fdopen(open_file(path, follow=True), "rb") as file:
        content = file.read()
    data, seal = content[:-SEAL], content[-SEAL:]
    if not hmac.compare_digest(seal, hmac.digest(seal_key(run), data, "sha256")):
        raise _kind(run).corrupted(path, "it was changed or cut short, or belongs to another run")
    start = len(OLD_MAGIC) + 8
    at = start + int.from_bytes(data[len(OLD_MAGIC) : start], "big")
    _check_fits(path, json.loads(data[start:at]), leaves)
    arrays = []
    for leaf in leaves:
        arrays.append(np.frombuffer(data, leaf.dtype, leaf.size, at).reshape(leaf.shape).copy())
        at += arrays[-1].nbytes
    return arrays


def _is_old(path: Path) -> bool:
    try:
        with os.fdopen(open_file(path, follow=True), "rb") as file:
            return file.read(len(OLD_MAGIC)) == OLD_MAGIC
    except OSError as error:
        raise InvalidArgument(f"The file {path} cannot be read: {error.strerror}.", hint="save writes it") from error


def _check_fits(path: Path, described: list[Any], leaves: list[Any]) -> None:
    stored = [(name, tuple(shape)) for name, shape in described]
    wanted = [(leaf.dtype.name, leaf.shape) for leaf in leaves]
    if stored != wanted:
        raise InvalidArgument(
            f"The file {path} holds arrays {stored}. Wanted are {wanted}.", hint="pass a state of the same optimizer"
        )


def _with_dtype(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _kind(run: Run) -> Kind:
    return Kind("training state", b"antiphase jax state, version 2\n", ("jax state", run.run_id), "run", HINT)
