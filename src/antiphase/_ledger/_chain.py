"""An append-only file of entries, each authenticated together with all before it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase._durable import BINARY, NOFOLLOW, OWNER_ONLY
from antiphase._errors import Corrupted, Refused

Entry = dict[str, Any]
START = b"\x00" * 32


@dataclass(frozen=True)
class Head:
    """Where a chain stands: how many entries, how many bytes, and the code over all of them."""

    entries: int = 0
    size: int = 0
    code: bytes = START


class Chain:
    """Entries as lines "<json> <code>", code_i = HMAC-SHA256(key, code_{i-1} + json).

    **Guarantee**: without the key no entry can be changed, inserted, moved or dropped before the head that was
    last kept elsewhere without the next opening noticing. Entries after that head survive a crash where the operating
    system wrote them; from the first line there that is not authentic the rest is cut off.

    Appending costs the same however long the chain is.
    """

    def __init__(self, path: Path, key: bytes, kept: Head) -> None:
        self._path, self._key = path, key
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | NOFOLLOW | BINARY, OWNER_ONLY)
        self._close = weakref.finalize(self, os.close, self._file)
        self.head = self._verify(kept)
        os.ftruncate(self._file, self.head.size)

    def append(self, entry: Entry) -> None:
        """Add one entry; it reaches the operating system at once and the disk at `sync`."""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        code = _code(self._key, self.head.code, text)
        line = text + b" " + code.hex().encode() + b"\n"
        self._check_open()
        try:
            _write(self._file, line)
        except BaseException:
            os.ftruncate(self._file, self.head.size)  # no half line may stand before the next one
            raise
        self.head = Head(self.head.entries + 1, self.head.size + len(line), code)

    def sync(self) -> None:
        """Return when every entry is on disk and nothing else is in the file."""
        self._check_open()
        if os.fstat(self._file).st_size != self.head.size:
            raise Corrupted(
                f"The ledger {self._path.name} was written by another process.",
                hint="close all processes on this run; what they released must be treated as released",
            )
        os.fsync(self._file)

    def entries(self) -> Iterator[Entry]:
        """All entries up to the head, verified again as they are read."""
        for text, _, end in _authentic_lines(self._path, self._key):
            if end > self.head.size:
                return
            yield json.loads(text)

    def close(self) -> None:
        """Sync and close."""
        try:
            self.sync()
        finally:
            self._close()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise Refused("The ledger is closed.", hint="open the run again with Run.open")

    def _verify(self, kept: Head) -> Head:
        """The head of the authentic lines, which must contain the kept head."""
        head, proved = Head(), kept.entries == 0
        for _, code, end in _authentic_lines(self._path, self._key):
            head = Head(head.entries + 1, end, code)
            proved = proved or (head.entries == kept.entries and hmac.compare_digest(code, kept.code))
        if not proved:
            raise Corrupted(
                f"The ledger {self._path.name} is not the one that was kept: of its {kept.entries} entries or more "
                f"{head.entries} are authentic.",
                hint="it was edited or cut short, or the secret is another one; restore it from a copy",
            )
        return head


def _authentic_lines(path: Path, key: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Text, code and end of each line, up to the first that is torn or not authentic."""
    code, end = START, 0
    with path.open("rb") as file:
        for line in file:
            text, _, given = line.rstrip(b"\n").rpartition(b" ")
            code = _code(key, code, text)
            if not line.endswith(b"\n") or not hmac.compare_digest(code.hex().encode(), given):
                return
            end += len(line)
            yield text, code, end


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _code(key: bytes, before: bytes, text: bytes) -> bytes:
    return hmac.digest(key, before + text, hashlib.sha256)
