"""A tree of arrays in a file that its owner alone can read, sealed with the secret of the run."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from antiphase._durable import regular_target, write_atomically
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._run import Run
from antiphase.jax._keys import seal_key

MARK = b"antiphase jax state, version 1\n"
SEAL = hashlib.sha256().digest_size


def save(path: str | os.PathLike[str], tree: Any, run: Run) -> None:
    """Write all arrays of a tree; the file is whole or not there.

    Meant for the private part of `split`, or for a whole training state that never leaves the building.

    Args:
        path: a file apart from the model, such as one in the run's directory under private/.
        tree: a pytree of arrays.
        run: whose secret seals it.
    """
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    body = io.BytesIO()
    header = json.dumps([[array.dtype.name, list(array.shape)] for array in arrays]).encode()
    body.write(MARK + len(header).to_bytes(8, "big") + header)
    for array in arrays:
        body.write(np.ascontiguousarray(array).tobytes())
    data = body.getvalue()
    write_atomically(regular_target(Path(path)), data + hmac.digest(seal_key(run), data, "sha256"))


def load(path: str | os.PathLike[str], like: Any, run: Run) -> Any:
    """Read what `save` wrote, placed like the arrays of `like`.

    Raises `Corrupted` where the file was changed or cut short, or belongs to another run.

    Args:
        path: written by `save`.
        like: a tree of the same structure, shapes and dtypes, such as a new state; its shardings are taken over.
        run: that of `save`.
    """
    data = _opened(Path(path), run)
    leaves, tree = jax.tree.flatten(like)
    start = len(MARK) + 8
    stop = start + int.from_bytes(data[len(MARK) : start], "big")
    stored = [(name, tuple(shape)) for name, shape in json.loads(data[start:stop])]
    wanted = [(leaf.dtype.name, leaf.shape) for leaf in leaves]
    if stored != wanted:
        raise InvalidArgument(
            f"The file {path} holds arrays {stored}. Wanted are {wanted}.", hint="pass a state of the same optimizer"
        )
    out = []
    for leaf in leaves:
        count = leaf.size * leaf.dtype.itemsize
        array = np.frombuffer(data[stop : stop + count], dtype=leaf.dtype).reshape(leaf.shape)
        out.append(jax.device_put(array, leaf.sharding) if isinstance(leaf, jax.Array) else array.copy())
        stop += count
    return jax.tree.unflatten(tree, out)


def _opened(path: Path, run: Run) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"The file {path} cannot be read: {error.strerror}.", hint="save writes it") from error
    data, seal = content[:-SEAL], content[-SEAL:]
    if not data.startswith(MARK) or not hmac.compare_digest(seal, hmac.digest(seal_key(run), data, "sha256")):
        raise Corrupted(
            f"The file {path} was changed or cut short, or belongs to another run.", hint="use an older checkpoint"
        )
    return data
