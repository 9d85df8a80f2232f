"""Makes the plan of a `PrivateTrainer` from epsilon, delta and the training arguments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, NamedTuple

from antiphase._accounting import Budget
from antiphase._errors import InvalidArgument
from antiphase._plan import Plan
from antiphase._planner import plan as make_plan
from antiphase._problem import Problem
from antiphase.torch._loader import check_dataset


class Goal(NamedTuple):
    """Settings that `PrivateTrainer` makes a plan for.

    Args:
        epsilon: epsilon of the budget.
        delta: delta of the budget.
        batch_size: expected number of examples per step.
        clip_norm: clipping norm of each example.
        unit: what the guarantee protects, "example" or "user".
    """

    epsilon: float | None
    delta: float | None
    batch_size: int | None
    clip_norm: float
    unit: Literal["example", "user"]


def plan_for(goal: Goal, args: Any, dataset: Any, run_directory: str | Path) -> Plan:
    """Return the plan in the run directory, or a new plan if there is none.

    Raises `InvalidArgument` if the plan in the run directory was made for different settings.

    Args:
        goal: budget, batch size and clipping norm.
        args: training arguments, which determine the number of steps.
        dataset: training data set.
        run_directory: run directory, which may have a plan from an earlier start of the same training.
    """
    if goal.epsilon is None or goal.delta is None or goal.batch_size is None:
        raise InvalidArgument(
            "PrivateTrainer needs a plan, or epsilon, delta and batch_size.",
            hint="pass plan=antiphase.plan(problem), or epsilon=8.0, delta=1e-6, batch_size=64",
        )
    examples = check_dataset(dataset)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * examples / goal.batch_size)
    problem = Problem(
        steps=steps,
        budget=Budget(goal.epsilon, goal.delta),
        examples=examples,
        batch_size=goal.batch_size,
        clip_norm=goal.clip_norm,
        unit=goal.unit,
    )
    path = Path(run_directory, "plan.json")
    if not path.exists():
        return make_plan(problem)
    stored = Plan.load(path)
    if stored.problem != problem:
        raise InvalidArgument(
            f"The run in {str(run_directory)!r} was planned with different settings: {stored.problem}.",
            hint="use the same epsilon, delta, batch_size, clip_norm, data set and number of steps to resume, or "
            "a different run_directory for a new run",
        )
    return stored
