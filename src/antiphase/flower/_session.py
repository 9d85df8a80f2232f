"""Manages the server's directory: keeps the run, the participation record and the state file consistent.

The directory contains:

- secret: the secret from which client names, ledger authentication and noise are derived; readable only by its owner
- state.npz, the state file: model, optimizer state, number of releases, and participants of the last release
- run/: the `Run`, with its ledger of releases
- clients/: a ledger whose private part records which clients took part in each release

A release (one new model) is made by one atomic rename of state.npz. Both ledgers are updated before anything is
broadcast. If the server is killed between the rename and these updates, it completes the ledgers from state.npz when it
starts again. The state file must therefore be authentic, so it has an authentication code. Files that version 0.1.0
wrote have no code; they are accepted if the run's ledger has their digest.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import DirectoryLock, file_exists, make_directory, remove_unfinished, sync_directory
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._federated import (
    FILE,
    NO_LATTICE,
    RELEASE,
    Dropouts,
    FederatedHistory,
    Participants,
    RollbackTokens,
    ServerState,
    StateKey,
    check_authentic,
    fresh_nonce,
    read_state,
    rolled_back,
)
from antiphase._ledger import Entry, Ledger, ledger_exists
from antiphase._plan import Plan
from antiphase._run import Run, critical_section, is_committed, unit_noise
from antiphase._secret import Secret
from antiphase.flower._wire import Answer, Arrays

SAVE_EVERY = 16  # releases between two saved noise states; a restart recomputes the noise of at most 16 releases
NAME_BYTES = 8  # bytes of a client's name; two clients with the same name would count as one client, which is harmless


class InitOptimizer(Protocol):
    """Function that returns the optimizer state for a new model."""

    def __call__(self, model: Arrays) -> Arrays:
        """Return the optimizer state before the first release."""


@final
class Session:
    """Manages a server's directory, to which one server process has exclusive access.

    Call `open`. Then call `noise` and `release` for each release. Call `close` at the end.

    **Guarantee**: the noise of release t is used for one output only. This output and its participants are on disk
    before `release` returns. `open` raises an error if another live process uses the directory, or if the state file
    was changed or is older than the ledger. Without these checks, a step could be released twice, or
    participants could be erased from a release that is in the state file but not yet in the ledgers. Every message to a
    client contains a rollback token, a random token that the client returns later. If a client returns an authentic
    token that the ledger does not have, the directory was restored from an older copy. Training then stops, and the run
    cannot be resumed.
    """

    def __init__(self, directory: Path, run: Run, secret: Secret, ledger: Ledger, state: ServerState) -> None:
        self._directory, self._ledger, self.run, self.state = directory, ledger, run, state
        self._key = secret.derive("antiphase flower client names", run.run_id)
        self._state_key = StateKey(secret, run.run_id)
        self.history = FederatedHistory()
        self.tokens = RollbackTokens(secret, run.run_id, self.history.nonces)
        self.counts: Counter[str] = Counter()  # counts of replies since the last release

    @property
    def participants(self) -> Participants:
        """Record of which clients took part in which release."""
        return self.history.participants

    @property
    def dropouts(self) -> Dropouts:
        """Rule for clients that drop out."""
        return self.history.dropouts

    @property
    def cohort(self) -> list[str] | None:
        """Names of the clients that take part in the next release (the cohort); None until they are fixed."""
        return self.history.cohort

    @property
    def nodes(self) -> list[int]:
        """Ids of the Flower nodes from which the clients of the cohort said that they can take part."""
        return self.history.nodes

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
        """Start a run in an empty directory, or resume the run in the directory.

        Args:
            plan: plan that the server enforces.
            directory: directory of the server. It holds the secret, so do not store it with the released model.
            settings: settings that must not change within a run; empty to use the settings in the ledger.
            model: model before the first release. If the run is resumed, the names, shapes and dtypes of its arrays
                must match the stored model.
            init_optimizer: returns the optimizer state for a new model.
            secret: secret of the run. If None, a new run generates a secret and stores it in the directory.
        """
        make_directory(directory)
        stored = read_state(directory)
        if stored is None and model is None:
            raise InvalidArgument(
                f"There is no federated run in {directory}.", hint="check the path; DPFTRL.start creates the run"
            )
        first = ServerState(0, model, init_optimizer(model)) if model is not None else stored
        assert first is not None
        _check_fits(stored, first)
        _check_not_partial(directory)
        shapes = {name: value.shape for name, value in first.model.items()}
        dtype = _noise_dtype(first.model)
        dtype_of_noise = dtype if plan.mechanism.lattice is None else None  # on a lattice, noise consists of integers
        lock = DirectoryLock(directory)  # keeps other servers from replacing the secret before the run is locked
        try:
            own = _own_secret(directory) if secret is None else secret
            run = Run.open(plan, directory / "run", leaves=shapes, secret=own, dtype=dtype_of_noise)
        finally:
            lock.release()
        try:
            # A server that was killed right before the rename left a temporary file. Its model contains the next noise.
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
        """Return the name of a client in the ledger: a keyed hash, so the ledger alone does not identify clients."""
        return hmac.digest(self._key, identity, hashlib.sha256)[:NAME_BYTES].hex()

    def rollback_token(self) -> str:
        """Return the rollback token of the next release. The token is on disk when this function returns."""
        if self.state.release not in self.tokens:
            self._enter({"kind": "mark", "release": self.state.release, "nonce": fresh_nonce()})
            self._ledger.keep()
        return self.tokens.token(self.state.release)

    def fix_cohort(self, clients: list[str], nodes: list[int]) -> None:
        """Fix the participants of the next release. They are on disk when this function returns.

        Args:
            clients: names of all clients with a place. They take part in the release whether they reply or not, even
                if the server is restarted.
            nodes: ids of the Flower nodes from which these clients checked in. A restarted server asks these nodes
                first.
        """
        self._enter({"kind": "cohort", "release": self.state.release, "clients": clients, "nodes": nodes})
        self._ledger.keep()

    def trusts(self, answer: Answer) -> bool:
        """Return whether a client's claims about earlier tasks are true.

        Raises `Corrupted` if the claims show that this directory was restored from an older copy.
        """
        shown = list(zip(answer.seen, answer.marks, strict=True))
        verdicts = [self.tokens.verdict(release, token) for release, token in shown]
        if "forgotten" in verdicts:
            release, _ = shown[verdicts.index("forgotten")]
            self._enter({"kind": "forgotten", "release": release})
            self._ledger.keep()
            raise rolled_back(release)
        return "forged" not in verdicts and -1 <= answer.last <= max(answer.seen, default=-1)

    def noise(self) -> list[NDArray[Any]]:
        """Return the noise of the next release for clipping norm 1, in the order of the model's arrays."""
        return unit_noise(self.run, self.state.release)

    def release(self, model: Arrays, optimizer: Arrays, clients: list[str]) -> None:
        """Make the next release. When this function returns, the release is on disk and may be broadcast.

        Args:
            model: model after the release.
            optimizer: optimizer state after the release.
            clients: names of all clients that took part: the cohort if there is one, otherwise all clients whose
                updates are in the sum.
        """
        made = {name: np.asarray(value) for name, value in model.items()}
        state = ServerState(self.state.release + 1, made, optimizer, tuple(clients), dict(self.counts))
        _check_fits(self.state, state)
        with critical_section(self.run):
            self.state = state.write(self._directory, self._state_key)
        self.counts.clear()  # the state file has the counts now; `_update_ledgers` copies them to the ledger
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
            self.history.apply(entry)
        if not self.history.settings:
            self._enter({"kind": "open", **settings})
            # From now on, every state file must have an authentication code. No state file exists yet.
            self._enter({"kind": "state code"})
            self._ledger.keep()
        elif settings and (differing := self._differing(settings)):
            raise InvalidArgument(
                f"These settings differ from those that the run was started with: {', '.join(differing)}.",
                hint="use the settings that the run was started with, or start a new run in another directory",
            )
        ahead = (self.state.release - self.run.committed, self.state.release - self.participants.releases)
        if ahead not in ((0, 0), (1, 1), (1, 0)) or (new and self.run.committed):
            raise Corrupted(
                f"The state file has {self.state.release} releases, but the ledger in run/ has "
                f"{self.run.committed} and the ledger in clients/ has {self.participants.releases}.",
                hint="restore the whole directory from one copy; with an older state file, a step would be released "
                "twice",
            )
        if not new:
            self._check_authentic()
        if self.history.forgotten is not None and settings:
            raise rolled_back(self.history.forgotten)
        if new or (settings and not self.state.code):
            self.state = self.state.write(self._directory, self._state_key)
        if settings and not self.history.needs_code:
            # The state file gets its code before this entry, which requires it: the process may be killed in between.
            self._enter({"kind": "state code"})
        # Data that a killed process wrote may be only in the operating system's cache. Sync it, so that a power loss
        # cannot undo releases that have been broadcast.
        self._ledger.keep()
        sync_directory(self._directory)
        self._update_ledgers()

    def _check_authentic(self) -> None:
        """Raise `Corrupted` if this run did not write the state file."""
        check_authentic(
            self.state,
            self._directory / FILE,
            self._state_key,
            needs_code=self.history.needs_code,
            in_ledger=self._is_in_ledger,
        )

    def _is_in_ledger(self) -> bool:
        """Return whether the run's ledger has the digest of the state."""
        step = self.state.release - 1
        return step < self.run.committed and is_committed(self.run, step, self.run.digest(step, self.state.entries()))

    def _differing(self, settings: Entry) -> list[str]:
        """Return the names of settings that differ from the run's settings.

        If the run did not record "dropouts", that setting is not compared. The setting `NO_LATTICE` (the reason why the
        noise of a run is not made in exact integers) is never compared, because it is set only for a new run. The run's
        header ensures that a resumed run keeps its kind of noise.
        """
        given = self.history.settings
        names = (set(settings) | set(given)) - {"kind", NO_LATTICE}
        if "dropouts" not in given:
            names.discard("dropouts")
        return sorted(name for name in names if settings.get(name) != given.get(name))

    def _update_ledgers(self) -> None:
        """Add the last release of the state file to both ledgers, if it is missing there."""
        release = self.state.release - 1
        if release < 0:
            return
        if self.participants.releases == release:
            clients, counts = list(self.state.clients), self.state.counts
            self._enter({"kind": "release", "release": release, "clients": clients, "counts": counts})
            self._ledger.keep()
        if self.run.committed == release:
            unit_noise(self.run, release)  # a process must have read a step's noise to commit it
        self.run.commit(release, self.run.digest(release, self.state.entries()))
        if self.run.published <= release:
            self.run.publish(f"{RELEASE} {release}")

    def _enter(self, entry: Entry) -> None:
        self._ledger.private.append(entry)
        self.history.apply(entry)


