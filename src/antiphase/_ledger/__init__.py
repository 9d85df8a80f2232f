"""The ledger of a run: an authenticated record of its steps and publications, with public and private parts."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from antiphase._durable import (
    check_directory,
    file_exists,
    make_directory,
    make_private_directory,
    read_file,
    sync_directory,
    write_atomically,
)
from antiphase._errors import Corrupted
from antiphase._ledger.chain import Chain, Entry, Head
from antiphase._secret import Secret
from antiphase._traceback import without_locals

__all__ = ["Entry", "Ledger", "ledger_exists"]

PARTS = ("public", "private")


class Ledger:
    """Two authenticated chains of entries and a file with their heads.

    The public chain of a run records which steps were committed and when something was published. The private chain
    records what must stay secret for privacy amplification: batch sizes, batch digests and, for a federated run, which
    clients took part. The head of a chain is its number of entries, its size and its last authentication code. The
    heads are stored in the private part, so that truncated chains are detected as well as modified ones.

    **Guarantee**: when `keep` returns, all entries so far are on disk. A later `Ledger` on this directory raises an
    error if one of these entries is missing or replaced. Opening an existing ledger does not change it. The first write
    removes incomplete data that a crash left after the last authentic entry. After a failed write, every further write
    raises an error until the ledger is opened again. A ledger cannot detect that the whole directory (heads and chains)
    was restored from an older copy. To detect such a rollback, store a copy of the heads elsewhere.

    Args:
        directory: the run directory. With `create`, its subdirectories `public` and `private` are created.
        secret: secret that authenticates the entries; anyone who has it can forge entries.
        run_id: part of the authentication key, so that the chains of two runs cannot be swapped.
        create: whether to start a new ledger instead of opening an existing one. Raises `Corrupted` if a new ledger
            would replace an existing one, or if a file of an existing ledger is missing.
        read_only: if true, open for reading only. Another process may be using the ledger at the same time.
    """

    @without_locals
    def __init__(self, directory: Path, secret: Secret, run_id: str, *, create: bool, read_only: bool = False) -> None:
        self._key = secret.derive("antiphase ledger", run_id)
        self._heads, self._read_only = directory / "private" / "heads", read_only
        if create:
            make_directory(directory / "public")
            make_private_directory(directory / "private")
            _check_new(directory)
        else:
            _check_whole(directory)
        check_directory(directory / "public")
        check_directory(directory / "private", private=True)
        # Read the heads before the chains, because another process may be appending to the chains.
        heads = (Head(), Head()) if create else self._read_heads()
        self.public, self.private = (
            Chain(_file(directory, part), self._subkey(part), head, create=create, read_only=read_only)
            for part, head in zip(PARTS, heads, strict=True)
        )
        if create:
            self.keep()
            sync_directory(directory / "public")

    @without_locals
    def keep(self) -> None:
        """Write all entries so far, and the heads that authenticate them, to disk before returning."""
        try:
            self.public.sync()
            self.private.sync()
            data = json.dumps([_head_to_json(chain.head) for chain in (self.public, self.private)]).encode()
            write_atomically(self._heads, data + b"\n" + self._code(data) + b"\n")
        except BaseException:
            # The operating system may report a failed write only once, so no later write can be trusted.
            self.public.failed = self.private.failed = True
            raise

    def close(self) -> None:
        """Call `keep`, unless an earlier write failed, then close both files."""
        try:
            if not (self._read_only or self.public.failed or self.private.failed):
                self.keep()
        finally:
            self.public.close()
            self.private.close()

    def _read_heads(self) -> tuple[Head, Head]:
        data, _, code = read_file(self._heads).rstrip(b"\n").rpartition(b"\n")
        if not hmac.compare_digest(self._code(data), code):
            raise Corrupted(
                "The stored heads of the ledger are not authentic.",
                hint="the file was edited or truncated, or the secret belongs to another run; restore the run "
                "directory from a copy, or use the secret of this run",
            )
        public, private = json.loads(data)
        return _head_from_json(public), _head_from_json(private)

    def _code(self, heads: bytes) -> bytes:
        return hmac.digest(self._subkey("heads"), heads, hashlib.sha256).hex().encode()

    def _subkey(self, label: str) -> bytes:
        return hmac.digest(self._key, label.encode(), hashlib.sha256)


def ledger_exists(directory: Path) -> bool:
    """Return whether a run directory contains a ledger, that is, the file with its heads."""
    return file_exists(directory / "private" / "heads")


def _file(directory: Path, part: str) -> Path:
    return directory / part / "ledger.jsonl"


def _check_whole(directory: Path) -> None:
    files = (directory / "private" / "heads", *(_file(directory, part) for part in PARTS))
    missing = [f"{path.parent.name}/{path.name}" for path in files if not file_exists(path)]
    if missing:
        raise Corrupted(
            f"The ledger in {directory} is incomplete. Missing: {', '.join(missing)}.",
            hint="restore the run directory from a copy; a run without its ledger could repeat its noise",
        )


def _check_new(directory: Path) -> None:
    """Raise `Corrupted` if there is a ledger. Empty files are allowed: a process killed before `keep` leaves them."""
    found = [path for part in PARTS if file_exists(path := _file(directory, part)) and path.stat().st_size > 0]
    if found or ledger_exists(directory):
        raise Corrupted(
            f"There is already a ledger in {directory}, but other files of its run are missing.",
            hint="restore the whole directory from a copy, or start a new run in another directory",
        )


def _head_to_json(head: Head) -> dict[str, Any]:
    return {"entries": head.entries, "size": head.size, "code": head.code.hex()}


def _head_from_json(data: dict[str, Any]) -> Head:
    return Head(data["entries"], data["size"], bytes.fromhex(data["code"]))
