"""The server's state file: model, optimizer and release index, with who took part, in one atomic rename.

It is the moment of a release: before the rename nothing of it exists, after it these bytes are what is broadcast,
however often the server is killed. An .npz archive; `digest` ties it to the ledger.
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
class State:
    """What the server has after `release` releases.

    Args:
        release: how many releases were made, and so the index of the next one.
        model: what is broadcast next.
        optimizer: the state of the server optimizer.
        clients: who took part in the last release, by the names that the ledger uses.
        counts: what happened to replies since the release before.
    """

    release: int
    model: Arrays
    optimizer: Arrays
    clients: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """SHA-256 over all of it."""
        return digest(self._entries())

    def write(self, directory: Path) -> State:
        """Replace the file; a crash at any instant leaves the old one or the new one.

        Gives the state as the file has it, which shares no memory with this one: what is digested and broadcast later
        is what was written, also where an optimizer goes on using the arrays that it returned.
        """
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **self._entries())
        data = buffer.getvalue()
        written = _parsed(data)
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


def read_state(directory: Path) -> State | None:
    """The stored state, or None where there is none."""
    path = directory / FILE
    if not file_exists(path):
        return None
    try:
        return _parsed(read_file(path))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise Corrupted(f"The server's state {path} cannot be read: {error}.", hint="restore it from a copy") from error


def _parsed(data: bytes) -> State:
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        meta = json.loads(archive[META].tobytes())
        model, optimizer = (
            {name: archive[f"{part}-{i}"] for i, name in enumerate(meta["names"][part])} for part in PARTS
        )
    return State(meta["release"], model, optimizer, tuple(meta["clients"]), meta["counts"])
