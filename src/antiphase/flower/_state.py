"""The server's state file: model, optimizer state, release index and participants, replaced by one atomic rename.

The rename makes the release: before it the release does not exist; after it exactly these bytes are broadcast, however
often the server is killed. The file is an .npz archive, and its `digest` is in the ledger.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np

from antiphase._durable import file_exists, read_file, write_atomically
from antiphase._errors import Corrupted
from antiphase._run import digest
from antiphase.flower._wire import Arrays

FILE = "state.npz"
META = "meta"
PARTS = ("model", "optimizer")


@final
@dataclass(frozen=True)
class ServerState:
    """The server's state after `release` releases.

    Args:
        release: number of releases made, and so the index of the next one.
        model: the model to broadcast next.
        optimizer: state of the server optimizer.
        clients: names in the ledger of the clients that took part in the last release.
        counts: what happened to replies since the previous release.
    """

    release: int
    model: Arrays
    optimizer: Arrays
    clients: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the whole state."""
        return digest(self._entries())

    def write(self, directory: Path) -> ServerState:
        """Replace the file atomically, and return the state as read back from what was written.

        The result shares no memory with this state: what is digested and broadcast later is what was written, even if
        an optimizer keeps using the arrays that it returned.
        """
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **self._entries())
        data = buffer.getvalue()
        written = _parse(data)
        write_atomically(directory / FILE, data)
        return written

    def _entries(self) -> Arrays:
        parts = {part: getattr(self, part) for part in PARTS}
        names = {part: list(arrays) for part, arrays in parts.items()}
        meta = {"release": self.release, "clients": self.clients, "counts": self.counts, "names": names}
        entries = {META: np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)}
        for part, arrays in parts.items():
            entries |= {f"{part}-{i}": array for i, array in enumerate(arrays.values())}
        return entries


def read_state(directory: Path) -> ServerState | None:
    """Return the stored state, or None if there is none."""
    path = directory / FILE
    if not file_exists(path):
        return None
    try:
        return _parse(read_file(path))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise Corrupted(
            f"The server state {path} cannot be read: {error}.", hint="restore the whole directory from one copy"
        ) from error


def _parse(data: bytes) -> ServerState:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        meta = json.loads(archive[META].tobytes())
        model, optimizer = (
            {name: archive[f"{part}-{i}"] for i, name in enumerate(meta["names"][part])} for part in PARTS
        )
    return ServerState(meta["release"], model, optimizer, tuple(meta["clients"]), meta["counts"])
