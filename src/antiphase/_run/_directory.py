"""The files of a run directory, and the header that says which run it is.

- run.json: run id, plan fingerprint, leaves, dtype, examples
- plan.json: the plan
- public/ledger.jsonl: what was released; safe to show
- private/: the secret, the noise state, batch sizes; owner-only, to be kept apart from the model
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase._check import shown
from antiphase._durable import make_directory, write_atomically
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._ledger import ledger_exists
from antiphase._noise import Leaf
from antiphase._record import from_json, parse_json
from antiphase._secret import Secret

FORMAT = 1
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Header:
    """What must stay the same for the whole life of a run."""

    format: int
    run_id: str
    root: str
    leaves: Any
    dtype: str
    examples: int | None

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all of it; the ledger keeps it, since the file itself is not authenticated."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check(self, other: Header) -> None:
        """Refuse to resume where anything but the run id differs."""
        for name in ("format", "root", "leaves", "dtype", "examples"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InvalidArgument(
                    f"The run directory was made for {name} {mine!r}. Got {theirs!r} instead.",
                    hint="resume with the same plan and arguments, or open a new directory",
                )


def read_header(directory: Path) -> Header | None:
    """The stored header, or None where the directory holds no run yet."""
    path = directory / "run.json"
    if not path.exists():
        return None
    try:
        header = Header(**parse_json(path.read_bytes()))
        _check_fields(header)
    except (ValueError, TypeError) as error:
        why = error.message if isinstance(error, InvalidArgument) else f"{error}."
        raise Corrupted(f"The header {path.name} cannot be read: {why}", hint="restore it from a copy") from error
    return header


def _check_fields(header: Header) -> None:
    """Raise ValueError where a field has a type or a value that no run writes."""
    texts = (header.run_id, header.root, header.dtype)
    counts = (header.format,) if header.examples is None else (header.format, header.examples)
    if not all(isinstance(text, str) for text in texts) or not all(type(count) is int for count in counts):
        raise ValueError("a field has a value of another type")
    if header.format != FORMAT:
        raise ValueError(f"its format is {shown(header.format)}, and this version reads {FORMAT}")
    if header.dtype not in DTYPES:
        raise ValueError(f"its dtype is {shown(header.dtype)}, not one of {', '.join(DTYPES)}")
    if not isinstance(header.leaves, list) or not all(_is_named_leaf(item) for item in header.leaves):
        raise ValueError("its leaves are not pairs of a name and a shape")


def _is_named_leaf(item: Any) -> bool:
    return (
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(from_json(item[1]), Leaf)
    )


def write_header(directory: Path, header: Header) -> None:
    """Store the header, the last file of a new run: from then on the directory holds one."""
    write_atomically(directory / "run.json", (json.dumps(asdict(header), indent=1) + "\n").encode())


def fresh_run_id() -> str:
    """128 random bits: no two runs share noise, even with one secret and one plan."""
    return secrets.token_hex(16)


def clear_unfinished(directory: Path) -> None:
    """Remove what a crash while making the run left; a ledger in which anything happened is kept and refused."""
    if not ledger_exists(directory):
        return
    public = directory / "public" / "ledger.jsonl"
    if public.exists() and public.read_bytes().count(b"\n") > 1:
        raise Corrupted(
            "The header run.json is missing, but the directory holds the ledger of a run.",
            hint="restore run.json from a copy, or open another directory",
        )
    (directory / "private" / "heads").unlink()
    shutil.rmtree(directory / "public")
    (directory / "private" / "ledger.jsonl").unlink(missing_ok=True)


def own_secret(directory: Path, *, create: bool) -> Secret:
    """The secret kept in the directory; for a new run it is made where there is none."""
    path = directory / "private" / "secret"
    if not path.exists():
        if not create:
            raise Corrupted(
                "The run's own secret is missing.", hint="restore private/secret, or pass the secret it was made with"
            )
        make_directory(path.parent, 0o700)
        Secret.generate().save(path)
    return Secret.load(path)
