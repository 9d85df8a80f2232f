"""`antiphase demo`: private training from plan to report, with correlated noise and with DP-SGD."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphase._cli.compilation import reported
from antiphase._cli.output import print_json, print_message, progress_bar
from antiphase._demo import SEEDS, Comparison, as_html, as_markdown, as_text, command, compare
from antiphase._durable import make_directory, write_output
from antiphase._errors import InvalidArgument


def demo(
    output: Annotated[Path, typer.Option(help="New directory for the runs and the report.")] = Path("antiphase-demo"),
    seeds: Annotated[int, typer.Option(min=2, help="Number of runs per mechanism.")] = SEEDS,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a digit classifier with DP-SGD and with the mechanism that the planner chooses, and compare them.

    Both mechanisms have the same epsilon and the same number of passes over the data. The demo needs scikit-learn:
    install the extra "demo".

    Example: antiphase demo --output my-demo
    """
    directory = _creatable(_unused(output))
    with progress_bar() as bar, reported(bar) as progress:
        found = compare(directory, seeds, progress)
        progress("drawing the page", 1.0)
        page = as_html(found, directory)
    found.chosen.plan.save(directory / "plan.json")
    write_output(directory / "report.html", page.encode())
    write_output(directory / "report.md", as_markdown(found).encode())
    write_output(directory / "report.txt", as_text(found).encode())
    if as_json:
        print_json({**_plain(found), "directory": str(directory)})
    else:
        typer.echo(as_text(found))
    print_message("wrote")
    for name in ("report.md", "report.txt", "plan.json"):
        print_message(f"  {directory / name}")
    print_message(f"  {found.chosen.directory}/public/ledger.jsonl, and {3 * seeds - 1} more runs next to it")
    print_message(f"next: {command()} verify {found.chosen.directory}")
    print_message("", f"Open this page in a browser: {(directory / 'report.html').absolute().as_uri()}")


def _unused(output: Path) -> Path:
    """Return `output` if it does not exist; otherwise append the first free number, so that nothing is overwritten."""
    path, number = output, 2
    while path.exists():
        path, number = output.with_name(f"{output.name}-{number}"), number + 1
    return path


def _creatable(directory: Path) -> Path:
    """Return the directory, or raise `InvalidArgument` if it cannot be created. Training creates it later."""
    try:
        make_directory(directory)
        directory.rmdir()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        hint = "use --output to choose a directory that can be created"
        raise InvalidArgument(f"The directory {directory} cannot be created: {why}.", hint=hint) from error
    return directory


def _plain(found: Comparison) -> dict[str, object]:
    gains = [found.gain(arm) for arm in found.arms[:-1]]
    return {
        "epsilon": found.chosen.plan.problem.budget.epsilon,
        "delta": found.chosen.plan.problem.budget.delta,
        "arms": [
            {
                "mechanism": arm.name,
                "batch_size": arm.plan.problem.batch_size,
                "steps": arm.plan.steps,
                "accuracy": arm.accuracy.value,
                "margin": arm.accuracy.margin,
                "accuracies": arm.accuracies,
                "error": arm.plan.error,
                "epsilon": arm.report.guarantee.value if arm.report.guarantee else None,
                "run": str(arm.directory),
            }
            for arm in found.arms
        ],
        "gains": [{"over": i, "accuracy": g.value, "margin": g.margin} for i, g in enumerate(gains)],
        "without_noise": {"accuracy": found.without_noise.value, "margin": found.without_noise.margin},
    }
