"""`antiphase verify`: check the stated guarantees of plans and runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import antiphase as ap
from antiphase._accounting import verify as verify_claim
from antiphase._bound import digits_up, rounded_up
from antiphase._cli.output import print_facts, print_json, progress_bar
from antiphase._errors import Corrupted, Refused
from antiphase._federated import is_federated, participation_text, read_federated, report_on
from antiphase._run import RunRecord, read_run

PROVED = "proved, and recomputed just now"
BASIS: dict[str, str] = {
    "exact": PROVED,
    "upper": f"{PROVED}; an upper bound",
    "confident": "verified just now with fresh random samples; the probability of an error is part of delta",
}
LABELS = {  # names of facts in the text output, where they differ from the names in the JSON output
    "epsilon of what ran": "epsilon of the steps that ran",
    "epsilon of what ran, enforced participation": "epsilon so far, enforced participation",
    "epsilon of what ran, achieved participation": "epsilon so far, achieved participation",
    "basis of what ran": "basis for the steps that ran",
    "after the ledger": "data after the last entry",
}
Facts = dict[str, Any]
Progress = Callable[[str, float], None]


def verify(
    paths: Annotated[
        list[Path], typer.Argument(help="Plan files, run directories and directories of federated servers.")
    ],
    secret: Annotated[Path | None, typer.Option(help="Secret file of a run that does not store its own.")] = None,
    attempt: Annotated[
        int, typer.Option(min=1, help="Number of this attempt: 1, then 2 after a failure, and so on.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a plan (fingerprint, guarantee) or a run (ledger, batches, guarantee of the steps that ran).

    PATHS are plan files, run directories and directories of federated servers. The exit code is 0 if everything holds;
    otherwise it is 1 and the reason is printed. Nothing is changed, so you can verify a run in progress. A guarantee
    that is based on random samples is verified with fresh samples. This may fail by chance. If it does, try again with
    --attempt 2, then 3, and so on. Each attempt may also pass by chance although the guarantee is wrong. Delta includes
    the probability that this happens in any attempt, because later attempts need stronger evidence. If you try again
    with the same number, delta does not include the additional risk, and the guarantee does not hold.

    Example: antiphase verify plan.json antiphase-demo/chosen-01
    """
    findings = []
    for path in paths:
        with progress_bar() as progress:
            findings.append(_checked(path, secret, attempt, progress))
        if not as_json:
            print_facts((LABELS.get(name, name), _text(name, value)) for name, value in findings[-1].items())
            typer.echo()
    if as_json:
        print_json(findings)


def _checked(path: Path, secret_file: Path | None, attempt: int, progress: Progress) -> Facts:
    if not path.is_dir():
        return _plan(path, attempt, progress)
    secret = None if secret_file is None else ap.Secret.load(secret_file)
    return (_federated if is_federated(path) else _run)(path, secret, attempt, progress)


def _plan(path: Path, attempt: int, progress: Progress) -> Facts:
    progress(f"accounting {path.name}", 0.1)
    plan = ap.Plan.load(path)
    progress(f"verifying {path.name}", 0.5)
    facts = _guarantee(path, plan, attempt)
    return {"plan": str(path), "fingerprint": plan.fingerprint, **facts, "verified": True}


def _guarantee(path: Path, plan: ap.Plan, attempt: int) -> Facts:
    """Return the guarantee of a plan as facts. Verifies it first, with fresh samples, if it is based on samples.

    A guarantee that is not based on samples was computed again when the plan was loaded.
    """
    bound, delta = plan.guarantee, plan.problem.budget.delta
    with _naming(path, attempt):
        found = verify_claim(plan, attempt=attempt) if bound.kind == "confident" else bound
    return {
        "epsilon": bound.value,
        "delta": delta,
        "adjacency": plan.mechanism.adjacency,
        "kind": found.kind,
        "basis": BASIS[found.kind],
        "method": found.method,
        "reference": found.reference,
    }


@contextmanager
def _naming(path: Path, attempt: int) -> Iterator[None]:
    """Add the path, and what to do next, to the error of a failed verification."""
    try:
        yield
    except Refused as error:
        hint = f"{error.hint} (--attempt {attempt + 1}); release nothing under this guarantee until an attempt passes"
        raise Refused(f"{path}: {error.message}", hint=hint) from error


