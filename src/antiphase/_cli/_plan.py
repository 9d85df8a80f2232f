"""`antiphase plan`: which mechanism, how much noise, what it promises."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

import antiphase as ap
from antiphase._cli._output import print_json, print_table, talk

SHOWN = 12


def plan(
    steps: Annotated[int, typer.Option(help="Number of training steps.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget.")],
    delta: Annotated[float, typer.Option(help="Privacy budget, well below 1 / examples.")],
    examples: Annotated[int | None, typer.Option(help="Size of the data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step, on average.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of the optimizer.")] = 0.0,
    min_separation: Annotated[int | None, typer.Option(help="Steps between two participations.")] = None,
    participation: Annotated[
        str | None, typer.Option(help="What the pipeline can do: poisson, cyclic-poisson, fixed-epochs.")
    ] = None,
    memory_copies: Annotated[int | None, typer.Option(help="Most model-sized buffers for the noise.")] = None,
    objective: Annotated[str, typer.Option(help="rms or max over the steps.")] = "rms",
    families: Annotated[str | None, typer.Option(help="Comma-separated; all where left out.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the plan to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan for a program to read.")] = False,
) -> None:
    """Find the mechanism with the least error for a privacy budget.

    Example: antiphase plan --steps 2000 --examples 50000 --batch-size 500 --epsilon 1 --delta 1e-5 --output plan.json
    """
    problem = ap.Problem(
        steps=steps,
        budget=ap.Budget(epsilon, delta),
        examples=examples,
        batch_size=batch_size,
        participation=None if min_separation is None else ap.MinSeparation(min_separation),
        workload=ap.Momentum(momentum) if momentum else ap.PrefixSum(),
        memory_copies=memory_copies,
        objective=objective,  # type: ignore[arg-type]  # Problem checks it
    )
    with Status("Planning", console=Console(stderr=True)) as status:
        found = ap.plan(
            problem,
            None if families is None else families.split(","),
            pipelines=None if participation is None else participation.split(","),
            progress=lambda name: status.update(f"Trying {name}"),
        )
    if output is not None:
        found.save(output)
    if as_json:
        print_json({"fingerprint": found.fingerprint, **ap.to_json(found)})
    else:
        _print(found)
    if output is not None:
        talk(f"wrote {output}")


def _print(found: ap.Plan) -> None:
    budget, bound = found.problem.budget, found.guarantee
    print_table(
        f"{found.steps:,} steps, epsilon {budget.epsilon:g} at delta {budget.delta:g}, {found.mechanism.adjacency}",
        ["mechanism", "error", "noise\nmultiplier", "epsilon", "memory\ncopies", "seconds", "batches"],
        (
            [
                c.name,
                f"{c.error:.3f}",
                f"{c.noise_multiplier:.3f}",
                f"{c.epsilon:.3f} {c.kind}",
                f"{c.memory_copies:,}",
                f"{c.seconds:.2f}",
                c.participation.partition("(")[0],
            ]
            for c in found.candidates[:SHOWN]
        ),
    )
    if len(found.candidates) > SHOWN:
        typer.echo(f"and {len(found.candidates) - SHOWN} more")
    typer.echo(f"\nPlan: {found.candidates[0].name}, noise {found.mechanism.noise_std:.4g} x clipping norm in C x + z,")
    typer.echo(f"batches from {found.mechanism.participation}.")
    typer.echo(f"Guarantee: epsilon {bound.value:.4g} ({bound.kind}, {bound.method}).")
    for note in found.notes:
        typer.echo(f"- {note}")
