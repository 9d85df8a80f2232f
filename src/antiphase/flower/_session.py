"""The server's directory: the run, the participation record and the state file, kept consistent.

A directory holds

- secret: the secret that names clients, authenticates the ledgers and makes the noise; owner-only
- state.npz: model and release index (`_state.py`)
- run/: the `Run`, with its ledger of releases
- clients/: a ledger whose private part records who took part in each release

One atomic rename of state.npz makes a release. The two ledgers follow before anything is broadcast. If the server is
killed in between, they are completed from state.npz when it is started again.
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
from antiphase.flower._participants import Participants
from antiphase.flower._rollback_tokens import RollbackTokens, fresh_nonce
from antiphase.flower._state import FILE, ServerState, read_state
from antiphase.flower._wire import Answer, Arrays

SAVE_EVERY = 16  # releases between two saved noise states; a restart replays at most as many
RELEASE = "antiphase.flower release"  # tells `antiphase report` that the participants are recorded elsewhere
NAME_BYTES = 8  # if two clients shared a name, each would only wait for the other


class InitOptimizer(Protocol):
    """Makes the optimizer state for a new model."""

    def __call__(self, model: Arrays) -> Arrays:
        """Return the state before the first release."""


@final
class Session:
    """One server process on one directory. Call `open`, then `noise` and `release` alternately, then `close`.

    **Guarantee**: the noise of release t is used for one output only, which is on disk with its participants before
    `release` returns. A second live process is refused. A state file that was changed, or is older than the ledger, is
    refused: it would release a step twice. A directory restored from an older copy is refused permanently once a client
    returns a rollback token that its ledger does not have.
    """

    def __init__(self, directory: Path, run: Run, secret: Secret, ledger: Ledger, state: ServerState) -> None:
        self._directory, self._ledger, self.run, self.state = directory, ledger, run, state
        self._key = secret.derive("antiphase flower client names", run.run_id)
        self.participants, self.tokens = Participants(), RollbackTokens(secret, run.run_id)
        self.forgotten: int | None = None  # a release that a client has a token of and the ledger does not
        self.counts: Counter[str] = Counter()  # since the last release
        self.totals: Counter[str] = Counter()  # of the whole run, from the ledger
        self.settings: Entry = {}
        self.cohort: list[str] | None = None  # the clients with a place in the next release, once they are fixed
        self.nodes: list[int] = []  # the nodes from which the cohort checked in

    @property
    def dropouts(self) -> Dropouts:
        """The rule for clients that drop out. Runs of versions that did not record it always replaced them."""
        found: Dropouts = self.settings.get("dropouts", "replace")
        return found

    @classmethod
    def open(
        cls,
        plan: Plan,
        directory: Path,
        settings: Entry,
        model: Arrays | None = None,
        init_optimizer: InitOptimizer = lambda model: {},
        secret: Secret | None = None,
    ) -> Session:
        """Start a run in an empty directory, or resume the one that is there.

        Args:
            plan: the plan that is enforced.
            directory: the server's directory. It holds the secret; keep it apart from the released model.
            settings: settings that must not change within a run; empty to take those in the ledger.
            model: model before the first release. On a resumed run, its names, shapes and dtypes must match the stored
                ones.
            init_optimizer: makes the optimizer state for a new model.
            secret: None keeps a secret in the directory.
        """
        make_directory(directory)
        stored = read_state(directory)
        if stored is None and model is None:
            raise InvalidArgument(
                f"There is no federated run in {directory}.", hint="check the path; DPFTRL.start makes the run"
            )
        first = ServerState(0, model, init_optimizer(model)) if model is not None else stored
        assert first is not None
        _check_fits(stored, first)
        _check_not_partial(directory)
        own = _own_secret(directory) if secret is None else secret
        shapes = {name: value.shape for name, value in first.model.items()}
        run = Run.open(plan, directory / "run", leaves=shapes, secret=own, dtype=_noise_dtype(first.model))
        try:
            # A kill just before the rename leaves an output with the noise of a release that is still to be made.
            remove_unfinished(directory)
            stored = read_state(directory)  # again, now that the run is locked
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
        """Return a client's name in the ledger: a keyed hash, so that the ledger alone does not identify anyone."""
        return hmac.digest(self._key, identity, hashlib.sha256)[:NAME_BYTES].hex()

    def rollback_token(self) -> str:
        """Return the rollback token of the next release. It is on disk before any task carries it."""
        if self.state.release not in self.tokens:
            self._enter({"kind": "mark", "release": self.state.release, "nonce": fresh_nonce()})
            self._ledger.keep()
        return self.tokens.token(self.state.release)

    def fix_cohort(self, clients: list[str], nodes: list[int]) -> None:
        """Fix the participants of the next release. They are on disk when this returns, before any task is sent.

        Args:
            clients: names of all clients with a place. They take part in the release whether they reply or not, even
                if the server is restarted.
            nodes: nodes that they checked in from, where a restarted server looks for them first.
        """
        self._enter({"kind": "cohort", "release": self.state.release, "clients": clients, "nodes": nodes})
        self._ledger.keep()

    def trusts(self, answer: Answer) -> bool:
        """Return whether a client's claims are true; raise if they show that this directory is an older copy."""
        shown = list(zip(answer.seen, answer.marks, strict=True))
        verdicts = [self.tokens.verdict(release, token) for release, token in shown]
        if "forgotten" in verdicts:
            release, _ = shown[verdicts.index("forgotten")]
            self._enter({"kind": "forgotten", "release": release})
            self._ledger.keep()
            raise _rolled_back(release)
        return "forged" not in verdicts and -1 <= answer.last <= max(answer.seen, default=-1)

    def noise(self) -> list[NDArray[Any]]:
        """Return the noise of the next release for clipping norm 1, in the order of the model's arrays."""
        return self.run.noise(self.state.release)

    def release(self, model: Arrays, optimizer: Arrays, clients: list[str]) -> None:
        """Make the next release. When this returns, it is on disk and may be broadcast.

        Args:
            model: model after the release.
            optimizer: optimizer state after the release.
            clients: names of all clients that took part: the cohort, or all whose update entered the sum.
        """
        made = {name: np.asarray(value) for name, value in model.items()}
        state = ServerState(self.state.release + 1, made, optimizer, tuple(clients), dict(self.counts))
        _check_fits(self.state, state)
        with critical_section(self.run):
            self.state = state.write(self._directory)
        self.counts.clear()  # they are in the state, from which the ledger gets them
        self._update_ledgers()
        if self.state.release % SAVE_EVERY == 0:
            self.run.save()

    def close(self) -> None:
        """Write everything to disk, including the counts since the last release, and release the lock."""
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
                f"These settings differ from those that the run was started with: {', '.join(differing)}.",
                hint="use the settings that the run was started with, or start a new run in another directory",
            )
        ahead = (self.state.release - self.run.committed, self.state.release - self.participants.releases)
        if ahead not in ((0, 0), (1, 1), (1, 0)) or (new and self.run.committed):
            raise Corrupted(
                f"The state file has {self.state.release} releases, but the ledgers have {self.run.committed} and "
                f"{self.participants.releases}.",
                hint="restore the whole directory from one copy; an older state file would release a step twice",
            )
        if self.forgotten is not None and settings:
            raise _rolled_back(self.forgotten)
        if new:
            self.state = self.state.write(self._directory)
        # What a killed process wrote may still be in the operating system's cache only. Sync it, so that a power loss
        # cannot undo what is broadcast from now on.
        self._ledger.keep()
        sync_directory(self._directory)
        self._update_ledgers()

    def _differing(self, settings: Entry) -> list[str]:
        """Return the settings that differ from the run's. Runs that did not record dropouts accept either rule."""
        names = (set(settings) | set(self.settings)) - {"kind"}
        if "dropouts" not in self.settings:
            names.discard("dropouts")
        return sorted(name for name in names if settings.get(name) != self.settings.get(name))

    def _update_ledgers(self) -> None:
        """Bring both ledgers up to date with the state file."""
        release = self.state.release - 1
        if release < 0:
            return
        if self.participants.releases == release:
            clients, counts = list(self.state.clients), self.state.counts
            self._enter({"kind": "release", "release": release, "clients": clients, "counts": counts})
            self._ledger.keep()
        if self.run.committed == release:
            self.run.noise(release)  # a process must have read a step's noise to commit it
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
                self.participants.add_release(clients)
                self.cohort, self.nodes = None, []
                self.totals.update(entry["counts"])
            case {"kind": "mark", "release": int(release), "nonce": str(nonce)} if (
                self.settings and release == self.participants.releases and release not in self.tokens
            ):
                self.tokens.add(release, nonce)
            case {"kind": "cohort", "release": int(release), "clients": [*clients], "nodes": [*nodes]} if (
                self.dropouts == "zero"
                and release == self.participants.releases
                and self.cohort is None
                and len(set(clients)) == len(clients)
            ):
                self.cohort, self.nodes = clients, nodes
            case {"kind": "forgotten", "release": int(release)} if self.settings:
                self.forgotten = release
            case {"kind": "counts", "counts": dict()} if (
                self.settings
            ):  # written by a server that stopped between releases
                self.totals.update(entry["counts"])
            case _:
                raise Corrupted(
                    f"The clients' ledger has an entry that cannot follow the ones before it: {str(entry)[:200]}.",
                    hint="if another version wrote the ledger, use that version",
                )

    def _may_take_part(self, clients: list[str]) -> bool:
        """Return whether these can be the participants of the next release: exactly the cohort, if there is one."""
        if self.dropouts == "zero" and (self.cohort is None or sorted(clients) != sorted(self.cohort)):
            return False
        return len(set(clients)) == len(clients)


