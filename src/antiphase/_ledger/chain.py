"""An append-only file in which each entry is authenticated together with all previous entries."""

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

from antiphase._durable import check_in_place, open_file
from antiphase._errors import Corrupted, Refused
from antiphase._traceback import without_locals

Entry = dict[str, Any]
START = b"\x00" * 32


@dataclass(frozen=True)
class Head:
    """The end of a chain: number of entries, size in bytes, and authentication code of the last entry."""

    entries: int = 0
    size: int = 0
    code: bytes = START


class Chain:
    """An append-only file of entries. Line i is "<json> <code_i>", with code_i = HMAC-SHA256(key, code_{i-1} + json).

    **Guarantee**: opening the chain raises `Corrupted` if any entry up to the head `kept` was changed, inserted, moved
    or removed without the key. Entries after `kept` survive a crash if the operating system wrote them to disk. The
    next write removes the first line that is incomplete or not authentic, and everything after it.

    The cost of appending does not depend on the length of the chain.

    Args:
        path: path of the file.
        key: authentication key.
        kept: head that was stored in a separate file. The chain must contain all entries up to this head.
        create: whether to create the file if it is missing.
        read_only: if true, open for reading only. Another process may be appending entries.
    """

    @without_locals
    def __init__(self, path: Path, key: bytes, kept: Head, *, create: bool = False, read_only: bool = False) -> None:
        self._path, self._key = path, key
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        self._file = open_file(path, flags)
        self._close = weakref.finalize(self, os.close, self._file)
        self.failed = False
        size = os.fstat(self._file).st_size
        self.head = self._verify(kept)
        self.torn = max(size - self.head.size, 0)  # bytes after the last authentic entry

    @without_locals
    def append(self, entry: Entry) -> None:
        """Append one entry. It reaches the operating system immediately and the disk at the next `sync`."""
        text = json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        code = _code(self._key, self.head.code, text)
        line = text + b" " + code.hex().encode() + b"\n"
        self._prepare_to_write()
        try:
            _write(self._file, line)
        except BaseException:
            self.failed = True
            os.ftruncate(self._file, self.head.size)  # remove a partially written line
            raise
        self.head = Head(self.head.entries + 1, self.head.size + len(line), code)

    def sync(self) -> None:
        """Flush all entries to disk. Raises `Corrupted` if the file contains anything except these entries."""
        self._prepare_to_write()
        self._check_size(self.head.size)
        os.fsync(self._file)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries up to the head. Each entry is authenticated again."""
        for text, _, end in self._authentic_lines():
            if end > self.head.size:
                return
            yield json.loads(text)

    def close(self) -> None:
        """Close the file. Call `sync` first to flush its entries to disk."""
        self._close()

    def _prepare_to_write(self) -> None:
        if not self._close.alive:
            raise Refused("The ledger is closed.", hint="open the run again with Run.open")
        if self.failed:
            raise Refused(
                f"A write to the ledger {self._path.name} failed, and it is unknown how much data reached the disk.",
                hint="close the run, find out why the write failed, and open the run again",
            )
        check_in_place(self._path, self._file)
        if self.torn:
            self._check_size(self.head.size + self.torn)
            os.ftruncate(self._file, self.head.size)
            self.torn = 0

    def _check_size(self, size: int) -> None:
        if os.fstat(self._file).st_size != size:
            raise Corrupted(
                f"The ledger {self._path.name} was changed by another process.",
                hint="stop all processes that use this run, and assume that every step they computed was released",
            )

    def _verify(self, kept: Head) -> Head:
        """Return the head after all authentic lines. Raises `Corrupted` if these lines do not reach `kept`."""
        head, proved = Head(), kept.entries == 0
        for _, code, end in self._authentic_lines():
            head = Head(head.entries + 1, end, code)
            proved = proved or (head.entries == kept.entries and hmac.compare_digest(code, kept.code))
        if not proved:
            raise Corrupted(
                f"The ledger {self._path.name} does not match its stored head: it should have at least {kept.entries} "
                f"entries, but only {head.entries} are authentic.",
                hint="it was edited or truncated, or the secret belongs to another run; restore the run directory from "
                "a copy, or use the secret of this run",
            )
        return head

    def _authentic_lines(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield (text, code, end offset in bytes) of each line before the first incomplete or unauthentic line."""
        code, end = START, 0
        with os.fdopen(open_file(self._path), "rb") as file:
            check_in_place(self._path, self._file)
            for line in file:
                text, _, given = line.rstrip(b"\n").rpartition(b" ")
                code = _code(self._key, code, text)
                if not line.endswith(b"\n") or not hmac.compare_digest(code.hex().encode(), given):
                    return
                end += len(line)
                yield text, code, end


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


@without_locals
def _code(key: bytes, before: bytes, text: bytes) -> bytes:
    return hmac.digest(key, before + text, hashlib.sha256)