def _run(directory: Path, secret: ap.Secret | None, attempt: int, progress: Progress) -> Facts:
    """Check everything that resuming the run would check, without writing anything."""
    from antiphase._report import check_not_inner_run

    check_not_inner_run(directory)
    if not (directory / "run.json").exists():
        raise Refused(
            f"{directory} is not a run: it has no run.json.", hint="pass a directory that was created by Run.open"
        )
    record = read_run(directory, secret)
    _check_details(record)
    batches, report, torn = _check_batches(record, progress), record.report(), sum(record.torn.values())
    check_not_inner_run(directory, report)
    facts = _guarantee(directory, record.plan, attempt)
    ran = report.guarantee
    if ran is not None and report.steps_run < report.steps_planned:
        progress("verifying the steps that ran", 0.9)
        with _naming(directory, attempt):
            ran = record.verify(report, attempt)
    return {
        "run": str(directory),
        "run id": report.run_id,
        "plan": record.plan.fingerprint,
        **facts,
        "steps": f"{report.steps_run} of {report.steps_planned}",
        "epsilon of what ran": None if ran is None else ran.value,
        "basis of what ran": None if ran is None else BASIS[ran.kind],
        "ledger": f"{record.public} public and {len(record.batches)} private entries, all authentic",
        "after the ledger": _torn(torn),
        "batches": batches,
        "published": [f"{p.label} (after step {p.steps})" for p in report.publications],
        "remarks": list(report.remarks),
        "verified": True,
    }


def _federated(directory: Path, secret: ap.Secret | None, attempt: int, progress: Progress) -> Facts:
    """Check everything that resuming the server would check, and compute the guarantee from the record of clients."""
    progress("reading the ledgers", 0.1)
    record = read_federated(directory, secret)
    _check_details(record.run)
    progress("accounting", 0.5)
    report = report_on(record)
    run, bound = report.run, report.guarantee
    return {
        "federated run": str(directory),
        "run id": run.run_id,
        "plan": record.run.plan.fingerprint,
        **_guarantee(directory, record.run.plan, attempt),
        "releases": f"{run.steps_run} of {run.steps_planned}",
        "epsilon of what ran, enforced participation": None if run.guarantee is None else run.guarantee.value,
        "epsilon of what ran, achieved participation": None if bound is None else bound.value,
        "basis of what ran": None if bound is None else BASIS[bound.kind],
        "participation planned": participation_text(report.planned),
        "participation achieved": participation_text(report.achieved),
        "clients": report.clients,
        "dropouts": report.dropouts,
        "ledger": f"{record.run.public} public and {record.entries} private entries, all authentic; no release is "
        "missing, and no client took part too often or too soon",
        "state file": "authentic; its last release is not in the ledgers yet, and the server adds it when it starts"
        if record.unrecorded
        else "authentic",
        "after the ledger": _torn(record.torn),
        "remarks": list(report.remarks),
        "verified": True,
    }


def _check_details(record: RunRecord) -> None:
    if record.details_edited:
        raise Corrupted(
            "The error, candidates or notes in plan.json differ from those that the run was opened with.",
            hint="the file was edited; restore it from a backup",
        )


def _torn(size: int) -> str:
    return f"{size} bytes that are not authentic, left by a crash or by a write in progress" if size > 0 else "none"


def _check_batches(record: RunRecord, progress: Progress) -> str:
    """Check that every recorded batch is the one that the sampler draws, and return a summary."""
    recorded = [entry for entry in record.batches if entry["kind"] == "batch"]
    if not recorded:
        return "none recorded"
    sampler = record.sampler()
    for i, entry in enumerate(recorded):
        progress("redrawing the batches", i / len(recorded))
        indices, mask = sampler.batch(entry["step"])
        used = np.ascontiguousarray(indices[mask], dtype="<i8")
        if hashlib.sha256(used.tobytes()).hexdigest() != entry["indices"]:
            raise Corrupted(
                f"The batch recorded for step {entry['step']} is not the one that the sampler draws.",
                hint="the run did not take its batches from the sampler, so the guarantee does not hold for this run",
            )
    late = sum("entered" in entry for entry in recorded)
    return f"{len(recorded)} redrawn, all as recorded" + (f"; {late} were recorded after a crash" if late else "")


def _text(name: str, value: Any) -> str | list[str]:
    if isinstance(value, list):
        return value or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return rounded_up(value, 6) if name.startswith("epsilon") else digits_up(value)
    return str(value)
