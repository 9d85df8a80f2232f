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

from antiphase._durable import OWNER_ONLY
from antiphase._errors import Corrupted

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
    last kept elsewhere without `open` noticing. Entries written after that head survive a crash where the
    operating system wrote them; a torn last line is cut off.

    Appending costs the same however long the chain is.
    """

    def __init__(self, path: Path, key: bytes, kept: Head) -> None:
        self._path, self._key = path, key
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNER_ONLY)
        self._close = weakref.finalize(self, os.close, self._file)
        self.head = self._verify(kept)
        os.truncate(path, self.head.size)

    def append(self, entry: Entry) -> None:
        """Add one entry; it reaches the operating system at once and the disk at `sync`."""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        code = _code(self._key, self.head.code, text)
        line = text + b" " + code.hex().encode() + b"\n"
        _write(self._file, line)
        self.head = Head(self.head.entries + 1, self.head.size + len(line), code)

    def sync(self) -> None:
        """Return when every entry is on disk."""
        os.fsync(self._file)

    def entries(self) -> Iterator[Entry]:
        """All entries up to the head, verified again as they are read."""
        for text, _ in _verified_lines(self._path, self._key, self.head.size):
            yield json.loads(text)

    def close(self) -> None:
        """Sync and close."""
        self.sync()
        self._close()

    def _verify(self, kept: Head) -> Head:
        """The head of the longest authentic chain in the file, which must contain the kept head."""
        count, size, code = 0, 0, START
        for text, line_code in _verified_lines(self._path, self._key, kept.size, torn_tail_allowed=True):
            count, size, code = count + 1, size + len(text) + len(line_code.hex()) + 2, line_code
            if count == kept.entries and not hmac.compare_digest(code, kept.code):
                break
        if count < kept.entries or (count == kept.entries and not hmac.compare_digest(code, kept.code)):
            raise Corrupted(
                f"The ledger {self._path.name} has lost entries: {count} of at least {kept.entries} are authentic.",
                hint="restore the file from a copy; a report on this run would prove nothing",
            )
        return Head(count, size, code)


def _verified_lines(
    path: Path, key: bytes, size: int, torn_tail_allowed: bool = False
) -> Iterator[tuple[bytes, bytes]]:
    """Each line's text and code, checked against the key; `size` is where a torn tail may begin."""
    code, position = START, 0
    with path.open("rb") as file:
        for line in file:
            if not torn_tail_allowed and position >= size:
                return
            text, _, given = line.rstrip(b"\n").rpartition(b" ")
            code = _code(key, code, text)
            if not line.endswith(b"\n") or not hmac.compare_digest(code.hex().encode(), given):
                if torn_tail_allowed and position >= size and not line.endswith(b"\n"):
                    return
                raise Corrupted(
                    f"The ledger {path.name} is not authentic at byte {position}.",
                    hint="it was edited, or the secret is not the one it was written with",
                )
            yield text, code
            position += len(line)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _code(key: bytes, before: bytes, text: bytes) -> bytes:
    return hmac.digest(key, before + text, hashlib.sha256)
