"""Files that survive a crash: written whole or not at all, readable by their owner only, locked by one process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from antiphase._errors import Refused

OWNER_ONLY = 0o600


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a crash at any instant leaves the old file or the new one.

    The new file is on disk, and so is its name, when this returns. Its mode is owner-only.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Held by one live process; the operating system drops it when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, OWNER_ONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise Refused(
                f"Another live process holds the run directory {directory}.",
                hint="end that process first; two processes on one run would release a step twice",
            ) from error

    def release(self) -> None:
        """Let another process in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> DirectoryLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
