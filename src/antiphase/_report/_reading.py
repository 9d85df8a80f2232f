"""What there is to report on: a plan file, or a run directory whose ledger is checked first."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from antiphase._errors import Corrupted, InvalidArgument
from antiphase._plan import Plan
from antiphase._record import from_json
from antiphase._run import PrivacyReport, Run
from antiphase._run._directory import own_secret, read_header
from antiphase._secret import Secret

# The kept heads first: a run that is under way may add entries in between, but never takes one back.
FILES = ("private/heads", "private/secret", "run.json", "plan.json", "private/ledger.jsonl", "public/ledger.jsonl")

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
    and where it ends in lines that are not authentic. Nothing is changed: the check is made in a copy, as resuming
    the run would make it.

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
    if not (given / "run.json").exists():
        raise Corrupted(f"{given} holds no run: run.json is missing.", hint="give the directory that Run.open made")
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        copy_run(given, copy)
        before = _sizes(copy)
        source = _replayed(copy, secret)
        for file, size in _sizes(copy).items():
            if size < before.get(file, 0):
                raise Corrupted(
                    f"The ledger {file} ends in lines that are not authentic.",
                    hint="a crash cut a line short, or it was edited; Run.open cuts such lines off, then report again",
                )
    check_not_federated(given, source.run)
    return source


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


def copy_run(directory: Path, copy: Path) -> None:
    """Copy what a check needs of a run."""
    for name in FILES:
        if (directory / name).exists():
            (copy / name).parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copy(directory / name, copy / name)


def _replayed(copy: Path, secret: Secret | None) -> Source:
    header, plan = read_header(copy), Plan.load(copy / "plan.json")
    assert header is not None
    own = own_secret(copy, create=False) if secret is None else secret
    try:
        leaves = {name: from_json(leaf) for name, leaf in header.leaves}
    except (TypeError, ValueError) as error:
        raise Corrupted(f"The header run.json cannot be read: {error}.", hint="restore it from a copy") from error
    with Run.open(plan, copy, leaves=leaves, examples=header.examples, secret=own, dtype=header.dtype) as run:
        if run.details_recorded:
            return Source(plan, run.report())
        return Source(replace(plan, candidates=(), notes=()), run.report(), (NOT_RECORDED,))


def _sizes(copy: Path) -> dict[str, int]:
    names = (f"{part}/ledger.jsonl" for part in ("public", "private"))
    return {name: (copy / name).stat().st_size for name in names if (copy / name).exists()}
