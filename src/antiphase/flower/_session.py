"""The server's durable side: the run, the participation record and the state file, moving together.

A directory holds

- secret: names clients, authenticates the ledgers, makes the noise; owner-only
- state.npz: model and release index (`_state.py`)
- run/: the `Run`, with its ledger of releases
- clients/: a ledger whose private part says who took part in each release

A release t is made by one atomic rename of state.npz. The two ledgers follow, before anything is broadcast; where the
server is killed in between, the next opening takes them from state.npz.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, final, get_args

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import file_exists, make_directory, remove_unfinished, sync_directory
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._ledger import Entry, Ledger, ledger_exists
from antiphase._plan import Plan
from antiphase._run import Run, critical_section
from antiphase._secret import Secret
from antiphase.flower._cohort import Dropouts
from antiphase.flower._marks import Marks, fresh_nonce
from antiphase.flower._participants import Participants
from antiphase.flower._state import FILE, State, read_state
from antiphase.flower._wire import Answer, Arrays

SAVE_EVERY = 16  # releases between two saved noise states: what a restart replays at most
RELEASE = "antiphase.flower release"  # by this `antiphase report` knows that the participants are recorded elsewhere
NAME_BYTES = 8  # two clients that share a name would only wait for each other


class Initial(Protocol):
    """Gives the state of the optimizer for a new model."""

    def __call__(self, model: Arrays) -> Arrays:
        """The state before the first release."""


@final
class Session:
    """One server process on one directory. Use `open`, then `noise` and `release` in turn, then `close`.

    **Guarantee**: the noise of release t is used for one output only, which is on disk with its participants before
    `release` returns. A second live process is refused. A state file that is older than the ledger, or changed, is
    refused: it would release a step twice. A directory put back as a whole is refused for good as soon as a client
    shows a mark that it has forgotten.
    """

    def __init__(self, directory: Path, run: Run, secret: Secret, ledger: Ledger, state: State) -> None:
        self._directory, self._ledger, self.run, self.state = directory, ledger, run, state
        self._key = secret.derive("antiphase flower client names", run.run_id)
        self.participants, self.marks = Participants(), Marks(secret, run.run_id)
        self.forgotten: int | None = None  # a release that a client was asked for and the ledger does not know
        self.counts: Counter[str] = Counter()  # since the last release
        self.totals: Counter[str] = Counter()  # of the whole run, as far as they are in the ledger
        self.settings: Entry = {}
        self.cohort: list[str] | None = None  # who has a place in the next release, once that is fixed
        self.nodes: list[int] = []  # where the cohort was when it got its places

    @property
    def dropouts(self) -> Dropouts:
        """What became of clients that failed. Runs begun before the rule was recorded have always replaced them."""
        found: Dropouts = self.settings.get("dropouts", "replace")
        return found

    @classmethod
    def open(
        cls,
        plan: Plan,
        directory: Path,
        settings: Entry,
        model: Arrays | None = None,
        initial: Initial = lambda model: {},
        secret: Secret | None = None,
    ) -> Session:
        """Make a session in an empty directory, or resume the one that is there.

        Args:
            plan: what runs.
            directory: kept apart from the model that is given away: it holds the secret.
            settings: must stay the same for the whole run; empty to take what the ledger has.
            model: before the first release; where there is a state its names, shapes and dtypes must fit.
            initial: gives the optimizer's state for a new model.
            secret: None keeps one in the directory.
        """
        make_directory(directory)
        stored = read_state(directory)
        if stored is None and model is None:
            raise InvalidArgument(f"There is no federated run in {directory}.", hint="check the path")
        first = State(0, model, initial(model)) if model is not None else stored
        assert first is not None
        _check_fits(stored, first)
        _check_not_partial(directory)
        own = _own_secret(directory) if secret is None else secret
        shapes = {name: value.shape for name, value in first.model.items()}
        run = Run.open(plan, directory / "run", leaves=shapes, secret=own, dtype=_noise_dtype(first.model))
        try:
            # What a kill right before a rename left is an output under the noise of a release that is yet to be made.
            remove_unfinished(directory)
            stored = read_state(directory)  # again, now that no other process can change it
            here = directory / "clients"
            ledger = Ledger(here, own, run.run_id, create=not ledger_exists(here) and run.committed == 0)
            remove_unfinished(here / "private")
            session = cls(directory, run, own, ledger, stored or first)
            session._resume(settings, new=stored is None)
            return session
        except BaseException:
            run.close()
            raise

    def name(self, identity: bytes) -> str:
        """What the ledger calls a client: a keyed code, so that the ledger alone does not tell who it is."""
        return hmac.digest(self._key, identity, hashlib.sha256)[:NAME_BYTES].hex()

    def mark(self) -> str:
        """The mark of the next release; on disk when this returns, so that a task may carry it."""
        if self.state.release not in self.marks:
            self._enter({"kind": "mark", "release": self.state.release, "nonce": fresh_nonce()})
            self._ledger.keep()
        return self.marks.text(self.state.release)

    def fix_cohort(self, clients: list[str], nodes: list[int]) -> None:
        """Give out the places of the next release, for good; on disk when this returns, so that tasks may be sent.

        Args:
            clients: the names of all that have a place. They are the participants of the release, whether they reply
                or not, also if the server is killed and started again.
            nodes: that they checked in from: where a server that is started again looks for them first.
        """
        self._enter({"kind": "cohort", "release": self.state.release, "clients": clients, "nodes": nodes})
        self._ledger.keep()

    def trusts(self, answer: Answer) -> bool:
        """Whether what a client says it saw is true; raises where it shows that this directory is an older state."""
        shown = list(zip(answer.seen, answer.marks, strict=True))
        verdicts = [self.marks.verdict(release, mark) for release, mark in shown]
        if "forgotten" in verdicts:
            release, _ = shown[verdicts.index("forgotten")]
            self._enter({"kind": "forgotten", "release": release})
            self._ledger.keep()
            raise _put_back(release)
        return "false" not in verdicts and -1 <= answer.last <= max(answer.seen, default=-1)

    def noise(self) -> list[NDArray[Any]]:
        """The noise of the next release for clipping norm 1, in the order of the model's arrays."""
        return self.run.noise(self.state.release)

    def release(self, model: Arrays, optimizer: Arrays, clients: list[str]) -> None:
        """Make the next release; returns when it is on disk and may be broadcast.

        Args:
            model: after the release.
            optimizer: its state after the release.
            clients: the names of all that took part in it: the cohort, or all whose update entered it.
        """
        made = {name: np.asarray(value) for name, value in model.items()}
        state = State(self.state.release + 1, made, optimizer, tuple(clients), dict(self.counts))
        _check_fits(self.state, state)
        with critical_section(self.run):
            self.state = state.write(self._directory)
        self.counts.clear()  # they are in the state, and from there they go to the ledger
        self._follow()
        if self.state.release % SAVE_EVERY == 0:
            self.run.save()

    def close(self) -> None:
        """Put everything on disk, also what happened to replies since the last release, and let other processes in."""
        try:
            if self.counts:
                self._enter({"kind": "counts", "counts": dict(self.counts)})
                self.counts.clear()
        finally:
            try:
                self._ledger.close()
            finally:
                self.run.close()

    def _resume(self, settings: Entry, *, new: bool) -> None:
        for entry in self._ledger.private.entries():
            self._read(entry)
        if not self.settings:
            self._enter({"kind": "open", **settings})
            self._ledger.keep()
        elif settings and (differing := self._differing(settings)):
            raise InvalidArgument(
                f"The run was begun with other settings: {', '.join(differing)}.",
                hint="go on with the settings it was begun with, or start a new run in another directory",
            )
        ahead = (self.state.release - self.run.committed, self.state.release - self.participants.releases)
        if ahead not in ((0, 0), (1, 1), (1, 0)) or (new and self.run.committed):
            raise Corrupted(
                f"The state file has {self.state.release} releases, the ledgers have {self.run.committed} and "
                f"{self.participants.releases}.",
                hint="restore the whole directory from one copy; an older state would release a step twice",
            )
        if self.forgotten is not None and settings:
            raise _put_back(self.forgotten)
        if new:
            self.state = self.state.write(self._directory)
        # A process that was killed may have left entries and a state file that only the operating system has: a power
        # loss must not take back what is broadcast from now on.
        self._ledger.keep()
        sync_directory(self._directory)
        self._follow()

    def _differing(self, settings: Entry) -> list[str]:
        """Names of the settings that are not those of the run; one begun before dropouts were recorded has no rule."""
        names = (set(settings) | set(self.settings)) - {"kind"}
        if "dropouts" not in self.settings:
            names.discard("dropouts")
        return sorted(name for name in names if settings.get(name) != self.settings.get(name))

    def _follow(self) -> None:
        """Bring both ledgers up to the state file."""
        release = self.state.release - 1
        if release < 0:
            return
        if self.participants.releases == release:
            clients, counts = list(self.state.clients), self.state.counts
            self._enter({"kind": "release", "release": release, "clients": clients, "counts": counts})
            self._ledger.keep()
        if self.run.committed == release:
            self.run.noise(release)  # a step is committed by a process that has read its noise
        self.run.commit(release, self.state.digest)
        if self.run.published <= release:
            self.run.publish(f"{RELEASE} {release}")

    def _enter(self, entry: Entry) -> None:
        self._ledger.private.append(entry)
        self._read(entry)

    def _read(self, entry: Entry) -> None:
        match entry:
            case {"kind": "open"} if not self.settings and entry.get("dropouts", "replace") in get_args(Dropouts):
                self.settings = dict(entry)
            case {"kind": "release", "release": int(release), "clients": [*clients], "counts": dict()} if (
                self.settings and release == self.participants.releases and self._may_take_part(clients)
            ):
                self.participants.enter(clients)
                self.cohort, self.nodes = None, []
                self.totals.update(entry["counts"])
            case {"kind": "mark", "release": int(release), "nonce": str(nonce)} if (
                self.settings and release == self.participants.releases and release not in self.marks
            ):
                self.marks.enter(release, nonce)
            case {"kind": "cohort", "release": int(release), "clients": [*clients], "nodes": [*nodes]} if (
                self.dropouts == "zero"
                and release == self.participants.releases
                and self.cohort is None
                and len(set(clients)) == len(clients)
            ):
                self.cohort, self.nodes = clients, nodes
            case {"kind": "forgotten", "release": int(release)} if self.settings:
                self.forgotten = release
            case {"kind": "counts", "counts": dict()} if self.settings:  # of a server that stopped between releases
                self.totals.update(entry["counts"])
            case _:
                raise Corrupted(
                    f"The clients' ledger has an entry that cannot follow those before it: {str(entry)[:200]}.",
                    hint="it was written by another version; read it with the one that wrote it",
                )

    def _may_take_part(self, clients: list[str]) -> bool:
        """Whether these can be the participants of the next release: with a fixed cohort, nobody else and all of it."""
        if self.dropouts == "zero" and (self.cohort is None or sorted(clients) != sorted(self.cohort)):
            return False
        return len(set(clients)) == len(clients)


