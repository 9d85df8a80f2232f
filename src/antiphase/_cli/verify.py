"""`antiphase verify`: check that the claims of a plan or a run hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import antiphase as ap
from antiphase._accounting import verify as verify_claim
from antiphase._bound import rounded_up
from antiphase._cli.output import print_facts, print_json, progress_bar
from antiphase._errors import Corrupted, Refused
from antiphase._run import RunRecord, read_run

PROVED = "proved, and recomputed just now"
BASIS: dict[str, str] = {
    "exact": PROVED,
    "upper": f"{PROVED}; an upper bound",
    "confident": "verified just now with fresh random samples; the probability that they mislead is part of delta",
}
Facts = dict[str, Any]
Progress = Callable[[str, float], None]


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Plan files and run directories.")],
    secret: Annotated[Path | None, typer.Option(help="Secret file of a run that does not store its own.")] = None,
    attempt: Annotated[int, typer.Option(min=1, help="1 plus the number of verifications refused so far.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check a plan (fingerprint, guarantee) or a run (ledger, batches, guarantee of the steps that ran).

    PATHS are plan files and run directories. The exit code is 0 if everything holds; otherwise it is 1 and the reason
    is printed. Nothing is changed, so you can verify a run in progress. A guarantee that rests on random samples is
    verified with fresh ones. By chance this may fail; then try again with --attempt 2, and so on. Trying again without
    counting voids the guarantee.

    Example: antiphase verify plan.json antiphase-demo/chosen-01
    """
    findings = []
    for path in paths:
        with progress_bar() as progress:
            findings.append(_run(path, secret, attempt, progress) if path.is_dir() else _plan(path, attempt, progress))
        if not as_json:
            print_facts((name, _text(name, value)) for name, value in findings[-1].items())
            typer.echo()
    if as_json:
        print_json(findings)


def _plan(path: Path, attempt: int, progress: Progress) -> Facts:
    progress(f"accounting {path.name}", 0.1)
    plan = ap.Plan.load(path)
    progress(f"verifying {path.name}", 0.5)
    facts = _guarantee(path, plan, attempt)
    return {"plan": str(path), "fingerprint": plan.fingerprint, **facts, "verified": True}


def _guarantee(path: Path, plan: ap.Plan, attempt: int) -> Facts:
    """Return the guarantee, which loading derived again; verify a sampled one with fresh samples."""
    bound, delta = plan.guarantee, plan.problem.budget.delta
    try:
        found = verify_claim(plan, attempt=attempt) if bound.kind == "confident" else bound
    except Refused as error:
        hint = f"{error.hint}: --attempt {attempt + 1}; release nothing that relies on it until then"
        raise Refused(f"{path}: {error.message}", hint=hint) from error
    return {
        "epsilon": bound.value,
        "delta": delta,
        "adjacency": plan.mechanism.adjacency,
        "kind": found.kind,
        "basis": BASIS[found.kind],
        "method": found.method,
        "reference": found.reference,
    }


def _run(directory: Path, secret_file: Path | None, attempt: int, progress: Progress) -> Facts:
    """Check everything that resuming the run would check, without writing anything."""
    from antiphase._report import check_not_federated

    check_not_federated(directory)
    if not (directory / "run.json").exists():
        raise Refused(f"{directory} is not a run: it has no run.json.", hint="give a directory that Run.open created")
    record = read_run(directory, None if secret_file is None else ap.Secret.load(secret_file))
    if record.details_edited:
        raise Corrupted(
            "The error, candidates or notes in plan.json are not those that the run was opened with.",
            hint="the file was edited; restore it from a backup",
        )
    batches, report, torn = _check_batches(record, progress), record.report(), sum(record.torn.values())
    check_not_federated(directory, report)
    return {
        "run": str(directory),
        "run id": report.run_id,
        "plan": record.plan.fingerprint,
        **_guarantee(directory, record.plan, attempt),
        "steps": f"{report.steps_run} of {report.steps_planned}",
        "epsilon of what ran": None if report.guarantee is None else report.guarantee.value,
        "ledger": f"{record.public} public and {len(record.batches)} private entries, all authentic",
        "after the ledger": f"{torn} bytes that are not authentic: a crash, or a step in progress"
        if torn > 0
        else "nothing",
        "batches": batches,
        "published": [f"{p.label} (after step {p.steps})" for p in report.publications],
        "remarks": list(report.remarks),
        "verified": True,
    }


def _check_batches(record: RunRecord, progress: Progress) -> str:
    """Check that every recorded batch is the one that the sampler draws."""
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
                hint="the run did not take its batches from the sampler, so the guarantee does not cover it",
            )
    late = sum("entered" in entry for entry in recorded)
    return f"{len(recorded)} redrawn, all as recorded" + (f"; {late} were recorded after a crash" if late else "")


def _text(name: str, value: Any) -> str | list[str]:
    if isinstance(value, list):
        return value or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return rounded_up(value, 6) if name.startswith("epsilon") else f"{value:.6g}"
    return str(value)
