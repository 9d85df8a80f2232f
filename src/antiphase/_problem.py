"""A problem: what a user wants to train and what it may cost."""

from __future__ import annotations

from typing import final

from antiphase import _check
from antiphase._accounting import Adjacency, Budget, check_adjacency
from antiphase._loss import Objective, check_objective
from antiphase._participation import Participation
from antiphase._record import record
from antiphase._workload import PrefixSum, Workload


@final
@record
class Problem:
    """Steps, data, budget and limits; `plan` finds the mechanism with the least error for it.

    Args:
        steps: n.
        budget: the (epsilon, delta) the whole run may cost.
        examples: size of the data set, where known.
        batch_size: expected examples a step.
        participation: what the data pipeline can promise; None lets the planner choose from examples and batch size.
        workload: what the optimizer does with the gradients.
        adjacency: "zero-out", "add-or-remove" or "replace".
        memory_copies: the most model-sized buffers the noise may use, or None.
        objective: "rms" or "max" over the steps.
        clip_norm: the largest norm of one example's contribution.
        unit: what is protected, in words: "example", "user", "device".

    >>> import antiphase as ap
    >>> ap.Problem(steps=100, budget=ap.Budget(1.0, 1e-6), examples=1000, batch_size=50).epochs
    5.0
    """

    steps: int
    budget: Budget
    examples: int | None = None
    batch_size: int | None = None
    participation: Participation | None = None
    workload: Workload = PrefixSum()
    adjacency: Adjacency = "zero-out"
    memory_copies: int | None = None
    objective: Objective = "rms"
    clip_norm: float = 1.0
    unit: str = "example"

    def __post_init__(self) -> None:
        owner = "Problem"
        _check.positive_integer(owner, "steps", self.steps, "a run has at least one step")
        for name in ("examples", "batch_size"):
            if getattr(self, name) is not None:
                _check.positive_integer(owner, name, getattr(self, name))
        _check_type(self.budget, Budget, "budget", "Budget(epsilon, delta)")
        _check_type(self.workload, Workload, "workload", "PrefixSum() or Momentum(beta)")
        if self.participation is not None:
            _check_type(self.participation, Participation, "participation", "FixedEpochs(epochs, steps_per_epoch)")
        if self.memory_copies is not None and (isinstance(self.memory_copies, bool) or self.memory_copies < 0):
            raise _check.refuse(owner, "memory_copies", "zero or more", self.memory_copies, "None means no limit")
        _check.real(owner, "clip_norm", self.clip_norm, 1e-300, 1e300, "the largest norm of one contribution")
        check_objective(owner, self.objective)
        check_adjacency(owner, self.adjacency)
        if not isinstance(self.unit, str) or not self.unit:
            raise _check.refuse(owner, "unit", "a word", self.unit, "'example' or 'user'")
        self.workload.check_steps(self.steps)
        self._check_batch()

    @property
    def epochs(self) -> float | None:
        """How often an example is used on average, where examples and batch size are known."""
        if self.examples is None or self.batch_size is None:
            return None
        return self.steps * self.batch_size / self.examples

    def _check_batch(self) -> None:
        if self.examples is not None and self.batch_size is not None and self.batch_size > self.examples:
            raise _check.refuse(
                "Problem",
                "batch_size",
                f"at most the number of examples, {self.examples}",
                self.batch_size,
                f"the nearest problem that works has batch_size={self.examples}",
            )


def _check_type(value: object, kind: type, name: str, example: str) -> None:
    if not isinstance(value, kind):
        raise _check.refuse("Problem", name, f"a {kind.__name__}", value, f"for instance {example}")
