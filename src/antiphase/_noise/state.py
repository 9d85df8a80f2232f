"""The settings of a stream, and the file that it is saved in: settings and position in the header, the state sealed."""

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
from antiphase._noise.source import SourceName
from antiphase._record import from_json, to_json
from antiphase._sealed import Header, Kind, read_sealed, write_sealed
from antiphase._secret import Secret

__all__ = ["Header", "Settings", "check_fits", "checked_dtype", "checked_settings", "read_state", "write_state"]

KIND = Kind(
    name="noise state",
    magic=b"antiphase noise state, version 1\n",
    labels=("noise state",),
    owner="secret",
    hint="restore it from a backup, or replay with NoiseStream(..., start_step=...), which needs no file",
)


@final
@dataclass(frozen=True)
class Settings:
    """Leaves, run id, dtype and how the noise is made."""

    leaves: dict[str, Leaf]
    run_id: str
    dtype: np.dtype[Any]
    source: SourceName
    lookahead: int | None
    regenerate: bool

    def to_header(self) -> dict[str, Any]:
        """As plain JSON."""
        leaves = [[name, to_json(leaf)] for name, leaf in self.leaves.items()]
        return {**vars(self), "leaves": leaves, "dtype": self.dtype.name}

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Settings:
        """The inverse of `to_header`."""
        kept = {name: header[name] for name in ("run_id", "source", "lookahead", "regenerate")}
        leaves = {name: from_json(leaf) for name, leaf in header["leaves"]}
        return cls(leaves=leaves, dtype=np.dtype(header["dtype"]), **kept)


def checked_settings(
    leaves: Leaves, run_id: str, dtype: DTypeLike, source: SourceName, lookahead: int | None, regenerate: bool
) -> Settings:
    """Settings from what a caller gave."""
    _check.text("NoiseStream", "run_id", run_id, "two runs need different ones")
    if lookahead is not None:
        lookahead = _check.positive_integer("NoiseStream", "lookahead", lookahead, "1 makes each step when asked for")
    if not isinstance(regenerate, bool):
        raise _check.invalid("NoiseStream", "regenerate", "True or False", regenerate, "False keeps old z in memory")
    return Settings(named(leaves), run_id, checked_dtype(dtype), source, lookahead, regenerate)


def checked_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """float32 or float64, in the byte order of the machine."""
    hint = "float32 noise serves gradients of lower precision too"
    try:
        made = np.dtype(dtype)
    except TypeError:
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", dtype, hint) from None
    if made not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise _check.invalid("NoiseStream", "dtype", "float32 or float64", made.name, hint)
    return made


def write_state(path: Path, header: Header, state: NDArray[Any], secret: Secret) -> None:
    """Replace `path` so that a crash at any instant leaves the old file or the new one."""
    try:
        write_sealed(regular_target(path), KIND, secret, header, [state])
    finally:
        del state  # tracebacks may show the variables of this function


def read_state(path: Path, secret: Secret, prepare: Callable[[Header], NDArray[Any]]) -> Header:
    """Give the header to `prepare`, which returns the array to read the state into, and read it.

    Raises `Corrupted` where the file was cut short, changed or written with another secret; the array must not be
    used then.
    """
    return read_sealed(path, KIND, secret, lambda header: [prepare(header)])


def check_fits(path: Path, name: str, wanted: object, found: object) -> None:
    """Refuse a file that belongs to something else; None wants nothing in particular."""
    if wanted is not None and wanted != found:
        raise KIND.corrupted(path, f"it belongs to another {name} ({found}, not {wanted})")