def _check_fits(stored: ServerState | None, given: ServerState) -> None:
    if stored is None:
        return
    described = [{n: (v.shape, v.dtype.name) for n, v in state.model.items()} for state in (stored, given)]
    if described[0] != described[1] or list(stored.model) != list(given.model):
        raise InvalidArgument(
            f"The run's model has the arrays {described[0]}. Got {described[1]} instead.",
            hint="keep names, shapes and dtypes the same within a run; start a new run for a different model",
        )


def _noise_dtype(model: Arrays) -> str:
    kinds = {value.dtype.name for value in model.values()}
    if not kinds or not kinds <= {"float32", "float64"}:
        raise InvalidArgument(
            f"The model's arrays must be float32 or float64. Got {', '.join(sorted(kinds)) or 'no arrays'} instead.",
            hint="keep only trained parameters in the model's arrays: remove counters and other buffers",
        )
    return "float64" if "float64" in kinds else "float32"


def _check_not_partial(directory: Path) -> None:
    """Raise `Corrupted` if a file is missing although a file that is written later exists."""
    order = ("run/run.json", "clients/private/heads", FILE)
    there = [file_exists(directory / name) for name in order]
    missing = [name for i, name in enumerate(order) if not there[i] and any(there[i:])]
    if missing:
        raise Corrupted(
            f"The federated run in {directory} is incomplete. Missing: {', '.join(missing)}.",
            hint="restore the whole directory from one copy",
        )


def _own_secret(directory: Path) -> Secret:
    """Return the secret stored in the directory. A new run first generates a secret and replaces any stored secret."""
    path = directory / "secret"
    if not file_exists(directory / "run" / "run.json"):
        path.unlink(missing_ok=True)  # no run has used this secret, and whoever put the file there knows the secret
        Secret.generate().save(path)
    elif not file_exists(path):
        raise Corrupted(
            f"The run's secret is missing: there is no file {path}.",
            hint="restore the file, or pass the secret that the run was started with",
        )
    return Secret.load(path)
