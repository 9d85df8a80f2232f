"""The files of a run directory, and the header that says which run it is.

- run.json: run id, plan fingerprint, leaves, dtype, examples
- plan.json: the plan
- public/ledger.jsonl: what was released; safe to show
- private/: the secret, the noise state, batch sizes; owner-only, to be kept apart from the model
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase._check import shown
from antiphase._durable import (
    check_directory,
    file_exists,
    make_directory,
    make_private_directory,
    open_file,
    read_file,
    remove_unfinished,
    write_atomically,
)
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._noise import Leaf
from antiphase._record import from_json, parse_json
from antiphase._secret import Secret

FORMAT = 1
DTYPES = ("float32", "float64")
LEDGERS = ("public/ledger.jsonl", "private/ledger.jsonl")
FILES = ("run.json", "plan.json", "private/secret", "private/heads", *LEDGERS)
LONGEST_FIRST_LINE = 4096


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
    if not file_exists(path):
        return None
    try:
        header = Header(**parse_json(read_file(path)))
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


def made_directory(given: Any) -> Path:
    """The directory of a run, made where it is missing; absolute, since a program may change its working directory."""
    try:
        path = Path(given).absolute()
        make_directory(path)
        found = path.is_dir()
    except (TypeError, ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(
            f"The run directory {shown(str(given))} cannot be made or entered: {why}.",
            hint="give the path of a directory, or of one that can be made",
        ) from error
    if not found:
        raise InvalidArgument(f"{path} is not a directory.", hint="give the run a directory of its own")
    return path


def check_layout(directory: Path) -> None:
    """Refuse links, pipes and the like in place of a run's files, and a private directory that others can enter."""
    for name in ("public", "private"):
        if os.path.lexists(directory / name):
            check_directory(directory / name, private=name == "private")
    for name in FILES:
        file_exists(directory / name)


def check_no_run(directory: Path) -> None:
    """Refuse to begin a run in a directory without a header that holds more than a killed creation leaves."""
    traces = [name for name in FILES if file_exists(directory / name) and _is_of_a_run(directory / name)]
    traces += [f"private/{path.name}" for name in ("noise-*", "shard-*") for path in (directory / "private").glob(name)]
    if traces:
        raise Corrupted(
            f"The header run.json is missing, but {directory} holds files of a run: {', '.join(traces)}.",
            hint="restore run.json and all other missing files from a copy, or open another directory",
        )


def clear_unfinished(directory: Path) -> None:
    """Remove the ledger that a killed creation left; only after `check_no_run`."""
    for name in ("private/heads", *LEDGERS):
        (directory / name).unlink(missing_ok=True)


def clear_temporary(directory: Path) -> None:
    """Remove temporary files that killed writes left anywhere in a run directory; only under its lock."""
    shards = [path for path in (directory / "private").glob("shard-*") if path.is_dir() and not path.is_symlink()]
    for place in (directory, directory / "private", *shards):
        remove_unfinished(place)


def own_secret(directory: Path, *, create: bool) -> Secret:
    """The secret kept in the directory; for a new run it is made where there is none."""
    path = directory / "private" / "secret"
    if not file_exists(path):
        if not create:
            raise Corrupted(
                "The run's own secret is missing: private/secret.",
                hint="restore private/secret, or pass the secret it was made with",
            )
        make_private_directory(path.parent)
        Secret.generate().save(path)
    return Secret.load(path)


def _is_of_a_run(path: Path) -> bool:
    """Whether a file shows that a run was begun: heads or a ledger with more than the entry that opens it."""
    if path.name == "heads":
        try:
            public, private = json.loads(read_file(path).split(b"\n")[0])
            return bool(public["entries"] > 1 or private["entries"] > 0)
        except (ValueError, TypeError, KeyError):
            return True
    if path.name != "ledger.jsonl":
        return False
    with os.fdopen(open_file(path), "rb") as file:
        if path.parent.name == "public":
            file.readline(LONGEST_FIRST_LINE)  # the entry that opens the run
        return file.read(1) != b""
