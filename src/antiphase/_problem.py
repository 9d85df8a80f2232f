"""The problem that the planner solves: a training run, its privacy budget and its limits."""

from __future__ import annotations

from typing import final

from antiphase import _check
from antiphase._accounting import Adjacency, Budget, check_adjacency
from antiphase._escape import reorders
from antiphase._loss import Objective, check_objective
from antiphase._participation import Participation
from antiphase._record import optional, record
from antiphase._workload import PrefixSum, Workload

BATCH_SIZE_TOLERANCE = 0.05  # relative difference allowed between stated and expected batch size


@final
@record
class Problem:
    """Describes a training run and its privacy budget. `plan` finds the mechanism with the smallest error for it.

    Contradictory arguments raise `InvalidArgument`, and the hint names the nearest values that work.

    Args:
        steps: number of training steps, n.
        budget: privacy budget (epsilon, delta) of the whole run.
        examples: number of examples in the data set, if known.
        batch_size: expected number of examples per step.
        participation: which steps an example can take part in, as guaranteed by the data pipeline. None lets the
            planner choose a participation from `examples` and `batch_size`.
        workload: linear map from gradients to iterates, such as `PrefixSum()` for plain SGD, or `Momentum(...)`.
        adjacency: "zero-out", "add-or-remove" or "replace".
        memory_copies: maximum number of model-sized buffers for the noise; None for no limit.
        objective: the error to minimize. "training" adds two terms. The first is the noise left in the model at the end
            of training, averaged over directions of different curvature. The second is the noise over all steps in
            directions without curvature, with a factor that makes both terms equal for independent noise. To choose
            curvatures yourself, pass `Curvatures`. "rms" and "max" measure the noise in the iterates over all steps, as
            if gradients did not depend on the parameters. They predict accuracy less well (see docs/training.md).
        clip_norm: norm to which you clip each example's contribution to a step. `Run.gradient_noise` and the
            integrations multiply the noise by it; `NoiseStream` does not.
        unit: word for the unit of privacy in reports, such as "example", "user" or "device".
        parameters: number of model parameters, if known. The plan then reports the memory of the noise in bytes.
        learning_rate: largest learning rate, for the objective "training". If None, the planner predicts it from the
            noise.
        lattice: whether to make the noise in exact integers on a grid, so that the guarantee covers every bit of a
            release (docs/lattice-noise.md). Needs `parameters`. The plan chooses the grid.

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
    objective: Objective = "training"
    clip_norm: float = 1.0
    unit: str = "example"
    parameters: int | None = optional(None)
    learning_rate: float | None = optional(None)
    lattice: bool = optional(False)

    def __post_init__(self) -> None:
        owner = "Problem"
        # Store Python numbers, because small NumPy integers can overflow.
        self._store("steps", _check.positive_integer(owner, "steps", self.steps, "a run has at least one step"))
        for name in ("examples", "batch_size", "parameters"):
            if getattr(self, name) is not None:
                self._store(name, _check.positive_integer(owner, name, getattr(self, name)))
        _check_type(self.budget, Budget, "budget", "Budget(epsilon, delta)")
        _check_type(self.workload, Workload, "workload", "PrefixSum() or Momentum(beta)")
        if self.participation is not None:
            _check_type(self.participation, Participation, "participation", "FixedEpochs(epochs, steps_per_epoch)")
        if self.memory_copies is not None:
            copies = _check.integer(self.memory_copies)
            if copies is None or not 0 <= copies <= _check.LARGEST_COUNT:
                must, hint = "an integer from 0 to 2^53", "use None for no limit"
                raise _check.invalid(owner, "memory_copies", must, self.memory_copies, hint)
            self._store("memory_copies", copies)
        hint = "pass the largest norm of one contribution"
        self._store("clip_norm", _check.real(owner, "clip_norm", self.clip_norm, 1e-300, 1e300, hint))
        if self.learning_rate is not None:
            hint = "pass the largest rate of the schedule, or None if it is not known yet"
            self._store("learning_rate", _check.real(owner, "learning_rate", self.learning_rate, 1e-300, 1e300, hint))
        object.__setattr__(self, "objective", check_objective(owner, self.objective))
        object.__setattr__(self, "adjacency", check_adjacency(owner, self.adjacency))
        if not _check.text(owner, "unit", self.unit, "use 'example' or 'user'"):
            raise _check.invalid(owner, "unit", "a word", self.unit, "use 'example' or 'user'")
        if reorders(self.unit):
            hint = "remove characters that control the writing direction, such as U+202E"
            raise _check.invalid(owner, "unit", "text without bidirectional control characters", self.unit, hint)
        _check_lattice(self)
        self.workload.check_steps(self.steps)
        _check_batch(self)
        _check_epochs(self)

    def _store(self, name: str, value: float) -> None:
        object.__setattr__(self, name, value)

    @property
    def epochs(self) -> float | None:
        """Average number of times each example is used; None if the number of examples or the batch size is unknown."""
        if self.examples is None or self.batch_size is None:
            return None
        return self.steps * self.batch_size / self.examples


def _check_type(value: object, kind: type, name: str, example: str) -> None:
    if not isinstance(value, kind):
        raise _check.invalid("Problem", name, f"a {kind.__name__}", value, f"pass for instance {example}")


def _check_lattice(problem: Problem) -> None:
    if not isinstance(problem.lattice, bool):
        raise _check.invalid(
            "Problem", "lattice", "True or False", problem.lattice, "use False for floating-point noise"
        )
    if problem.lattice and problem.parameters is None:
        hint = "pass the number of model parameters, or an upper bound: the rounding of the noise depends on it"
        raise _check.invalid("Problem", "parameters", "given with lattice=True", None, hint)


def _check_batch(problem: Problem) -> None:
    examples, batch_size, participation = problem.examples, problem.batch_size, problem.participation
    if examples is None or batch_size is None:
        return
    if batch_size > examples:
        raise _check.invalid(
            "Problem",
            "batch_size",
            f"at most the number of examples, {examples}",
            batch_size,
            f"the nearest problem that works has batch_size={examples}",
        )
    if participation is None or participation.sampling_groups is None:
        return
    drawn = participation.expected_batch(examples, problem.steps)
    if abs(drawn - batch_size) > max(1.0, BATCH_SIZE_TOLERANCE * batch_size):
        raise _check.invalid(
            "Problem",
            "batch_size",
            f"about {drawn:g}, the average batch size of {participation} with {examples} examples",
            batch_size,
            f"the nearest problem that works has batch_size={max(1, round(drawn))}; or leave batch_size out",
        )


def _check_epochs(problem: Problem) -> None:
    participation = problem.participation
    if participation is None or participation.max_steps is None:
        return
    fit = participation.max_steps
    if problem.steps > fit:
        raise _check.invalid(
            "Problem",
            "steps",
            f"at most {fit}, the number of steps that {participation} allows",
            problem.steps,
            f"the nearest problems that work have steps={fit}, or participation="
            f"{participation.for_steps(problem.steps)}",
        )
