"""`antiphase plan`: find the best mechanism for a privacy budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import antiphase as ap
from antiphase import _check
from antiphase._bound import digits_up, rounded_up
from antiphase._cli.compilation import reported
from antiphase._cli.output import print_facts, print_json, print_message, print_table, progress_bar
from antiphase._durable import check_output
from antiphase._errors import InvalidArgument
from antiphase._plan import in_words
from antiphase._planner import FAMILIES, PIPELINES, affordable_copies

GIGABYTE = 1 << 30


def plan(
    steps: Annotated[int, typer.Option(help="Number of training steps.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget, epsilon.")],
    delta: Annotated[float, typer.Option(help="Privacy budget, delta. Choose it well below 1 / examples.")],
    examples: Annotated[int | None, typer.Option(help="Number of examples in the data set.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Expected number of examples per step.")] = None,
    momentum: Annotated[float, typer.Option(help="Momentum of the optimizer.")] = 0.0,
    min_separation: Annotated[
        int | None, typer.Option(help="Minimum number of steps between two participations of an example.")
    ] = None,
    participation: Annotated[
        str | None,
        typer.Option(
            help=f"Ways to draw batches that your data pipeline supports, comma-separated: {', '.join(PIPELINES)}.",
            autocompletion=lambda: PIPELINES,
        ),
    ] = None,
    adjacency: Annotated[
        str,
        typer.Option(
            help="Adjacency: zero-out, add-or-remove or replace.",
            autocompletion=lambda: ("zero-out", "add-or-remove", "replace"),
        ),
    ] = "zero-out",
    memory_copies: Annotated[
        int | None, typer.Option(help="Maximum number of model-sized buffers for the noise.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Number of model parameters, to state memory in bytes and for --memory-gb.")
    ] = None,
    memory_gb: Annotated[float | None, typer.Option(help="Memory for the noise on each machine, in GB.")] = None,
    machines: Annotated[int, typer.Option(help="Number of machines that share the noise.")] = 1,
    objective: Annotated[
        str,
        typer.Option(
            help="Noise to minimize: training (mainly the noise left at the end), or rms or max over all steps.",
            autocompletion=lambda: ("training", "rms", "max"),
        ),
    ] = "training",
    learning_rate: Annotated[
        float | None, typer.Option(help="Largest learning rate, if known, for the objective training.")
    ] = None,
    lattice: Annotated[
        bool,
        typer.Option(help="Make noise in exact integers; the guarantee covers every released bit. Needs --parameters."),
    ] = False,
    families: Annotated[
        str | None,
        typer.Option(
            help=f"Families to try, comma-separated: {', '.join(FAMILIES)}.", autocompletion=lambda: tuple(FAMILIES)
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File for the plan.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List all candidates.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Find the mechanism with the least error for a privacy budget.

    Example: antiphase plan --steps 2000 --examples 50000 --batch-size 500 --epsilon 1 --delta 1e-5 --output plan.json
    """
    if min_separation is not None and participation is not None:
        raise InvalidArgument("--min-separation and --participation cannot be combined.", hint="use only one of them")
    problem = ap.Problem(
        steps=steps,
        budget=ap.Budget(epsilon, delta),
        examples=examples,
        batch_size=batch_size,
        participation=None if min_separation is None else ap.MinSeparation(min_separation),
        workload=ap.Momentum(momentum) if momentum else ap.PrefixSum(),
        adjacency=adjacency,  # type: ignore[arg-type]  # Problem checks it
        memory_copies=_copies(memory_copies, parameters, memory_gb, machines),
        objective=objective,  # type: ignore[arg-type]  # Problem checks it
        parameters=parameters,
        learning_rate=learning_rate,
        lattice=lattice,
    )
    if output is not None:
        check_output(output)
    with progress_bar() as bar, reported(bar) as progress:
        found = ap.plan(problem, _names(families), pipelines=_names(participation), progress=progress)
    if output is not None:
        found.save(output)
    if as_json:
        print_json({"fingerprint": found.fingerprint, **ap.to_json(found)})
    else:
        _print(found, show_all)
    if output is not None:
        print_message(f"wrote {output}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _copies(copies: int | None, parameters: int | None, memory_gb: float | None, machines: int) -> int | None:
    """Return `copies`, or if `memory_gb` is given, the number of copies that fit into all machines together."""
    if memory_gb is None:
        return copies
    if parameters is None or copies is not None:
        raise InvalidArgument(
            "--memory-gb needs --parameters and cannot be combined with --memory-copies.",
            hint="use either --memory-copies, or --memory-gb with --parameters",
        )
    memory = _check.real("plan", "--memory-gb", memory_gb, 0.0, 1e9, "pass the gigabytes on each machine")
    afforded = affordable_copies(parameters, int(memory * GIGABYTE), machines)
    print_message(
        f"{memory_gb:g} GB on {machines:,} machine(s) hold {afforded:,} copies of {parameters:,} float32 parameters"
    )
    return afforded


def _print(found: ap.Plan, show_all: bool) -> None:
    front = set(found.pareto)
    rows = [c for c in found.candidates if show_all or c in _worth_showing(found)]
    also_rms = found.problem.objective not in ("rms", "max")
    columns = ["mechanism", "batches", "error", *(["rms\nerror"] if also_rms else [])]
    print_table(
        _title(found.problem),
        [*columns, "noise\nmultiplier", "epsilon", "memory\ncopies", "seconds", "front"],
        (
            [
                c.name,
                c.batches,
                f"{c.error:.4g}",
                *(["" if c.rms_error is None else f"{c.rms_error:.4g}"] if also_rms else []),
                f"{c.noise_multiplier:.4g}",
                f"{rounded_up(c.epsilon)} {c.kind}",
                f"{c.memory_copies:,}",
                f"{c.seconds:.2f}",
                "*" if c in front else "",
            ]
            for c in rows
        ),
    )
    hidden = len(found.candidates) - len(rows)
    more = f"; {hidden} more candidates with --all" if hidden else ""
    typer.echo(
        "\nThe error is the noise in the model, for clipping norm 1. A * in the column front means that no other "
        f"candidate has both less error and less memory{more}.\n"
    )
    print_facts(_facts(found))
    if found.notes:
        typer.echo()
        print_facts(("-", note) for note in found.notes)


def _facts(found: ap.Plan) -> list[tuple[str, str]]:
    bound, delta = found.guarantee, digits_up(found.problem.budget.delta)
    return [
        ("plan", found.candidates[0].name),
        ("noise", f"{found.mechanism.noise_std:.6g} x clipping norm before it is correlated across steps"),
        ("batches", in_words(found.mechanism.participation)),
        ("guarantee", f"epsilon {rounded_up(bound.value, 6)} at delta {delta} ({bound.kind})"),
        ("proof", f"{bound.method}; {bound.reference}"),
        ("fingerprint", found.fingerprint),
    ]


def _title(problem: ap.Problem) -> str:
    data = ""
    if problem.epochs is not None:
        data = f" of {problem.batch_size:,} from {problem.examples:,} examples ({problem.epochs:.3g} epochs)"
    budget = f"epsilon {digits_up(problem.budget.epsilon)} at delta {digits_up(problem.budget.delta)}"
    return f"{problem.steps:,} steps{data}, {budget}, {problem.adjacency}"


def _worth_showing(found: ap.Plan) -> set[ap.Candidate]:
    """Return the Pareto front, and the best candidate of each family with each kind of batches."""
    best: dict[tuple[str, str], ap.Candidate] = {}
    for candidate in found.candidates:
        best.setdefault((candidate.family, candidate.batches), candidate)
    return {*best.values(), *found.pareto}
