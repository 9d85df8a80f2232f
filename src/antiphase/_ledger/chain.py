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

Entry = dict[str, Any]
START = b"\x00" * 32


@dataclass(frozen=True)
class Head:
    """The end of a chain: number of entries, size in bytes, and authentication code of all entries."""

    entries: int = 0
    size: int = 0
    code: bytes = START


class Chain:
    """Entries as lines "<json> <code>", code_i = HMAC-SHA256(key, code_{i-1} + json).

    **Guarantee**: opening the chain detects any entry before `kept` that was changed, inserted, moved or removed
    without the key. Entries after `kept` survive a crash if the operating system wrote them; everything from the first
    unauthentic line on is removed at the next write.

    The cost of appending does not depend on the length of the chain.

    Args:
        path: path of the file.
        key: authentication key.
        kept: a head, stored elsewhere, that the chain must contain.
        create: create the file.
        read_only: only read; another process may be appending entries.
    """

    def __init__(self, path: Path, key: bytes, kept: Head, *, create: bool = False, read_only: bool = False) -> None:
        self._path, self._key = path, key
        del key  # tracebacks may show the variables of this function
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        self._file = open_file(path, flags)
        self._close = weakref.finalize(self, os.close, self._file)
        self.failed = False
        size = os.fstat(self._file).st_size
        self.head = self._verify(kept)
        self.torn = max(size - self.head.size, 0)  # bytes after the last authentic entry

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
            os.ftruncate(self._file, self.head.size)  # the next line must not follow a partial one
            raise
        self.head = Head(self.head.entries + 1, self.head.size + len(line), code)

    def sync(self) -> None:
        """Flush all entries to disk, and check that the file contains nothing else."""
        self._prepare_to_write()
        self._check_size(self.head.size)
        os.fsync(self._file)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries up to the head, verifying them again."""
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
                f"A write to the ledger {self._path.name} failed, and it is unknown how much of it is on disk.",
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
                f"The ledger {self._path.name} was written by another process.",
                hint="close all processes that use this run; treat everything they released as released",
            )

    def _verify(self, kept: Head) -> Head:
        """Return the head of the authentic lines; raise if they do not include `kept`."""
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
        """Yield text, code and end of each line, up to the first incomplete or unauthentic one."""
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


def _code(key: bytes, before: bytes, text: bytes) -> bytes:
    return hmac.digest(key, before + text, hashlib.sha256)
