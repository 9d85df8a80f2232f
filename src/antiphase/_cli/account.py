"""`antiphase account`: compute the guarantee of a plan again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import antiphase as ap
from antiphase._accounting import drawn_like, epsilon_after
from antiphase._bound import digits_up, rounded_up
from antiphase._cli.output import print_facts, print_json
from antiphase._plan import in_words


def account(
    path: Annotated[Path, typer.Argument(help="Plan file, as written by antiphase plan --output.")],
    delta: Annotated[float | None, typer.Option(help="Delta for which to state epsilon; default: the plan's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps to account for; by default, all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Compute the guarantee of a plan from its mechanism, for any delta and number of steps.

    PATH is a plan file, as written by antiphase plan --output.

    Example: antiphase account plan.json --delta 1e-8 --steps 500
    """
    plan = ap.Plan.load(path)
    at = plan.problem.budget.delta if delta is None else delta
    mechanism = plan.mechanism
    drawn = drawn_like(plan.guarantee)
    if steps is not None:
        bound = epsilon_after(mechanism, steps, at, sampling=drawn)
    elif at == plan.problem.budget.delta:  # `Plan.load` has computed the guarantee for this delta
        bound = plan.guarantee
    else:
        bound = ap.epsilon(mechanism, at, drawn)
    if as_json:
        print_json({"delta": at, "steps": steps or plan.steps, "adjacency": mechanism.adjacency, **_plain(bound)})
        return
    print_facts(
        [
            ("mechanism", f"{type(mechanism.strategy).__name__}, batches by {in_words(mechanism.participation)}"),
            ("epsilon", rounded_up(bound.value, 6)),
            ("delta", digits_up(at)),
            ("steps", f"{steps or plan.steps:,} of {plan.steps:,}"),
            ("adjacency", mechanism.adjacency),
            ("unit", plan.problem.unit),
            ("kind", bound.kind),
            ("method", bound.method),
            ("theorem", bound.reference),
        ]
    )


def _plain(bound: ap.Bound) -> dict[str, object]:
    return {"epsilon": bound.value, "kind": bound.kind, "method": bound.method, "reference": bound.reference}
