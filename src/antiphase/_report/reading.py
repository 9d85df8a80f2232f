"""What there is to report on: a plan file, or a run directory whose ledger is checked first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from antiphase._errors import Corrupted, InvalidArgument
from antiphase._plan import Plan
from antiphase._run import PrivacyReport, read_run
from antiphase._secret import Secret

NOT_RECORDED = "Candidates: left out, since the ledger does not say that those in plan.json are the ones of this run."
FEDERATED = "antiphase.flower release"  # how labels of what a federated server publishes begin


@dataclass(frozen=True)
class Source:
    """A plan, and what ran of it, where it ran.

    Args:
        plan: for a run without what its ledger does not vouch for.
        run: the report on the run.
        left_out: what that was.
    """

    plan: Plan
    run: PrivacyReport | None = None
    left_out: tuple[str, ...] = ()


def read(path: str | Path, secret: Secret | None = None) -> Source:
    """The plan of a file, or plan and report of a run directory.

    **Guarantee**: raises where the plan was edited, where the ledger is missing, cut short, edited or another run's,
    and where it ends in lines that are not authentic. Nothing is changed, and nothing is copied.

    Args:
        path: a plan file or a run directory.
        secret: of a run that does not keep its own.
    """
    given = Path(path)
    if not given.exists():
        raise InvalidArgument(f"There is nothing at {given}.", hint="give a plan file or a run directory")
    if not given.is_dir():
        return Source(Plan.load(given))
    check_not_federated(given)
    record = read_run(given, secret)
    for file, size in record.torn.items():
        if size:
            raise Corrupted(
                f"The ledger {file} ends in lines that are not authentic.",
                hint="a crash cut a line short, or it was edited; open and close the run, which cuts such lines off, "
                "then report again",
            )
    report = record.report()
    check_not_federated(given, report)
    if record.details_recorded:
        return Source(record.plan, report)
    return Source(replace(record.plan, candidates=(), notes=()), report, (NOT_RECORDED,))


def check_not_federated(directory: Path, run: PrivacyReport | None = None) -> None:
    """Refuse a federated run and the run inside it, whose own epsilon would leave out the record of who took part.

    Args:
        directory: that was given.
        run: the report on the run in it; by the labels of its publications it is known wherever it was copied to.
    """
    labels = () if run is None else (publication.label for publication in run.publications)
    around = [d for d in (directory, directory.parent) if (d / "clients" / "private" / "heads").exists()]
    if around or any(label.startswith(FEDERATED) for label in labels):
        where = f'"{around[0]}"' if around else "the directory of DPFTRL"
        raise InvalidArgument(
            f"{directory} belongs to a federated run: its guarantee rests on the record of who took part.",
            hint=f"in Python: print(antiphase.flower.report({where}).statement)",
        )
