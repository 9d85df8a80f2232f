"""The settings of a stream, and its state file: settings and position in the header, then the encrypted state."""

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
    """The leaves, run id and dtype of a stream, and how its noise is computed."""

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
    leaves: Leaves, run_id: str, dtype: DTypeLike, source: SourceName, lookahead: int | None, regenerate: bool
) -> Settings:
    """Check the arguments and return them as settings."""
    run_id = _check.text("NoiseStream", "run_id", run_id, "every run needs its own run_id")
    if lookahead is not None:
        lookahead = _check.positive_integer(
            "NoiseStream", "lookahead", lookahead, "1 computes each step when it is requested"
        )
    if not isinstance(regenerate, bool):
        raise _check.invalid("NoiseStream", "regenerate", "True or False", regenerate, "False stores old z in memory")
    return Settings(named(leaves), run_id, checked_dtype(dtype), check_source(source), lookahead, regenerate)


def checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype, and check that it is float32 or float64 in native byte order."""
    hint = "for gradients of lower precision, use float32"
    try:
        made = np.dtype(dtype)
    except TypeError:
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", dtype, hint) from None
    if made not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", made.name, hint)
    return made


def write_state(path: Path, header: Header, state: NDArray[Any], secret: Secret) -> None:
    """Write the state to `path` atomically: a crash at any time leaves either the old file or the new one."""
    try:
        write_sealed(regular_target(path), KIND, secret, header, [state])
    finally:
        del state  # tracebacks may show local variables


def read_state(path: Path, secret: Secret, prepare: Callable[[Header], NDArray[Any]]) -> Header:
    """Pass the header to `prepare`, read the state into the array that it returns, and return the header.

    Raises `Corrupted` if the file was truncated, changed or written with another secret; do not use the array then.
    """
    return read_sealed(path, KIND, secret, lambda header: [prepare(header)])


def check_fits(path: Path, name: str, wanted: object, found: object) -> None:
    """Raise `Corrupted` if the file belongs to something else; a `wanted` of None accepts anything."""
    if wanted is not None and wanted != found:
        raise KIND.corrupted(path, f"it belongs to another {name} ({found}, not {wanted})")
