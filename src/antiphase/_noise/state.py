"""The settings of a stream, and its state file.

A state file has an unencrypted header with the settings and the current step, followed by the encrypted state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphase import _check
from antiphase._durable import regular_target
from antiphase._noise.leaves import Leaf, Leaves, named
from antiphase._noise.source import SourceName, check_source
from antiphase._record import from_json, to_json
from antiphase._sealed import Header, Kind, read_sealed, write_sealed
from antiphase._secret import Secret

__all__ = ["Header", "Settings", "check_fits", "checked_dtype", "checked_settings", "read_state", "write_state"]

KIND = Kind(
    name="noise state",
    magic=b"antiphase noise state, version 1\n",
    labels=("noise state",),
    owner="secret",
    hint="restore it from a backup, or replay the noise with NoiseStream(..., start_step=...), which needs no file",
)


@final
@dataclass(frozen=True)
class Settings:
    """The arguments of a stream: leaves, run id, dtype, source of random words, `lookahead` and `regenerate`."""

    leaves: dict[str, Leaf]
    run_id: str
    dtype: np.dtype[Any]
    source: SourceName
    lookahead: int | None
    regenerate: bool

    def to_header(self) -> dict[str, Any]:
        """Return the settings as plain JSON."""
        leaves = [[name, to_json(leaf)] for name, leaf in self.leaves.items()]
        return {**vars(self), "leaves": leaves, "dtype": self.dtype.name}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Settings:
        """Return the settings that `to_header` wrote."""
        kept = {name: header[name] for name in ("run_id", "source", "lookahead", "regenerate")}
        leaves = {name: from_json(leaf) for name, leaf in header["leaves"]}
        return cls(leaves=leaves, dtype=np.dtype(header["dtype"]), **kept)


def checked_settings(
    leaves: Leaves,
    run_id: str,
    dtype: DTypeLike | None,
    source: SourceName,
    lookahead: int | None,
    regenerate: bool,
    is_lattice: bool = False,
) -> Settings:
    """Check the arguments and return them as `Settings`. `is_lattice` is True if the noise is computed in integers."""
    run_id = _check.text("NoiseStream", "run_id", run_id, "use a different run_id for every run")
    if lookahead is not None:
        lookahead = _check.positive_integer(
            "NoiseStream", "lookahead", lookahead, "use 1 to compute each step when it is requested"
        )
    if not isinstance(regenerate, bool):
        raise _check.invalid(
            "NoiseStream", "regenerate", "True or False", regenerate, "use False to store old rows of z in memory"
        )
    if is_lattice and (lookahead is not None or regenerate):
        hint = "omit lookahead and regenerate, because lattice noise is always computed step by step from stored state"
        if regenerate:
            raise _check.invalid("NoiseStream", "regenerate", "False for lattice noise", regenerate, hint)
        raise _check.invalid("NoiseStream", "lookahead", "None for lattice noise", lookahead, hint)
    made = checked_dtype(dtype, is_lattice)
    return Settings(named(leaves), run_id, made, check_source(source), lookahead, regenerate)


def checked_dtype(dtype: DTypeLike | None, is_lattice: bool = False) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype; None means int64 for lattice noise and float32 otherwise.

    Raises `InvalidArgument` unless `dtype` is int64 for lattice noise, or native float32 or float64 otherwise.
    """
    if dtype is None:
        return np.dtype(np.int64 if is_lattice else np.float32)
    if is_lattice:
        if np.dtype(dtype) != np.dtype(np.int64):
            hint = "omit dtype; integrations that add floating-point noise need a plan without lattice=True"
            raise _check.invalid("NoiseStream", "dtype", "int64 for lattice noise", str(dtype), hint)
        return np.dtype(np.int64)
    hint = "for gradients of lower precision, use float32"
    try:
        made = np.dtype(dtype)
    except TypeError:
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", dtype, hint) from None
    if made not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", made.name, hint)
    return made


def write_state(path: Path, header: Header, arrays: list[NDArray[Any]], secret: Secret) -> None:
    """Write the state to `path` atomically: a crash at any time leaves either the old file or the new one."""
    try:
        write_sealed(regular_target(path), KIND, secret, header, arrays)
    finally:
        del arrays  # tracebacks may show local variables


def read_state(path: Path, secret: Secret, prepare: Callable[[Header], list[NDArray[Any]]]) -> Header:
    """Read a state file: pass its header to `prepare`, fill the arrays that `prepare` returns, and return the header.

    Raises `Corrupted` if the file was truncated, changed or written with a different secret. In that case, do not use
    the arrays.
    """
    return read_sealed(path, KIND, secret, prepare)


def check_fits(path: Path, name: str, wanted: object, found: object) -> None:
    """Raise `Corrupted` unless `found`, the value in the file, equals `wanted`. None for `wanted` accepts any value.

    `name` is the name of the value for the error message.
    """
    if wanted is not None and wanted != found:
        raise KIND.corrupted(path, f"it belongs to another {name} ({found}, not {wanted})")
