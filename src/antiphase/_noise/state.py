"""The file a stream is saved in: its settings and position in the header, and the state, sealed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from antiphase._durable import regular_target
from antiphase._sealed import Header, Kind, read_sealed, write_sealed
from antiphase._secret import Secret

__all__ = ["Header", "check_fits", "read_state", "write_state"]

KIND = Kind(
    name="noise state",
    magic=b"antiphase noise state, version 1\n",
    labels=("noise state",),
    owner="secret",
    hint="restore it from a backup, or replay with NoiseStream(..., start_step=...), which needs no file",
)


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
