"""Reads and checks the input of a report: a plan file, or the directory of a run or a federated server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from antiphase._bound import Bound
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._federated import RELEASE, FederatedReport, is_federated, read_federated, report_on
from antiphase._measured import Audit
from antiphase._plan import Plan
from antiphase._run import PrivacyReport, RunRecord, read_run
from antiphase._secret import Secret

NOT_RECORDED = "Candidates are left out, because the ledger does not confirm that those in plan.json belong to the run."


@dataclass(frozen=True)
class ReportSource:
    """A plan, and the report of its run if it has been run.

    For a federated run, `run` is the report of its inner run (noise and releases), and `federated` is the report that
    states the guarantee.

    Args:
        plan: the plan; for a run, without the parts that its ledger does not confirm.
        run: the report of the run; None if the plan has not been run.
        left_out: sentences that say which parts were removed from the plan, and why.
        federated: the report of a federated run; None for any other run.
        with_counts: if true, show the counts of replies of a federated run, which no guarantee covers.
        audit: an audit of the plan or run, if one was made. It is not part of the ledger.
    """

    plan: Plan
    run: PrivacyReport | None = None
    left_out: tuple[str, ...] = ()
    federated: FederatedReport | None = None
    with_counts: bool = False
    audit: Audit | None = None

    @property
    def planned(self) -> Bound:
        """The guarantee of all steps of the plan. For a run, it accounts for the bounded range of the random draws."""
        return self.plan.guarantee if self.run is None else self.run.planned


def read(
    path: str | Path, secret: Secret | None = None, *, devices_per_user: int | None = None, with_counts: bool = True
) -> ReportSource:
    """Read a plan file, or the plan and report of a run directory.

    **Guarantee**: raises an error if the plan was edited, or if the ledger is missing, truncated, edited or from
    another run. Also raises an error if the ledger ends in lines that are not authentic, except for a federated run,
    whose report states this in a remark. Nothing is changed or copied.

    Args:
        path: plan file, run directory, or directory of a federated server.
        secret: secret of the run, if the run does not store it.
        devices_per_user: for a federated run, also state the guarantee for a user with this many devices.
        with_counts: if true, show the counts of replies of a federated run.
    """
    given = Path(path)
    if devices_per_user is not None and not is_federated(given):
        raise InvalidArgument(
            f"Only federated runs have devices per user. {given} is not the directory of a federated server.",
            hint="leave out --devices-per-user",
        )
    if not given.exists():
        raise InvalidArgument(f"{given} does not exist.", hint="pass a plan file or a run directory")
    if not given.is_dir():
        return ReportSource(Plan.load(given))
    if is_federated(given):
        found = read_federated(given, secret)
        report = report_on(found, devices_per_user)
        plan, left_out = _confirmed(found.run)
        return ReportSource(plan, report.run, left_out, report, with_counts)
    check_not_inner_run(given)
    record = read_run(given, secret)
    for file, size in record.torn.items():
        if size:
            raise Corrupted(
                f"The ledger {file} ends in lines that are not authentic.",
                hint="a crash truncated a line, or the file was edited; open and close the run, which removes such "
                "lines, then make the report again",
            )
    run = record.report()
    check_not_inner_run(given, run)
    plan, left_out = _confirmed(record)
    return ReportSource(plan, run, left_out)


def _confirmed(record: RunRecord) -> tuple[Plan, tuple[str, ...]]:
    """Return the plan without the parts that the ledger does not confirm, and sentences about what was removed."""
    if record.details_recorded:
        return record.plan, ()
    return replace(record.plan, candidates=(), notes=()), (NOT_RECORDED,)


def check_not_inner_run(directory: Path, run: PrivacyReport | None = None) -> None:
    """Raise `InvalidArgument` if a directory holds the inner run of a federated run.

    The inner run is in the subdirectory in which a federated server keeps its noise and its ledger of releases. Its
    epsilon does not account for which clients took part.

    Args:
        directory: run directory to check.
        run: report of the run in the directory. If the directory was copied out of a federated run, the labels of the
            run's publications still show that it is an inner run.
    """
    labels = () if run is None else (publication.label for publication in run.publications)
    inside = is_federated(directory.absolute().parent)
    if inside or any(label.startswith(RELEASE) for label in labels):
        where = f" {directory.absolute().parent}" if inside else ""
        raise InvalidArgument(
            f"{directory} belongs to a federated run, whose guarantee depends on the record of who took part.",
            hint=f"pass the directory of the server{where}, which was passed to DPFTRL",
        )
