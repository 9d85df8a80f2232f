"""The files of a run directory, and the header that identifies the run.

- run.json: the header, with run id, plan fingerprint, leaves (parameter shapes), dtype and number of examples
- plan.json: the plan
- public/ledger.jsonl: the committed steps and the publications. This file is safe to show.
- private/: the secret, noise states and batch sizes. Only the owner can read it. Store it apart from the model.
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
from antiphase._plan import Plan
from antiphase._record import from_json, parse_json
from antiphase._samplers import Sampler
from antiphase._secret import Secret

FORMAT = 1
DTYPES = ("float32", "float64", "int64")
LEDGERS = ("public/ledger.jsonl", "private/ledger.jsonl")
FILES = ("run.json", "plan.json", "private/secret", "private/heads", *LEDGERS)
LONGEST_FIRST_LINE = 4096


@dataclass(frozen=True)
class Header:
    """The properties of a run that never change.

    Args:
        format: version of the directory layout.
        run_id: id of the run.
        root: fingerprint of the plan that the run was started with.
        leaves: pairs of parameter name and shape, as JSON.
        dtype: dtype of the noise.
        examples: size of the data set; None if the run draws no batches.
    """

    format: int
    run_id: str
    root: str
    leaves: Any
    dtype: str
    examples: int | None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all fields. The ledger stores it, because the header file itself is not authenticated."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check(self, other: Header) -> None:
        """Raise `InvalidArgument` if any field of `other` except the run id differs from this header."""
        for name in ("format", "root", "leaves", "dtype", "examples"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs and name == "root":
                raise InvalidArgument(
                    f"The run directory was created for a different plan, with fingerprint {mine}. Got the plan with "
                    f"fingerprint {theirs} instead.",
                    hint="resume with the plan in plan.json of the run directory, or open a new directory",
                )
            if mine != theirs:
                raise InvalidArgument(
                    f"The run directory was created for {name} {mine!r}. Got {theirs!r} instead.",
                    hint="resume with the same plan and arguments, or open a new directory",
                )

    def sampler(self, plan: Plan, steps: int, secret: Secret) -> Sampler:
        """Return the sampler that draws the batches of the run, for a given number of steps."""
        if self.examples is None:
            raise InvalidArgument(
                "The run was opened without the number of examples, so it has no batches.",
                hint="open the run with examples=len(data_set)",
            )
        batches = secret.child("batches", self.run_id)
        return plan.mechanism.participation.sampler(self.examples, steps, batches)


def read_header(directory: Path) -> Header | None:
    """Read the stored header. Returns None if the directory holds no run yet."""
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
    """Raise `ValueError` if a field has an invalid type or value."""
    texts = (header.run_id, header.root, header.dtype)
    counts = (header.format,) if header.examples is None else (header.format, header.examples)
    if not all(isinstance(text, str) for text in texts) or not all(type(count) is int for count in counts):
        raise ValueError("a field has the wrong type")
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
    """Store the header. It is written last when a run is created, so a directory with a header holds a complete run."""
    write_atomically(directory / "run.json", (json.dumps(asdict(header), indent=1) + "\n").encode())


def fresh_run_id() -> str:
    """Generate a run id of 128 random bits, so that two runs never share noise, even with the same secret and plan."""
    return secrets.token_hex(16)


def made_directory(given: Any) -> Path:
    """Create the run directory if it is missing, and return its absolute path.

    The path is absolute because the working directory of the process may change.
    """
    try:
        path = Path(given).absolute()
        make_directory(path)
        found = path.is_dir()
    except (TypeError, ValueError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(
            f"The run directory {shown(str(given))} cannot be created or opened: {why}.",
            hint="pass the path of a directory that exists or can be created",
        ) from error
    if not found:
        raise InvalidArgument(f"{path} is not a directory.", hint="pass the path of a directory for this run only")
    return path


def check_layout(directory: Path) -> None:
    """Raise an error if a file of the run is not a regular file, or if others can access the private directory."""
    for name in ("public", "private"):
        if os.path.lexists(directory / name):
            check_directory(directory / name, private=name == "private")
    for name in FILES:
        file_exists(directory / name)


def check_no_run(directory: Path) -> None:
    """Raise `Corrupted` if a directory without a header holds files of a run.

    Files left by a process that was killed while it was creating a run are allowed.
    """
    traces = [name for name in FILES if file_exists(directory / name) and _is_of_a_run(directory / name)]
    traces += [f"private/{path.name}" for name in ("noise-*", "shard-*") for path in (directory / "private").glob(name)]
    if traces:
        raise Corrupted(
            f"The header run.json is missing, but {directory} holds files of a run: {', '.join(traces)}.",
            hint="restore run.json and all other missing files from a copy, or open another directory",
        )


def clear_unfinished(directory: Path) -> None:
    """Remove the ledger left by a process that was killed while it was creating the run. Call `check_no_run` first."""
    for name in ("private/heads", *LEDGERS):
        (directory / name).unlink(missing_ok=True)


def clear_temporary(directory: Path) -> None:
    """Remove temporary files that interrupted writes left in the directory. The caller must hold the run's lock."""
    shards = [path for path in (directory / "private").glob("shard-*") if path.is_dir() and not path.is_symlink()]
    for place in (directory, directory / "private", *shards):
        remove_unfinished(place)


def own_secret(directory: Path, *, create: bool) -> Secret:
    """Return the secret stored in the directory. If `create`, generate and store a new secret first.

    If `create`, an existing secret file is replaced: no run has used the old secret, and whoever put it there knows it.
    """
    path = directory / "private" / "secret"
    if create:
        make_private_directory(path.parent)
        path.unlink(missing_ok=True)
        secret = Secret.generate()
        secret.save(path)
        return secret  # not read back: the file may have been replaced since
    if not file_exists(path):
        raise Corrupted(
            "The run's secret is missing: private/secret.",
            hint="restore private/secret, or pass the secret that the run was created with",
        )
    return Secret.load(path)


def _is_of_a_run(path: Path) -> bool:
    """Return whether a file shows that a run was started.

    A ledger shows it with an entry after the opening entry. The file private/heads, which counts the entries of both
    ledgers, shows it if it counts such an entry or cannot be parsed. No other file shows it.
    """
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
            file.readline(LONGEST_FIRST_LINE)  # the opening entry
        return file.read(1) != b""
