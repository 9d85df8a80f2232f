"""Crash-safe files: atomic writes, owner-only permissions, and directory locks."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from antiphase._errors import Corrupted, InvalidArgument, Refused

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: plans and accounting need no lock; `require_locks` raises an error for runs
    fcntl = None

OWNER_ONLY = 0o600
OTHERS = 0o077  # permissions of group and others
SHARED = 0o666  # mode of files that others may read, before the umask is applied
UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.new")  # temporary files that a killed process leaves; see `_temporary`
NO_LINKS, NO_WAITING = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)  # Windows has neither
BINARY = getattr(os, "O_BINARY", 0)  # exists only on Windows
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


# One pid for each fork between the process that imported this module and this process: the pid of the child. Empty in
# the process that imported this module.
_forks: list[int] = []
if hasattr(os, "register_at_fork"):  # false on Windows, which does not fork
    os.register_at_fork(after_in_child=lambda: _forks.append(os.getpid()))


def write_atomically(path: Path, data: bytes, mode: int = OWNER_ONLY, like: os.stat_result | None = None) -> None:
    """Write `data` to `path` atomically: a crash at any time leaves either the old file or the new one.

    When this returns, the new file and its directory entry are on disk. If `like`, the status of another file, is
    given, the new file gets exactly the mode of that file. Otherwise it gets `mode` (by default owner-only) minus the
    umask.
    """
    with replacing(path, mode, like) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, mode: int = OWNER_ONLY, like: os.stat_result | None = None) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the `with` block ends, with the guarantees of `write_atomically`."""
    temporary = _temporary(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS | BINARY, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if like is not None and hasattr(os, "fchmod"):  # Windows has no fchmod
                os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove temporary files that killed processes left in a directory. No other process may be writing to it."""
    with os.scandir(directory) as entries:
        found = [e.path for e in entries if UNFINISHED.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    for path in found:
        os.unlink(path)
    if found:
        sync_directory(directory)


def file_exists(path: Path) -> bool:
    """Return whether `path` exists. Raises `Corrupted` if it is a symbolic link or otherwise not a regular file."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    _check_regular(path, mode)
    return True


def open_file(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """Open a regular file and return its file descriptor.

    Raises `Corrupted` if `path` is not a regular file. The call never blocks, not even on a named pipe. Raises
    `FileNotFoundError` if the file is missing and `flags` do not include `O_CREAT`.

    Args:
        path: file to open.
        flags: as for `os.open`.
        follow: whether `path` may be a symbolic link. Files inside a run directory may not be.
    """
    try:
        _check_regular(path, (os.stat if follow else os.lstat)(path).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    try:
        descriptor = os.open(path, flags | NO_WAITING | BINARY | (0 if follow else NO_LINKS), OWNER_ONLY)
    except OSError as error:
        if error.errno == errno.ELOOP:  # the file was replaced by a link after the check
            raise _irregular(path, stat.S_IFLNK) from error
        raise
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    """Read a regular file that is not a symbolic link."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def write_output(path: Path, data: bytes, mode: int = SHARED) -> None:
    """Write an output file to a path given by the user.

    | existing file at `path` | what happens |
    |---|---|
    | none, or a regular file | the file is written atomically; an existing file keeps its mode |
    | a symbolic link | the target of the link is written in the same way; the link stays |
    | a terminal or other character device, or a pipe | the data is written to it directly |
    | a directory, disk or socket | raises `InvalidArgument` |

    Args:
        path: path as the user passed it.
        data: complete content.
        mode: mode of a new file, before the umask is applied.
    """
    found = check_output(path)
    target = Path(os.path.realpath(path))
    if found is None:
        write_atomically(target, data, mode)
    elif stat.S_ISREG(found.st_mode) and target.exists() and os.path.samestat(target.stat(), found):
        write_atomically(target, data, like=found)
    else:  # a device, a pipe, or a file that has no path of its own, such as a redirected /dev/stdout
        with path.open("wb", buffering=0) as file:
            _write_all(file.fileno(), data)


def check_output(path: Path) -> os.stat_result | None:
    """Return the `os.stat_result` of an output path, or None if no file exists there.

    Raises `InvalidArgument` if `write_output` could not write to the path.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if not Path(os.path.realpath(path)).parent.is_dir():
            raise InvalidArgument(
                f"{path} cannot be written: there is no directory {path.parent}.",
                hint="choose a directory that exists",
            ) from None
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"{path} cannot be written: {why}.", hint="choose another path") from error
    if stat.S_ISDIR(found.st_mode):
        raise InvalidArgument(f"{path} is a directory.", hint="pass the path of a file in it")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISCHR(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise InvalidArgument(
            f"{path} is neither a file nor a stream.", hint="pass the path of a file, not of a disk or socket"
        )
    return found


def regular_target(path: Path) -> Path:
    """Return the path that an atomic write replaces, with symbolic links resolved.

    Raises `InvalidArgument` if something other than a regular file exists at `path`.
    """
    found = check_output(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InvalidArgument(f"{path} is not a regular file.", hint="pass the path of a file on disk")
    return Path(os.path.realpath(path))


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Create a directory and its missing parents, and flush their directory entries to disk."""
    if path.exists():
        return
    make_directory(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    sync_directory(path.parent)


def make_private_directory(path: Path) -> None:
    """Create a directory for secrets if it is missing. Raises an error if `path` is a link or others can access it."""
    if not os.path.lexists(path):
        make_directory(path, 0o700)
    check_directory(path, private=True)


def check_directory(path: Path, *, private: bool = False) -> None:
    """Raise an error if `path` is missing, a link or not a directory. If `private`, also if others can access it."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError as error:
        raise Corrupted(f"The directory {path} is missing.", hint="restore the whole directory from a copy") from error
    if not stat.S_ISDIR(mode):
        raise Corrupted(
            f"{path} must be a directory, but is {KINDS.get(stat.S_IFMT(mode), 'something else')}.",
            hint="remove it, or replace it with a directory",
        )
    if private and mode & OTHERS:
        raise Refused(
            f"The private directory {path} can be accessed by users other than its owner (mode {mode & 0o777:03o}).",
            hint=f"run chmod 700 {path}; if others may have read its contents, treat the secret as compromised",
        )


def sync_directory(directory: Path) -> None:
    """Flush the entries of a directory to disk. Does nothing on Windows, which cannot do this."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_in_place(path: Path, descriptor: int) -> None:
    """Raise `Refused` if `path` no longer refers to the open file or directory `descriptor`."""
    try:
        if os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return
    except (FileNotFoundError, NotADirectoryError):
        pass
    raise Refused(
        f"{path} was moved, removed or replaced while it was open.",
        hint="close the run; then move the directory back and open the run again, or open the run at its new path",
    )


def require_locks() -> None:
    """Raise `Refused` on systems that cannot lock directories, such as Windows."""
    if fcntl is None:
        raise Refused(
            "Runs cannot be opened on this system: locking their directories needs Python's 'fcntl', which is missing.",
            hint="use this system for planning and accounting, and train on Linux or macOS; on Windows, use WSL",
        )


def this_process() -> tuple[int, int]:
    """Return an identifier that differs between a process and its forks, even if both have the same pid.

    A process and its fork can have the same pid if the fork is in another PID namespace.
    """
    return os.getpid(), len(_forks)


class DirectoryLock:
    """A lock on a directory, held by one live process. The operating system releases it when the process ends.

    The directory itself is locked, so there is no lock file to remove. A forked child shares the lock, but `check`
    raises an error in the child.
    """

    def __init__(self, directory: Path) -> None:
        require_locks()
        self._owner, self._directory = this_process(), directory.absolute()
        self._descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise Refused(
                f"Another live process is using the run directory {directory}.",
                hint="stop that process first; two processes that use one run would put the same noise on two outputs",
            ) from error

    def check(self) -> None:
        """Raise `Refused` if the lock was released or belongs to the parent process."""
        if self._descriptor < 0:
            raise Refused("The run is closed.", hint="open it again with Run.open")
        if this_process() != self._owner:
            raise Refused(
                "The run was opened by the parent of this process.",
                hint="use the run only in the process that opened it; a forked copy would use the same noise again",
            )

    def check_in_place(self) -> None:
        """Raise `Refused` if the directory was moved or replaced since it was locked."""
        check_in_place(self._directory, self._descriptor)

    def release(self) -> None:
        """Release the lock."""
        # Forget the descriptor before closing it. If closing is interrupted, `release` may be called again. By then,
        # the operating system may have given the same number to another file, which the second call would close.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if this_process() == self._owner:  # unlock explicitly, because a forked child may keep the descriptor open
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _irregular(path, mode)


def _irregular(path: Path, mode: int) -> Corrupted:
    return Corrupted(
        f"{path} must be a regular file, but is {KINDS.get(stat.S_IFMT(mode), 'something else')}.",
        hint="replace it with a regular file, restored from a copy",
    )