def _put_back(release: int) -> Corrupted:
    return Corrupted(
        f"A client was asked for release {release} by this run, in a way that the ledger does not know: the directory "
        "was put back to an older state, and going on would release a step twice, with two outputs under one noise.",
        hint="begin a new run in another directory and compose the two; the newest copy has what this run released",
    )


def _check_fits(stored: State | None, given: State) -> None:
    if stored is None:
        return
    described = [{n: (v.shape, v.dtype.name) for n, v in state.model.items()} for state in (stored, given)]
    if described[0] != described[1] or list(stored.model) != list(given.model):
        raise InvalidArgument(
            f"The run has a model with arrays {described[0]}. Got {described[1]} instead.",
            hint="names, shapes and dtypes stay the same for the whole run; another model is a new run",
        )


def _noise_dtype(model: Arrays) -> str:
    kinds = {value.dtype.name for value in model.values()}
    if not kinds or not kinds <= {"float32", "float64"}:
        raise InvalidArgument(
            f"The model must have float32 or float64 arrays. Got {', '.join(sorted(kinds)) or 'none'} instead.",
            hint="send counters and buffers that are not trained apart from the model",
        )
    return "float64" if "float64" in kinds else "float32"


def _check_not_partial(directory: Path) -> None:
    """Refuse a copy without files that are made before others that are there: they would be made anew."""
    order = ("run/run.json", "clients/private/heads", FILE)
    there = [file_exists(directory / name) for name in order]
    missing = [name for i, name in enumerate(order) if not there[i] and any(there[i:])]
    if missing:
        raise Corrupted(
            f"The federated run in {directory} is not whole. Missing: {', '.join(missing)}.",
            hint="restore the whole directory from one copy",
        )


def _own_secret(directory: Path) -> Secret:
    path = directory / "secret"
    if not file_exists(path):
        if any((directory / name).exists() for name in ("run", "clients", FILE)):  # made after the secret
            raise Corrupted("The run's own secret is missing.", hint="restore the file secret, or pass the secret")
        Secret.generate().save(path)
    return Secret.load(path)
