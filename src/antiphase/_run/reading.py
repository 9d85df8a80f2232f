"""Reading a run where it is, without changing or copying anything: the run may be under way in another process."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from antiphase._errors import Corrupted
from antiphase._ledger import Entry, Ledger
from antiphase._plan import Plan
from antiphase._record import from_json
from antiphase._run.directory import FORMAT, Header, check_layout, own_secret, read_header
from antiphase._run.history import History, replayed
from antiphase._run.privacy_report import PrivacyReport, report
from antiphase._run.tail import tail_of
from antiphase._samplers import Sampler
from antiphase._secret import Secret


@dataclass(frozen=True)
class RunRecord:
    """What the directory of a run says, every part checked against the ledger.

    Args:
        plan: of the run.
        header: leaves, dtype and examples.
        secret: of the run.
        history: what the public entries add up to.
        public: how many public entries there are.
        batches: the private entries.
        torn: how many bytes follow the authentic entries of each part, by file: a crash, or a step under way.
    """

    plan: Plan
    header: Header
    secret: Secret
    history: History
    public: int
    batches: tuple[Entry, ...]
    torn: dict[str, int]

    def report(self) -> PrivacyReport:
        """As `Run.report`."""
        leaves = {name: from_json(leaf) for name, leaf in self.header.leaves}
        tail = tail_of(self.plan, leaves, self.header.dtype, self.history.source)
        return report(self.plan, self.history, self.secret, self.header.run_id, self.header.examples, tail)

    @property
    def details_recorded(self) -> bool:
        """Whether the ledger vouches for the plan's error, candidates and notes; older ledgers do not know them."""
        return self.history.details == self.plan.details

    @property
    def details_edited(self) -> bool:
        """Whether the ledger knows other details than the plan has."""
        return self.history.details not in (None, self.plan.details)

    def sampler(self) -> Sampler:
        """What draws the batches of the run."""
        assert self.header.examples is not None
        secret = self.secret.child("batches", self.header.run_id)
        return self.plan.mechanism.participation.sampler(self.header.examples, self.plan.steps, secret)


def read_run(directory: Path, secret: Secret | None = None) -> RunRecord:
    """What the directory of a run says.

    **Guarantee**: raises where a file of the run is missing, where header, plan or kept entries are not those that the
    run's secret authenticates, and where committed steps have no record of their batches. Nothing is written.

    Args:
        directory: of the run.
        secret: of a run that does not keep its own.
    """
    check_layout(directory)
    header = read_header(directory)
    if header is None:
        raise Corrupted(f"{directory} holds no run: run.json is missing.", hint="give the directory that Run.open made")
    own = own_secret(directory, create=False) if secret is None else secret
    with closing(Ledger(directory, own, header.run_id, create=False, read_only=True)) as ledger:
        history, last = replayed(ledger.public.entries())
        batches = tuple(ledger.private.entries())
        torn = {f"{part}/ledger.jsonl": getattr(ledger, part).torn for part in ("public", "private")}
        public = ledger.public.head.entries
    if header.format != FORMAT or last.get("header") != header.fingerprint:
        raise Corrupted(
            "The header run.json is not the one the ledger was begun with.", hint="restore run.json from a copy"
        )
    plan = Plan.load(directory / "plan.json")
    if last["plan"] != plan.fingerprint:
        raise Corrupted(
            "The plan.json is not the plan of this run.",
            hint="if it was being extended when it ended, start it again with the extended plan; else restore a copy",
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
            hint="entries were lost in a crash, or removed; Run.open draws the batches again and enters them",
        )
