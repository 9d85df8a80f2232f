"""The settings of the explorer, and the Python code and the command that make a plan for them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphase._accounting import Adjacency, Budget, check_adjacency
from antiphase._check import invalid, real
from antiphase._planner import PIPELINES
from antiphase._problem import Problem

ANY = "any"
MAX_STEPS = 1_000_000
MAX_BATCH = 1 << 24


@dataclass(frozen=True)
class ExplorerSettings:
    """The settings of a plan that a user can change on the page.

    Args:
        steps: number of training steps.
        epochs: number of passes over the data.
        batch_size: expected number of examples per step.
        epsilon, delta: privacy budget.
        memory_copies: maximum number of model-sized buffers for the noise; None for no limit.
        participation: how batches are drawn, one of `PIPELINES`, or "any" to let the planner choose.
        adjacency: how two neighbouring data sets differ: "zero-out", "add-or-remove" or "replace" one example.
    """

    steps: int = 2000
    epochs: float = 20.0
    batch_size: int = 500
    epsilon: float = 8.0
    delta: float = 1e-5
    memory_copies: int | None = None
    participation: str = ANY
    adjacency: Adjacency = "zero-out"

    @classmethod
    def from_json(cls, data: Any) -> ExplorerSettings:
        """Return the settings that a page sent. Raises `InvalidArgument` for anything that is not a valid setting."""
        if not isinstance(data, Mapping) or set(data) != set(cls.__dataclass_fields__):
            fields = ", ".join(cls.__dataclass_fields__)
            raise invalid("explore", "settings", f"an object with exactly the fields {fields}", "something else", "")
        copies, participation = data["memory_copies"], data["participation"]
        if participation not in (ANY, *PIPELINES):
            raise invalid("explore", "participation", f"any of {', '.join((ANY, *PIPELINES))}", participation, "")
        return cls(
            steps=_whole("steps", data["steps"], 1, MAX_STEPS),
            epochs=_number("epochs", data["epochs"], 1e-3, 1e6),
            batch_size=_whole("batch size", data["batch_size"], 1, MAX_BATCH),
            epsilon=_number("epsilon", data["epsilon"], 1e-3, 1e4),
            delta=_number("delta", data["delta"], 1e-100, 0.5),
            memory_copies=None if copies is None else _whole("memory", copies, 0, MAX_STEPS),
            participation=participation,
            adjacency=check_adjacency("explore", data["adjacency"]),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self)

    @property
    def examples(self) -> int:
        """Number of examples, which follows from steps, batch size and epochs."""
        return max(self.batch_size, round(self.steps * self.batch_size / self.epochs))

    @property
    def pipelines(self) -> tuple[str, ...] | None:
        """The argument `pipelines` of `plan`; None for the planner's choice."""
        return None if self.participation == ANY else (self.participation,)

    @property
    def problem(self) -> Problem:
        """The problem to plan for."""
        return Problem(
            steps=self.steps,
            budget=Budget(self.epsilon, self.delta),
            examples=self.examples,
            batch_size=self.batch_size,
            adjacency=self.adjacency,
            memory_copies=self.memory_copies,
        )

    @property
    def python(self) -> str:
        """Python code that makes the plan."""
        lines = [
            "import antiphase as ap",
            "",
            "problem = ap.Problem(",
            f"    steps={self.steps},",
            f"    budget=ap.Budget(epsilon={self.epsilon!r}, delta={self.delta!r}),",
            f"    examples={self.examples},",
            f"    batch_size={self.batch_size},",
        ]
        if self.adjacency != "zero-out":
            lines.append(f'    adjacency="{self.adjacency}",')
        if self.memory_copies is not None:
            lines.append(f"    memory_copies={self.memory_copies},")
        pipelines = "" if self.pipelines is None else f', pipelines=["{self.participation}"]'
        return "\n".join([*lines, ")", f"plan = ap.plan(problem{pipelines})", "print(plan)"])

    @property
    def command(self) -> str:
        """The command line that makes the plan."""
        words = ["antiphase", "plan", "--steps", str(self.steps)]
        words += ["--examples", str(self.examples), "--batch-size", str(self.batch_size)]
        words += ["--epsilon", repr(self.epsilon), "--delta", repr(self.delta)]
        if self.adjacency != "zero-out":
            words += ["--adjacency", self.adjacency]
        if self.memory_copies is not None:
            words += ["--memory-copies", str(self.memory_copies)]
        if self.pipelines is not None:
            words += ["--participation", self.participation]
        return shlex.join(words)


def _number(name: str, value: Any, low: float, high: float) -> float:
    return real("explore", name, value, low, high, "change it on the page")


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid("explore", name, f"a whole number from {low:,} to {high:,}", value, "change it on the page")
    return value
