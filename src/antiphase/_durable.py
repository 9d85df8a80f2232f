"""Files that survive a crash: written whole or not at all, readable by their owner only, locked by one process."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any

from antiphase._errors import InvalidArgument, Refused

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: plans and accounting need no lock, and runs say that they do
    fcntl = None

OWNER_ONLY = 0o600
SHARED = 0o666  # less what the umask takes away
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
BINARY = getattr(os, "O_BINARY", 0)  # on Windows alone


def write_atomically(path: Path, data: bytes, mode: int = OWNER_ONLY, like: os.stat_result | None = None) -> None:
    """Replace `path` by `data` so that a crash at any instant leaves the old file or the new one.

    The new file is on disk, and so is its name, when this returns. Its mode is owner-only, or `mode` less the umask, or
    exactly that of the file `like`.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if like is not None and hasattr(os, "fchmod"):  # not on Windows
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_output(path: Path, data: bytes, mode: int = SHARED) -> None:
    """Write a file that a user asked for, whatever there is at its path.

    | at the path | what happens |
    |---|---|
    | nothing, or a regular file | it is there as a whole afterwards, or as it was; an existing file keeps its mode |
    | a symbolic link | the same with what it leads to; the link stays |
    | a terminal, pipe or other character device | it is written to |
    | a directory, disk or socket | refused |

    Args:
        path: as the user gave it.
        data: all of it.
        mode: of a new file, less the umask.
    """
    found = check_output(path)
    target = Path(os.path.realpath(path))
    if found is None:
        write_atomically(target, data, mode)
    elif stat.S_ISREG(found.st_mode) and target.exists() and os.path.samestat(target.stat(), found):
        write_atomically(target, data, like=found)
    else:  # also a file without a name of its own any more, such as behind /dev/stdout
        with path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data)


def check_output(path: Path) -> os.stat_result | None:
    """Refuse a path that `write_output` cannot write to, before the work is done; what is there now, or None."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if not Path(os.path.realpath(path)).parent.is_dir():
            raise InvalidArgument(
                f"{path} cannot be written: there is no directory {path.parent}.", hint="choose one that exists"
            ) from None
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"Nothing can be written to {path}: {why}.", hint="give another path") from error
    if stat.S_ISDIR(found.st_mode):
        raise InvalidArgument(f"{path} is a directory.", hint="give the path of a file in it")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISCHR(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise InvalidArgument(
            f"{path} is neither a file nor a stream.", hint="give the path of a file; it would replace a disk or socket"
        )
    return found


def regular_target(path: Path) -> Path:
    """The path that an atomic write may replace: symbolic links followed; anything but a regular file is refused."""
    found = check_output(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"{path} is not a regular file.", hint="give the path of a file on disk")
    return Path(os.path.realpath(path))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def make_directory(path: Path, mode: int = 0o755) -> None:
    """A directory whose name is on disk when this returns; missing parents are made too."""
    if path.exists():
        return
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Put the names in a directory on disk; Windows does so by itself, and cannot be asked to."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_locks() -> None:
    """Refuse to go on where directories cannot be locked, as on Windows."""
    if fcntl is None:
        raise Refused(
            "Runs cannot be opened on this system: Python has no 'fcntl' here, which locks their directories.",
            hint="plan and account here, and train on Linux or macOS; on Windows use WSL",
        )


class DirectoryLock:
    """Held by one live process; the operating system drops it when the process ends, however it ends.

    The directory itself is locked, so there is no lock file to remove. A forked child shares the lock but is refused.
    """

    def __init__(self, directory: Path) -> None:
        require_locks()
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
