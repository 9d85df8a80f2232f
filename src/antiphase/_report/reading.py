"""Reading what to report on: a plan file, or a run directory whose ledger is checked first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from antiphase._errors import Corrupted, InvalidArgument
from antiphase._plan import Plan
from antiphase._run import PrivacyReport, read_run
from antiphase._secret import Secret

NOT_RECORDED = "Candidates: left out, because the ledger does not confirm that those in plan.json belong to this run."
FEDERATED = "antiphase.flower release"  # prefix of the labels under which a federated server publishes


@dataclass(frozen=True)
class ReportSource:
    """A plan, and the run of it if there is one.

    Args:
        plan: the plan; for a run, without the parts that its ledger does not confirm.
        run: the report of the run.
        left_out: which parts were removed from the plan, and why.
    """

    plan: Plan
    run: PrivacyReport | None = None
    left_out: tuple[str, ...] = ()


def read(path: str | Path, secret: Secret | None = None) -> ReportSource:
    """Read a plan file, or the plan and report of a run directory.

    **Guarantee**: raises if the plan was edited, if the ledger is missing, truncated, edited or from another run, and
    if it ends in lines that are not authentic. Nothing is changed or copied.

    Args:
        path: plan file or run directory.
        secret: secret of the run, if the run does not store it.
    """
    given = Path(path)
    if not given.exists():
        raise InvalidArgument(f"{given} does not exist.", hint="give a plan file or a run directory")
    if not given.is_dir():
        return ReportSource(Plan.load(given))
    check_not_federated(given)
    record = read_run(given, secret)
    for file, size in record.torn.items():
        if size:
            raise Corrupted(
                f"The ledger {file} ends in lines that are not authentic.",
                hint="a crash truncated a line, or the file was edited; open and close the run, which removes such "
                "lines, then report again",
            )
    report = record.report()
    check_not_federated(given, report)
    if record.details_recorded:
        return ReportSource(record.plan, report)
    return ReportSource(replace(record.plan, candidates=(), notes=()), report, (NOT_RECORDED,))


def check_not_federated(directory: Path, run: PrivacyReport | None = None) -> None:
    """Raise InvalidArgument for a federated run or the run inside it, whose epsilon ignores who took part.

    Args:
        directory: run directory to check.
        run: report of the run in it; the labels of its publications identify a federated run after it was copied.
    """
    labels = () if run is None else (publication.label for publication in run.publications)
    around = [d for d in (directory, directory.parent) if (d / "clients" / "private" / "heads").exists()]
    if around or any(label.startswith(FEDERATED) for label in labels):
        where = f'"{around[0]}"' if around else "the directory of DPFTRL"
        raise InvalidArgument(
            f"{directory} belongs to a federated run, whose guarantee depends on the record of who took part.",
            hint=f"in Python: print(antiphase.flower.report({where}).statement)",
        )
