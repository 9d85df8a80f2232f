"""Reads and writes the server's state file: model, optimizer state, release index and participants.

A release is made by one atomic rename that replaces the file. Before the rename, the release does not exist. After the
rename, exactly the model in the file is broadcast, however often the server is killed. If the server is killed before
the ledgers have recorded the release, a restarted server completes them from the file, so the file must be authentic.
The .npz archive therefore contains an authentication code of its content. The key of this code is derived from the
run's secret. After every release, the run's ledger also has a digest of the content.
"""

from __future__ import annotations

import hmac
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import file_exists, read_file, write_atomically
from antiphase._errors import Corrupted
from antiphase._run import KeyedDigest
from antiphase._secret import Secret

FILE = "state.npz"
META = "meta"
CODE = "code"
PARTS = ("model", "optimizer")
LARGEST_RELEASE = 2**63 - 1

Arrays = dict[str, NDArray[Any]]


@final
@dataclass(frozen=True)
class ServerState:
    """The server's state after `release` releases.

    Args:
        release: number of releases made, which is also the index of the next release.
        model: model to broadcast next.
        optimizer: state of the server optimizer.
        clients: names, as in the ledger, of the clients that took part in the last release.
        counts: number of replies of each kind for the last release.
        code: authentication code found in the file; empty if there is none, as in files of version 0.1.0.
    """

    release: int
    model: Arrays
    optimizer: Arrays
    clients: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    code: bytes = b""

    def write(self, directory: Path, key: StateKey) -> ServerState:
        """Replace the state file atomically, and return the state parsed from the bytes that were written.

        The result shares no memory with this state. The model that is digested and broadcast later is therefore the
        model that was written, even if the optimizer modifies the arrays that it returned.
        """
        buffer = io.BytesIO()
        code = np.frombuffer(key.code(self), dtype=np.uint8)
        np.savez(buffer, allow_pickle=False, **self.entries(), **{CODE: code})
        data = buffer.getvalue()
        written = _parse(data)
        write_atomically(directory / FILE, data)
        return written

    def entries(self) -> Arrays:
        """Return the whole state as named arrays, as stored in the file, without the authentication code."""
        parts = {part: getattr(self, part) for part in PARTS}
        names = {part: list(arrays) for part, arrays in parts.items()}
        meta = {"release": self.release, "clients": self.clients, "counts": self.counts, "names": names}
        entries = {META: np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)}
        for part, arrays in parts.items():
            entries |= {f"{part}-{i}": array for i, array in enumerate(arrays.values())}
        return entries


@final
class StateKey:
    """Authenticates the state files of one run.

    **Guarantee**: `confirms` returns False if someone without the secret has changed the release index, the
    participants, the counts, the model or the optimizer state in a file. It also returns False for the file of a
    different run.
    """

    def __init__(self, secret: Secret, run_id: str) -> None:
        self._code = KeyedDigest(secret.child("antiphase flower state file"), run_id)

    def code(self, state: ServerState) -> bytes:
        """Return the authentication code of a state: a keyed digest of its entries, 32 bytes."""
        return self._code(state.release, state.entries())

    def confirms(self, state: ServerState) -> bool:
        """Return whether the authentication code that was read with a state is correct for that state."""
        return hmac.compare_digest(state.code, self.code(state))


def check_authentic(
    state: ServerState, path: Path, key: StateKey, *, needs_code: bool, in_ledger: Callable[[], bool]
) -> None:
    """Raise `Corrupted` if a state file was not written by this run.

    A file without an authentication code was written by version 0.1.0, or someone has removed the code. Such a file is
    accepted only if no earlier file of this run had a code, and if the run's ledger has a digest of exactly this state.
    The state before the first release needs no digest, because its model is public and no client has taken part.

    Args:
        state: state that was read.
        path: path of the file.
        key: key of the run's state files.
        needs_code: True if the ledger says that the files of this run have a code.
        in_ledger: function that returns True if the run's ledger has the digest of this state.
    """
    if state.code:
        if not key.confirms(state):
            raise Corrupted(
                f"The server state {path} was changed: its authentication code does not match its content.",
                hint="restore the whole directory from one copy",
            )
        return
    if needs_code:
        raise Corrupted(
            f"The server state {path} was changed: its authentication code is missing.",
            hint="restore the whole directory from one copy",
        )
    if state.release > 0 and not in_ledger():
        raise Corrupted(
            f"The server state {path} has no authentication code, and the ledger does not confirm its content.",
            hint="if a server of version 0.1.0 was killed while it made a release, start it once more with that "
            "version, which completes the ledger; otherwise restore the whole directory from one copy",
        )


# NumPy and zipfile raise these errors for damaged files. For example, they raise NotImplementedError for unknown
# compression methods, and RuntimeError for entries that are marked as encrypted.
UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_state(directory: Path) -> ServerState | None:
    """Return the state stored in a directory, or None if there is none. Does not check the authentication code."""
    path = directory / FILE
    if not file_exists(path):
        return None
    try:
        return _parse(read_file(path))
    except UNREADABLE as error:
        raise Corrupted(
            f"The server state {path} cannot be read: {error}.", hint="restore the whole directory from one copy"
        ) from error


def _parse(data: bytes) -> ServerState:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        meta = json.loads(archive[META].tobytes())
        model, optimizer = (
            {name: archive[f"{part}-{i}"] for i, name in enumerate(meta["names"][part])} for part in PARTS
        )
        code = archive[CODE].tobytes() if CODE in archive.files else b""
    release = meta["release"]
    if type(release) is not int or not 0 <= release <= LARGEST_RELEASE:
        raise ValueError("its release index is not a valid number")
    return ServerState(release, model, optimizer, tuple(meta["clients"]), meta["counts"], code)
