"""The client's file: its pseudonym and, for each server run, when it took part and which tasks it received."""

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
from antiphase.flower._wire import MOST_TOKENS, Answer, Status, Task

FILE = "client.json"


@final
@dataclass
class ParticipationTimer:
    """The pseudonym of a client and, for each run, the last release it trained for and the tasks it received.

    Args:
        directory: the client's directory.
        client: its pseudonym.
        last: by run, the last release that it started to train for.
        seen: by run, the releases it was asked for, in order, with their rollback tokens; the last MOST_TOKENS.
    """

    directory: Path
    client: str
    last: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def answer(self, task: Task, separation: int) -> Answer:
        """Return the answer to a task; call it before `record`.

        A server that asks for an earlier release than before, or for the same one with another token, was restored from
        an older copy: the client declines, and the tokens in its answer tell the server.
        """
        last, seen = self.last.get(task.run_id, -1), self.seen.get(task.run_id, [])
        apart = max(task.separation, separation)
        separated = last < 0 or task.release == last or task.release >= last + apart
        newest = not seen or task.release > seen[-1][0] or (task.release, task.mark) == seen[-1]
        allowed: Status = "ready" if task.phase == "check-in" else "update"
        status: Status = allowed if separated and newest else "declined"
        releases, tokens = [release for release, _ in seen], [token for _, token in seen]
        return Answer(self.client, task.release, status, last, releases, tokens)

    def record(self, task: Task) -> None:
        """Store the token of a task with a new release. Earlier ones are kept, since the reply to this may get lost."""
        seen = self.seen.get(task.run_id, [])
        if not seen or task.release > seen[-1][0]:
            self.seen[task.run_id] = [*seen, (task.release, task.mark)][-MOST_TOKENS:]
            self._write()

    def start(self, task: Task) -> None:
        """Count a participation. It is on disk when this returns."""
        self.last[task.run_id] = task.release
        self._write()

    def _write(self) -> None:
        data = {name: value for name, value in asdict(self).items() if name != "directory"}
        write_atomically(self.directory / FILE, json.dumps(data).encode())


@contextmanager
def locked_timer(directory: Path) -> Iterator[ParticipationTimer]:
    """Lock a directory and yield its timer, for one process or thread at a time.

    Others wait. The operating system releases the lock when the process ends, however it ends. A client without a file
    gets a new pseudonym, which is stored at once.
    """
    require_locks()
    import fcntl

    make_directory(directory, 0o700)
    descriptor = os.open(directory, os.O_RDONLY)  # lock the directory itself, so that no lock file is left behind
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _read(directory)
    finally:
        os.close(descriptor)


def _read(directory: Path) -> ParticipationTimer:
    path = directory / FILE
    remove_unfinished(directory)
    if not file_exists(path):
        made = ParticipationTimer(directory, secrets.token_hex(16))
        made._write()
        return made
    try:
        data = json.loads(read_file(path))
        last = {str(run): int(release) for run, release in data["last"].items()}
        seen = {
            str(run): [(int(release), str(token)) for release, token in tasks] for run, tasks in data["seen"].items()
        }
        return ParticipationTimer(directory, str(data["client"]), last, seen)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corrupted(
            f"The client's file {path} cannot be read: {error}.",
            hint="restore it from a backup; without it the client could take part too often",
        ) from error
