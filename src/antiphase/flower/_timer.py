"""The client's file: its pseudonym, and for each run of a server when it took part and what it was asked for."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import final

from antiphase._durable import (
    file_exists,
    make_directory,
    read_file,
    remove_unfinished,
    require_locks,
    write_atomically,
)
from antiphase._errors import Corrupted
from antiphase.flower._wire import MOST_MARKS, Answer, Status, Task

FILE = "client.json"


@final
@dataclass
class Timer:
    """The pseudonym of a client and, for each run, the last release it trained for and the tasks it saw.

    Args:
        directory: of the client.
        client: its pseudonym.
        last: by run, the last release that it began to train for.
        seen: by run, the releases that it was asked for, in order, and the marks of these tasks; the last MOST_MARKS.
    """

    directory: Path
    client: str
    last: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def answer(self, task: Task, separation: int) -> Answer:
        """Whether the timer lets the client take part in this task's release, before the task is noted.

        A server that asks for an earlier release than before, or for the same one under another mark, was put back to
        an older state: the client declines, and its answer tells the server.
        """
        last, seen = self.last.get(task.run_id, -1), self.seen.get(task.run_id, [])
        apart = max(task.separation, separation)
        rested = last < 0 or task.release == last or task.release >= last + apart
        forward = not seen or task.release > seen[-1][0] or (task.release, task.mark) == seen[-1]
        allowed: Status = "ready" if task.phase == "check-in" else "update"
        status: Status = allowed if rested and forward else "declined"
        releases, marks = [release for release, _ in seen], [mark for _, mark in seen]
        return Answer(self.client, task.release, status, last, releases, marks)

    def note(self, task: Task) -> None:
        """Remember a task that is later than all before it; those stay, since the reply to this one may be lost."""
        seen = self.seen.get(task.run_id, [])
        if not seen or task.release > seen[-1][0]:
            self.seen[task.run_id] = [*seen, (task.release, task.mark)][-MOST_MARKS:]
            self._write()

    def start(self, task: Task) -> None:
        """Count a participation; on disk when this returns."""
        self.last[task.run_id] = task.release
        self._write()

    def _write(self) -> None:
        data = {name: value for name, value in asdict(self).items() if name != "directory"}
        write_atomically(self.directory / FILE, json.dumps(data).encode())


@contextmanager
def held(directory: Path) -> Iterator[Timer]:
    """The timer of a directory, to be read and changed by one process, or thread, at a time.

    Others wait. The operating system lets them in when the process ends, however it ends. A client without a file gets
    a new pseudonym, which is stored at once.
    """
    require_locks()
    import fcntl

    make_directory(directory, 0o700)
    descriptor = os.open(directory, os.O_RDONLY)  # the directory is locked, so there is no lock file to remove
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _read(directory)
    finally:
        os.close(descriptor)


def _read(directory: Path) -> Timer:
    path = directory / FILE
    remove_unfinished(directory)
    if not file_exists(path):
        made = Timer(directory, secrets.token_hex(16))
        made._write()
        return made
    try:
        data = json.loads(read_file(path))
        last = {str(run): int(release) for run, release in data["last"].items()}
        seen = {str(run): [(int(release), str(mark)) for release, mark in tasks] for run, tasks in data["seen"].items()}
        return Timer(directory, str(data["client"]), last, seen)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupted(
            f"The client's file {path} cannot be read: {error}.",
            hint="restore it from a copy; without it the client would take part too often",
        ) from error
