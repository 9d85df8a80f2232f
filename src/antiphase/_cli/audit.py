"""`antiphase audit`: attack a plan or a run, and compare the measured leakage with the claimed guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import antiphase as ap
from antiphase._cli.output import print_facts, print_json, print_message, print_table, progress_bar
from antiphase._durable import check_output, write_output
from antiphase._errors import InvalidArgument
from antiphase._measured import Audit
from antiphase._record import to_json

SMALLEST = 40


def audit(
    path: Annotated[Path, typer.Argument(help="Plan file or run directory.")],
    runs: Annotated[int, typer.Option(min=1, help="Number of simulated runs.")] = 1,
    canaries: Annotated[int, typer.Option(min=1, help="Number of canaries in each run.")] = 4000,
    confidence: Annotated[float, typer.Option(help="Probability with which all measured bounds hold.")] = 0.95,
    delta: Annotated[
        float | None, typer.Option(help="Delta for which to measure epsilon; default: the plan's.")
    ] = None,
    released: Annotated[
        Path | None, typer.Option(help="File written by Release.save, to audit instead of a simulation.")
    ] = None,
    black_box: Annotated[bool, typer.Option("--black-box", help="Attack the final model only.")] = False,
    secret: Annotated[Path | None, typer.Option(help="Secret file of a run that does not store its own.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the audit as JSON.")] = False,
    output: Annotated[Path | None, typer.Option(help="File for the audit as JSON, for antiphase report.")] = None,
    html: Annotated[Path | None, typer.Option(help="File for an HTML page with charts.")] = None,
) -> None:
    """Attack a plan or a run with canaries, and compare the measured epsilon with the claimed one.

    Canaries are artificial examples. The attack guesses from the released values which of them took part. PATH is a
    plan file or a run directory. The attack is simulated with the library's own noise and batches. For a run, the
    simulation uses the run's parameter shapes, dtype and number of examples, but a different key. Therefore the result
    can be published. To audit a training program, record what it releases with antiphase.audit.torch,
    antiphase.audit.jax or antiphase.audit.flower, and pass the file with --released. With --black-box, the attack uses
    only the final model, as computed by the optimizer of the plan. Such an audit finds much less, because it does not
    test noise, contributions and participation. The exit code is 1 if the audit contradicts the claim. An audit that
    finds nothing proves nothing.

    Example: antiphase audit plan.json --canaries 10000 --html audit.html
    """
    from antiphase._report import audit_page
    from antiphase.audit import Release, evaluate, evaluate_final_models, final_models, simulate

    for file in (output, html):
        if file is not None:
            check_output(file)
    if runs * canaries < SMALLEST:
        raise InvalidArgument(
            f"An audit needs at least {SMALLEST} canaries in all runs together. Got {runs * canaries}.",
            hint="use more runs or canaries",
        )
    with progress_bar() as progress:
        progress("reading", 0.0)
        plan, release, separate = _source(path, secret)
        progress("simulating", 0.1)
        if released is not None:
            release, separate = Release.load(released), False
        elif release is None:
            release, separate = simulate(plan.mechanism, canaries=canaries, runs=runs), canaries == 1
        progress("attacking", 0.5)
        options: dict[str, Any] = {"delta": delta, "confidence": confidence, "separate_runs": separate}
        if black_box:
            found = evaluate_final_models(plan, final_models(release, plan.problem.workload), **options)
        else:
            found = evaluate(plan, release, **options)
    _write(found, output, html, audit_page(found) if html is not None else "")
    _print(found, as_json)
    if found.flagged:
        raise typer.Exit(1)


def _source(path: Path, secret: Path | None) -> tuple[ap.Plan, Any, bool]:
    """Return the plan, the release to attack, and whether each canary has its own run.

    The release simulates the run in a run directory. It is None if the plan is to be simulated instead.
    """
    if not path.is_dir():
        return ap.Plan.load(path), None, False
    from antiphase._federated import is_federated
    from antiphase._report import check_not_inner_run
    from antiphase._run import read_run
    from antiphase.audit import release_of_run

    if is_federated(path):
        raise ap.InvalidArgument(
            f"The directory {path} holds a federated run, whose releases depend on the clients' replies.",
            hint=f"audit its plan, {path / 'run' / 'plan.json'}; antiphase.audit.flower attacks a server with canaries",
        )
    check_not_inner_run(path)
    record = read_run(path, None if secret is None else ap.Secret.load(secret))
    release = release_of_run(record)
    if release is None or release.canaries < SMALLEST:
        print_message(
            "The run is too small to attack, or its noise was made on a device. The audit simulates its plan."
        )
        return record.plan, None, False
    return record.plan, release, False


def _write(found: Audit, output: Path | None, html: Path | None, page: str) -> None:
    if output is not None:
        write_output(output, (json.dumps(to_json(found), allow_nan=False) + "\n").encode())
        print_message(f"wrote {output}")
    if html is not None:
        write_output(html, page.encode())
        print_message(f"wrote {html}")


def _print(found: Audit, as_json: bool) -> None:
    from antiphase._report import bounds_table, tests_table, verdict

    if as_json:
        print_json({**to_json(found), "findings": list(found.findings), "flagged": found.flagged})
        return
    print_facts([("audited", found.subject), ("result", verdict(found))])
    for table in (bounds_table(found), tests_table(found)):
        if table.rows:
            print_table(table.caption, table.columns, table.rows)
    for remark in found.remarks:
        print_message(remark)
    print_message("An audit can show that a claim is wrong, but never that it is right.")
