"""The ledger of an open run and its in-memory history. The two stay consistent even if a write fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from antiphase._durable import DirectoryLock
from antiphase._errors import Refused
from antiphase._ledger import Entry, Ledger
from antiphase._run.history import History
from antiphase._run.locking import CriticalSection


@final
class Journal:
    """The history of a run and, on rank 0, its open ledger.

    Several processes, called ranks, can share a run. Only rank 0 has the ledger and the lock on the run directory. On
    all other ranks, the journal has only the history, which is updated with the entries that rank 0 sends.

    Args:
        history: state after the public entries of the ledger so far.
        ledger: open ledger; None on ranks that do not write it.
        lock: lock on the run directory; None on ranks that do not write the ledger.
    """

    def __init__(self, history: History, ledger: Ledger | None = None, lock: DirectoryLock | None = None) -> None:
        self.history, self.ledger, self.lock = history, ledger, lock
        self.critical = CriticalSection()
        self._unsent: list[Entry] = []
        self._is_closed = False

    @property
    def is_writer(self) -> bool:
        """True if this rank writes the ledger."""
        return self.ledger is not None

    @property
    def is_closed(self) -> bool:
        """True if the run was closed in this process."""
        return self._is_closed

    def append(self, entry: Entry) -> None:
        """Append a public entry to the ledger and apply it to the history."""
        ledger = self._own_ledger()
        self.history.check(entry)
        with self.critical:
            ledger.public.append(entry)
            self.history.apply(entry)
            self._unsent.append(entry)

    def append_private(self, entry: Entry) -> None:
        """Append an entry to the private part of the ledger. Private entries are not sent to other ranks."""
        ledger = self._own_ledger()
        with self.critical:
            ledger.private.append(entry)

    def private_entries(self) -> Iterable[Entry]:
        """Return the private entries so far."""
        return self._own_ledger().private.entries()

    def flush(self) -> None:
        """Write all entries to disk before returning. Does nothing on ranks that have no ledger."""
        if self.ledger is not None:
            with self.critical:
                self.ledger.keep()

    def take_unsent(self) -> list[Entry]:
        """Return the public entries appended since the last call, to be sent to the other ranks (see `follow`)."""
        entries, self._unsent = self._unsent, []
        return entries

    def follow(self, entries: list[Entry]) -> None:
        """Update this rank's history with public entries that rank 0 appended to the ledger."""
        for entry in entries:
            self.history.check(entry)
            self.history.apply(entry)

    def check_open(self) -> None:
        """Raise `Refused` if the run was closed or belongs to the parent process."""
        if self.lock is not None:
            self.lock.check()
        elif self._is_closed:
            raise Refused("The run is closed.", hint="open it again")

    def check_usable(self) -> None:
        """Raise `Refused` if the run is closed, its directory was moved, a write is in progress, or a write failed."""
        self.check_open()  # another thread may have closed the run while this one waited for the run's thread lock
        self.critical.check()
        if self.lock is not None:
            self.lock.check_in_place()

    def check_not_failed(self) -> None:
        """Raise `Refused` if a write has failed. Unlike `check_usable`, allow a write in progress."""
        if self.critical.failed:
            self.critical.check()

    def release(self) -> None:
        """Release the lock on the directory without writing anything."""
        self._is_closed = True
        if self.lock is not None:
            self.lock.release()

    def close(self) -> None:
        """Write all entries to disk and release the lock on the directory."""
        try:
            if self.ledger is not None:
                self.ledger.close()
        finally:
            self.release()

    def _own_ledger(self) -> Any:
        if self.ledger is None:
            raise Refused("Only rank 0 has the ledger.", hint="call this on rank 0 only")
        return self.ledger
