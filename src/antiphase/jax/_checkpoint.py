"""`save` and `load` store a tree of arrays in a file that is encrypted and authenticated with the run's secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from antiphase._durable import open_file, regular_target
from antiphase._errors import InvalidArgument
from antiphase._run import Run, secret_of
from antiphase._sealed import Header, Kind, read_sealed, write_sealed
from antiphase.jax._processes import is_whole, own_shards, place_of, shard_places, whole

VERSION_1 = b"antiphase jax state, version 1\n"  # not encrypted, only authenticated; still read, but no longer written
VERSION_2 = b"antiphase jax state, version 2\n"
KEY_LABEL = "jax state"
TAG_BYTES = hashlib.sha256().digest_size


def save(path: str | os.PathLike[str], tree: Any, run: Run) -> None:
    """Write all arrays of a tree to an encrypted file that only its owner can read. The write is atomic.

    Use `save` for the private part of an optimizer state, which `antiphase.jax.split` returns, or for a complete
    training state that is never shared.

    If JAX has several processes, every process must call `save`. Each process writes the shards on its own devices to
    its own file: for process 1 of 4, the path ends in ".1-of-4". Before you delete an older checkpoint, make sure that
    all processes have saved the new one, for example with `jax.experimental.multihost_utils.sync_global_devices`.

    Args:
        path: a file kept apart from the model, for example under private/ in the run's directory.
        tree: a pytree of arrays, which may include keys of `jax.random`.
        run: the run whose secret encrypts the file.
    """
    leaves = [piece for leaf in jax.tree.leaves(tree) for piece in _pieces(_with_dtype(leaf))]
    described = [[np.dtype(leaf.dtype).name, list(leaf.shape)] for leaf in leaves]
    # A generator copies only one array at a time from the device to the host.
    arrays = (np.ascontiguousarray(leaf) for leaf in leaves)
    try:
        write_sealed(regular_target(_own_file(path)), _kind(run), secret_of(run), {"arrays": described}, arrays)
    finally:
        del tree, leaves  # these variables are secret, and tracebacks may show local variables


def load(path: str | os.PathLike[str], like: Any, run: Run) -> Any:
    """Return the tree that `save` wrote, with the shardings of `like`.

    Raises `Corrupted` if the file was changed or truncated, or belongs to another run. Unencrypted files in version 1
    of the format can also be read. If JAX has several processes, every process must call `load`. The number of
    processes and the shardings must be the same as when the tree was saved.

    Args:
        path: file written by `save`.
        like: a tree with the same structure, shapes and dtypes, such as a newly initialised state.
        run: the run passed to `save`.
    """
    leaves, tree = jax.tree.flatten(like)
    file = _own_file(path)
    read = _read_version_1 if _is_version_1(file) else _read
    pieces = [_pieces(_with_dtype(leaf)) for leaf in leaves]
    arrays = iter(read(file, [piece for group in pieces for piece in group], run))
    groups = [[next(arrays) for _ in group] for group in pieces]
    return jax.tree.unflatten(tree, [_placed(group, leaf) for group, leaf in zip(groups, leaves, strict=True)])


def _own_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of this process's file."""
    if jax.process_count() == 1:
        return Path(path)
    return Path(f"{os.fspath(path)}.{jax.process_index()}-of-{jax.process_count()}")


def _pieces(leaf: Any) -> list[Any]:
    """Return the arrays that this process stores for a leaf: the leaf itself, or its shards in this process."""
    return [whole(leaf)] if is_whole(leaf) else own_shards(leaf)


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
            hint="pass a tree with the same structure as the saved tree, such as a newly initialised state",
        )


def _with_dtype(leaf: Any) -> Any:
    """Return a leaf as an array with a NumPy dtype. Keys of `jax.random` become arrays of 32-bit words."""
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if hasattr(leaf, "dtype") else np.asarray(leaf)


def _placed(pieces: list[NDArray[Any]], like: Any) -> Any:
    """Undo `_pieces`: return one array on the devices of `like`, as a key if `like` is a key."""
    if not isinstance(like, jax.Array):
        return pieces[0]
    words = jax.random.key_data(like) if _is_key(like) else like
    if words.is_fully_addressable:
        made = jax.device_put(pieces[0], words.sharding)
    else:
        places = None if is_whole(words) else dict(zip(shard_places(words), pieces, strict=True))

        def part(index: Any) -> Any:
            return pieces[0][index] if places is None else places[place_of(index)]

        made = jax.make_array_from_callback(words.shape, words.sharding, part)
    return jax.random.wrap_key_data(made, impl=jax.random.key_impl(like)) if _is_key(like) else made


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(run: Run) -> Kind:
    return Kind("training state", VERSION_2, (KEY_LABEL, run.run_id), "run", "use an older checkpoint")
