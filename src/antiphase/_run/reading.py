"""Reads a run directory without changing it; another process may be using the run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from antiphase._errors import Corrupted
from antiphase._ledger import Entry, Ledger
from antiphase._plan import Plan
from antiphase._record import from_json
from antiphase._run.directory import FORMAT, Header, check_layout, own_secret, read_header
from antiphase._run.history import History, read_history
from antiphase._run.privacy_report import PrivacyReport, report
from antiphase._run.tail import tail_of
from antiphase._samplers import Sampler
from antiphase._secret import Secret


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run directory, checked against the ledger.

    Args:
        plan: plan of the run.
        header: leaves, dtype and number of examples.
        secret: secret of the run.
        history: state that the public entries add up to.
        public: number of public entries.
        batches: private entries.
        torn: number of bytes after the last authentic entry, by file; from a crash, or a write in progress.
    """

    plan: Plan
    header: Header
    secret: Secret
    history: History
    public: int
    batches: tuple[Entry, ...]
    torn: dict[str, int]

    def report(self) -> PrivacyReport:
        """Return the same as `Run.report`."""
        leaves = {name: from_json(leaf) for name, leaf in self.header.leaves}
        tail = tail_of(self.plan, leaves, self.header.dtype, self.history.source)
        return report(self.plan, self.history, self.secret, self.header.run_id, self.header.examples, tail)

    @property
    def details_recorded(self) -> bool:
        """Whether the ledger confirms the plan's error, candidates and notes. Older ledgers do not contain them."""
        return self.history.details == self.plan.details

    @property
    def details_edited(self) -> bool:
        """Whether the plan's details differ from those in the ledger."""
        return self.history.details not in (None, self.plan.details)

    def sampler(self) -> Sampler:
        """The sampler that draws the batches of the run."""
        return self.header.sampler(self.plan, self.plan.steps, self.secret)


def read_run(directory: Path, secret: Secret | None = None) -> RunRecord:
    """Read a run directory.

    **Guarantee**: raises if a file of the run is missing, if header, plan or entries are not authentic under the run's
    secret, or if committed steps have no record of their batches. Nothing is written.

    Args:
        directory: run directory.
        secret: secret of the run, if the directory does not store it.
    """
    check_layout(directory)
    header = read_header(directory)
    if header is None:
        raise Corrupted(
            f"{directory} holds no run: run.json is missing.", hint="give the directory that Run.open created"
        )
    own = own_secret(directory, create=False) if secret is None else secret
    with closing(Ledger(directory, own, header.run_id, create=False, read_only=True)) as ledger:
        history, last = read_history(ledger.public.entries())
        batches = tuple(ledger.private.entries())
        torn = {f"{part}/ledger.jsonl": getattr(ledger, part).torn for part in ("public", "private")}
        public = ledger.public.head.entries
    if header.format != FORMAT or last.get("header") != header.fingerprint:
        raise Corrupted(
            "The header run.json is not the one that the ledger was started with.", hint="restore run.json from a copy"
        )
    plan = Plan.load(directory / "plan.json")
    if last["plan"] != plan.fingerprint:
        raise Corrupted(
            "The file plan.json is not the plan of this run.",
            hint="if the process ended while it extended the run, start again with the extended plan; "
            "otherwise restore plan.json from a copy",
        )
    _check_batches_recorded(header, history, batches)
    return RunRecord(plan, header, own, history, public, batches, torn)


def _check_batches_recorded(header: Header, history: History, batches: tuple[Entry, ...]) -> None:
    if header.examples is None:
        return
    recorded = {entry.get("step") for entry in batches}
    lost = sum(step not in recorded for step in range(history.committed))
    if lost:
        raise Corrupted(
            f"The ledger private/ledger.jsonl has no batches for {lost} of {history.committed} committed steps.",
            hint="entries were lost in a crash, or removed; Run.open draws the batches again and records them",
        )
