"""Files that survive a crash: written whole or not at all, readable by their owner only, locked by one process."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from antiphase._errors import Refused

OWNER_ONLY = 0o600


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a crash at any instant leaves the old file or the new one.

    The new file is on disk, and so is its name, when this returns. Its mode is owner-only.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, OWNER_ONLY)
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


def make_directory(path: Path, mode: int = 0o755) -> None:
    """A directory whose name is on disk when this returns; missing parents are made too."""
    if path.exists():
        return
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Held by one live process; the operating system drops it when the process ends, however it ends.

    The directory itself is locked, so there is no lock file to remove. A forked child shares the lock but is refused.
    """

    def __init__(self, directory: Path) -> None:
        self._owner = os.getpid()
        self._descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise Refused(
                f"Another live process holds the run directory {directory}.",
                hint="end that process first; two processes on one run would release a step twice",
            ) from error

    def check(self) -> None:
        """Raise where the lock was released or belongs to the parent of this process."""
        if self._descriptor < 0:
            raise Refused("The run is closed.", hint="open it again with Run.open")
        if os.getpid() != self._owner:
            raise Refused(
                "The run belongs to the parent of this process.",
                hint="use it in the process that opened it; a forked copy would release a step twice",
            )

    def release(self) -> None:
        """Let another process in."""
        if self._descriptor >= 0:
            if os.getpid() == self._owner:  # explicitly, since a forked child that lives on keeps the descriptor open
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1
