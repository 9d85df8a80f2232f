"""The ledger of a run: what was released, authenticated, in a public and a private part."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from antiphase._durable import make_directory, sync_directory, write_atomically
from antiphase._errors import Corrupted
from antiphase._ledger._chain import Chain, Entry, Head
from antiphase._secret import Secret

__all__ = ["Entry", "Ledger", "ledger_exists"]

PARTS = ("public", "private")


class Ledger:
    """Two authenticated chains of entries and the file that keeps their heads.

    The public chain says which steps were released and when something was published; the private one holds what
    amplification needs secret: batch sizes, batch digests and who took part. The heads are kept in the private
    part, so that a chain cut short is noticed as well as one rewritten.

    **Guarantee**: entries that `keep` has returned for are on disk, and no later `Ledger` on this directory accepts
    chains without them, or with others in their place. Not noticed is a directory put back to an older state as a
    whole (the head file with the chains): keep a copy of the heads elsewhere if that must be noticed too.

    Args:
        directory: the run directory; `public` and `private` below it are made.
        secret: authenticates; whoever holds it could forge entries.
        run_id: enters the key, so that the chains of two runs cannot be exchanged.
        create: whether to begin a new ledger; there must be none, and otherwise there must be one.
    """

    def __init__(self, directory: Path, secret: Secret, run_id: str, *, create: bool) -> None:
        self._key = secret.derive("antiphase ledger", run_id)
        self._heads = directory / "private" / "heads"
        for part in PARTS:
            make_directory(directory / part, 0o700 if part == "private" else 0o755)
        if create == ledger_exists(directory):
            raise Corrupted(
                "The ledger is missing." if not create else "There is a ledger here already, but no header of its run.",
                hint="restore the run directory from a copy; a run without its ledger could repeat its noise",
            )
        heads = (Head(), Head()) if create else self._read_heads()
        self.public, self.private = (
            Chain(directory / part / "ledger.jsonl", self._subkey(part), head)
            for part, head in zip(PARTS, heads, strict=True)
        )
        if create:
            self.keep()
            sync_directory(directory / "public")

    def keep(self) -> None:
        """Return when every entry so far is on disk and the heads that prove it are kept."""
        self.public.sync()
        self.private.sync()
        data = json.dumps([_head_to_json(chain.head) for chain in (self.public, self.private)]).encode()
        code = hmac.digest(self._subkey("heads"), data, hashlib.sha256).hex().encode()
        write_atomically(self._heads, data + b"\n" + code + b"\n")

    def close(self) -> None:
        """Keep, then close both files."""
        try:
            self.keep()
        finally:
            try:
                self.public.close()
            finally:
                self.private.close()

    def _read_heads(self) -> tuple[Head, Head]:
        data, _, code = self._heads.read_bytes().rstrip(b"\n").rpartition(b"\n")
        expected = hmac.digest(self._subkey("heads"), data, hashlib.sha256).hex().encode()
        if not hmac.compare_digest(expected, code):
            raise Corrupted(
                "The kept heads of the ledger are not authentic.",
                hint="the file was edited or cut short, or the secret belongs to another run",
            )
        public, private = json.loads(data)
        return _head_from_json(public), _head_from_json(private)

    def _subkey(self, label: str) -> bytes:
        return hmac.digest(self._key, label.encode(), hashlib.sha256)


def ledger_exists(directory: Path) -> bool:
    """Whether a run directory holds a ledger, by the file that keeps its heads."""
    return (directory / "private" / "heads").exists()


def _head_to_json(head: Head) -> dict[str, Any]:
    return {"entries": head.entries, "size": head.size, "code": head.code.hex()}


def _head_from_json(data: dict[str, Any]) -> Head:
    return Head(data["entries"], data["size"], bytes.fromhex(data["code"]))