def _rolled_back(release: int) -> Corrupted:
    return Corrupted(
        f"A client has a task of this run for release {release} that is not in the ledger: the directory was restored "
        "from an older copy. Continuing would release a step twice, with the same noise in two outputs.",
        hint="start a new run in another directory and compose the two; the newest copy has what this run released",
    )


def _check_fits(stored: ServerState | None, given: ServerState) -> None:
    if stored is None:
        return
    described = [{n: (v.shape, v.dtype.name) for n, v in state.model.items()} for state in (stored, given)]
    if described[0] != described[1] or list(stored.model) != list(given.model):
        raise InvalidArgument(
            f"The run's model has the arrays {described[0]}. Got {described[1]} instead.",
            hint="names, shapes and dtypes must stay the same within a run; start a new run for another model",
        )


def _noise_dtype(model: Arrays) -> str:
    kinds = {value.dtype.name for value in model.values()}
    if not kinds or not kinds <= {"float32", "float64"}:
        raise InvalidArgument(
            f"The model's arrays must be float32 or float64. Got {', '.join(sorted(kinds)) or 'no arrays'} instead.",
            hint="keep counters and buffers that are not trained out of the model",
        )
    return "float64" if "float64" in kinds else "float32"


def _check_not_partial(directory: Path) -> None:
    """Raise if files are missing that are written before others that exist: they would be created again."""
    order = ("run/run.json", "clients/private/heads", FILE)
    there = [file_exists(directory / name) for name in order]
    missing = [name for i, name in enumerate(order) if not there[i] and any(there[i:])]
    if missing:
        raise Corrupted(
            f"The federated run in {directory} is incomplete. Missing: {', '.join(missing)}.",
            hint="restore the whole directory from one copy",
        )


def _own_secret(directory: Path) -> Secret:
    path = directory / "secret"
    if not file_exists(path):
        if any((directory / name).exists() for name in ("run", "clients", FILE)):  # written after the secret
            raise Corrupted(
                f"The run's secret is missing: there is no file {path}.",
                hint="restore the file, or pass the secret that the run was started with",
            )
        Secret.generate().save(path)
    return Secret.load(path)
