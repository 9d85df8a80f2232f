"""Reads the directory of a federated server without changing it. The server may be running."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import final

from antiphase._durable import file_exists
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._federated.history import FederatedHistory
from antiphase._federated.state import FILE, ServerState, StateKey, check_authentic, read_state
from antiphase._ledger import Ledger
from antiphase._run import RunRecord, read_run
from antiphase._secret import Secret

RELEASE = "antiphase.flower release"  # label of the publications; it shows that a run belongs to a federated server
DEVIATION = "the server enforces the participation and adds the noise that it was started with"
READS = 5  # number of attempts to read a directory whose server may be making releases
SECRET = "secret"


@final
@dataclass(frozen=True)
class FederatedRecord:
    """The contents of the directory of a federated server, after they were checked.

    The directory has a state file and two ledgers. The run's ledger, in run/, records each release as a step of the
    run. The clients' ledger, in clients/, records who took part.

    Args:
        run: the underlying run, up to the last release.
        history: who took part, up to the last release.
        releases: number of releases made.
        entries: number of entries in the clients' ledger.
        torn: number of bytes after the last authentic entry, summed over all ledger files. These bytes come from a
            crash or from a write in progress. Nothing that was sent relies on them.
        unrecorded: True if the last release is in the state file, but not yet in both ledgers.
    """

    run: RunRecord
    history: FederatedHistory
    releases: int
    entries: int
    torn: int
    unrecorded: bool


def is_federated(directory: Path) -> bool:
    """Return whether a directory belongs to a federated server. The directory may be incomplete."""
    return (directory / "clients" / "private" / "heads").exists()


def read_federated(directory: Path, secret: Secret | None = None) -> FederatedRecord:
    """Read the directory of a federated server.

    **Guarantee**: raises an error if a file is missing, or if an entry of a ledger or the state file cannot be
    authenticated with the secret. Also raises an error if the ledgers and the state file contradict each other, or if
    they break the rules that the server enforces. Nothing is written. A release counts as soon as it is in the state
    file, even if the server was stopped before both ledgers recorded it.

    Args:
        directory: directory of the server.
        secret: secret of the run; None if the directory stores it.
    """
    if not file_exists(directory / "run" / "plan.json"):
        raise InvalidArgument(
            f"There is no federated run in {directory}.", hint="pass the directory that was passed to DPFTRL"
        )
    own = _stored_secret(directory) if secret is None else secret
    for attempt in range(READS):
        before = read_state(directory)
        found = _read_ledgers(directory, own)
        after = read_state(directory)
        if before is not None and after is not None and before.release == after.release:
            return _checked(directory, own, after, *found)
        if before is None and after is None:
            raise Corrupted(
                f"The federated run in {directory} has no {FILE}.",
                hint="start the server once more, if it was stopped before its first round; otherwise restore the "
                "whole directory from one copy",
            )
        if attempt == READS - 1:
            break
    raise Corrupted(
        f"The federated run in {directory} changes too fast to be read.", hint="stop the server, or try again later"
    )


def rolled_back(release: int) -> Corrupted:
    """Return the error for a directory that was restored from an older copy."""
    return Corrupted(
        f"A client received a task of this run for release {release}, and this task is not in the ledger: the "
        "directory was restored from an older copy. Continuing would make a release twice, with the same noise.",
        hint="start a new run in another directory and compose the guarantees of the two runs; the newest copy of this "
        "directory shows how many releases this run has made",
    )


def _stored_secret(directory: Path) -> Secret:
    path = directory / SECRET
    if not file_exists(path):
        raise Corrupted(
            f"The run's secret is missing: there is no file {path}.",
            hint="restore the file, or pass the secret that the run was started with",
        )
    return Secret.load(path)


def _read_ledgers(directory: Path, secret: Secret) -> tuple[RunRecord, FederatedHistory, int, int]:
    run = read_run(directory / "run", secret, DEVIATION)
    history = FederatedHistory()
    with closing(Ledger(directory / "clients", secret, run.header.run_id, create=False, read_only=True)) as ledger:
        for entry in ledger.private.entries():
            history.apply(entry)
        torn = sum(run.torn.values()) + ledger.public.torn + ledger.private.torn
        return run, history, ledger.private.head.entries, torn


def _checked(
    directory: Path, secret: Secret, state: ServerState, run: RunRecord, history: FederatedHistory, size: int, torn: int
) -> FederatedRecord:
    committed, recorded = run.history.committed, history.participants.releases
    if (state.release - committed, state.release - recorded) not in ((0, 0), (1, 1), (1, 0)) or not history.settings:
        raise Corrupted(
            f"The state file has {state.release} releases, but the ledger in run/ has {committed} and the ledger "
            f"in clients/ has {recorded}.",
            hint="restore the whole directory from one copy",
        )
    check_authentic(
        state,
        directory / FILE,
        StateKey(secret, run.header.run_id),
        needs_code=history.needs_code,
        in_ledger=lambda: run.confirms(state.release - 1, state.entries()),
    )
    unrecorded = state.release > min(committed, recorded, run.history.published)
    if recorded < state.release:
        clients, counts = list(state.clients), dict(state.counts)
        history.apply({"kind": "release", "release": recorded, "clients": clients, "counts": counts})
    if state.release:
        run = run.completed(state.release, f"{RELEASE} {state.release - 1}")
    if run.history.rewinds or [p.steps for p in run.history.publications] != list(range(1, state.release + 1)):
        raise Corrupted(
            "The run's ledger does not have exactly one publication for each release, in order.",
            hint="something other than DPFTRL has used the run; restore the whole directory from one copy",
        )
    _check_rules(run, history)
    return FederatedRecord(run, history, state.release, size, torn, unrecorded)


def _check_rules(run: RunRecord, history: FederatedHistory) -> None:
    """Raise `Corrupted` if clients took part more often than the server allows, or at smaller distances."""
    achieved, steps = history.participants.achieved, run.plan.steps
    allowed = run.plan.mechanism.participation.worst_case
    separation, limit = allowed.spacing(steps), allowed.largest_count(steps)
    if (achieved.separation or separation) < separation or achieved.participations > limit:
        raise Corrupted(
            f"The clients' ledger breaks the rules of the run: a client took part {achieved.participations} times, and "
            f"a client took part again after {achieved.separation} releases. Clients may take part at most {limit} "
            f"times, and at least {separation} releases apart.",
            hint="report this as a bug; until it is fixed, use the guarantee of the achieved participation only",
        )
