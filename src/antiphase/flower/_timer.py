"""Reads and writes the client's file. It has a pseudonym and, for each run, the last participation and tasks."""

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
    """Stores a client's pseudonym and participations, and decides whether the client may take part.

    Args:
        directory: directory of the client.
        client: pseudonym (random identity) of the client.
        last: maps each run id to the last release that the client started to train for.
        seen: maps each run id to the last MOST_TOKENS releases that the client received a task for, in order, with
            the rollback token of each release, a random token in the server's message.
    """

    directory: Path
    client: str
    last: dict[str, int] = field(default_factory=dict)
    seen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def answer(self, task: Task, separation: int) -> Answer:
        """Return the answer to a task. Call it before `record`.

        If the server asks for an earlier release than before, or for the same release with a different token, the
        server's directory was restored from an older copy. The client then declines. Its answer contains the tokens,
        which show the server that it has lost a release.

        Args:
            task: task from the server.
            separation: smallest separation that this client accepts.
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
        """Store the rollback token of a task for a new release. Keep earlier tokens, because replies may get lost."""
        seen = self.seen.get(task.run_id, [])
        if not seen or task.release > seen[-1][0]:
            self.seen[task.run_id] = [*seen, (task.release, task.mark)][-MOST_TOKENS:]
            self._write()

    def start(self, task: Task) -> None:
        """Record a participation in the release of a task. The record is on disk when this function returns."""
        self.last[task.run_id] = task.release
        self._write()

    def _write(self) -> None:
        data = {name: value for name, value in asdict(self).items() if name != "directory"}
        write_atomically(self.directory / FILE, json.dumps(data).encode())


@contextmanager
def locked_timer(directory: Path) -> Iterator[ParticipationTimer]:
    """Lock a client's directory and yield its timer. Other processes and threads wait.

    The operating system releases the lock when the process ends, even if it is killed. A client without a file gets a
    new pseudonym, which is stored immediately.
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
            hint="restore the file from a backup; without the file, the client could take part too often",
        ) from error
