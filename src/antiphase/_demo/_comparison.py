"""DP-SGD beside the mechanism that the planner chooses: same data, same passes, same epsilon, several runs each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphase._accounting import Budget
from antiphase._check import positive_integer
from antiphase._demo._digits import Digits, load_digits
from antiphase._demo._interval import Interval, difference, mean
from antiphase._demo._training import schedule, train, train_without_privacy
from antiphase._plan import Plan
from antiphase._planner import plan
from antiphase._problem import Problem
from antiphase._run import PrivacyReport
from antiphase._workload import Momentum

EPSILON, DELTA = 4.0, 1e-5
PASSES = 1
MEMORY_COPIES = 4
BATCH_SIZE = 16
LARGER_BATCH = 64  # of 16, 32, 64 and 128 the best for DP-SGD
# The best powers of two for each, over twelve runs or more that are not those of the demo.
PLAIN_RATE, LARGER_RATE, CHOSEN_RATE, BARE_RATE = 4.0, 16.0, 4.0, 8.0
SEEDS = 20

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Arm:
    """One side of the comparison.

    Args:
        name: of the mechanism.
        plan: what was run.
        learning_rate: of SGD, at the first step.
        accuracies: on the test examples, one a run.
        report: of the first run, derived from its ledger.
        directory: of the first run.
    """

    name: str
    plan: Plan
    learning_rate: float
    accuracies: tuple[float, ...]
    report: PrivacyReport
    directory: Path

    @property
    def accuracy(self) -> Interval:
        """The mean over the runs."""
        return mean(self.accuracies)


@dataclass(frozen=True)
class Comparison:
    """DP-SGD with the same batches, DP-SGD with larger ones that suit it, the mechanism chosen, and no noise at all."""

    plain: Arm
    larger: Arm
    chosen: Arm
    without_noise: Interval

    @property
    def arms(self) -> tuple[Arm, Arm, Arm]:
        """All that are private."""
        return self.plain, self.larger, self.chosen

    def gain(self, over: Arm) -> Interval:
        """By how much the mechanism chosen is more accurate than another."""
        return difference(self.chosen.accuracies, over.accuracies)


@dataclass(frozen=True)
class _Work:
    """What every arm needs."""

    data: tuple[Digits, Digits]
    directory: Path
    seeds: int
    tell: Callable[[str], None]

    def arm(self, label: str, found: Plan, rate: float) -> Arm:
        name = found.candidates[0].name
        runs = []
        for seed in range(self.seeds):
            self.tell(f"training, {name}")
            runs.append(train(found, *self.data, rate, self.directory / f"{label}-{seed + 1:02d}"))
        accuracies = tuple(run.accuracy for run in runs)
        return Arm(name, found, rate, accuracies, runs[0].report, runs[0].directory)

    def without_noise(self, found: Plan) -> Iterator[float]:
        for _ in range(self.seeds):
            self.tell("training without noise")
            yield train_without_privacy(found, *self.data, BARE_RATE)


def compare(directory: Path, seeds: int = SEEDS, progress: Progress | None = None) -> Comparison:
    """Plan, train `seeds` runs with each mechanism, keep their directories below `directory`.

    The passes over the data are what all have in common: with many passes and large batches amplification by sampling
    does most of the work and the two come close; with few passes correlated noise gains.
    """
    positive_integer("compare", "seeds", seeds - 1, "an interval needs at least two runs")
    tell = progress or (lambda name, share: None)
    data = load_digits()
    problem = demo_problem(len(data[0]), BATCH_SIZE)
    tell("planning", 0.0)
    plain, chosen = plan(problem, ["identity"]), plan(problem)
    larger = plan(demo_problem(len(data[0]), LARGER_BATCH), ["identity"])
    share = iter((i + 1) / (4 * seeds + 1) for i in range(4 * seeds))
    work = _Work(data, directory, seeds, lambda name: tell(name, next(share)))
    return Comparison(
        work.arm("dp-sgd", plain, PLAIN_RATE),
        work.arm("dp-sgd-larger", larger, LARGER_RATE),
        work.arm("chosen", chosen, CHOSEN_RATE),
        mean(list(work.without_noise(chosen))),
    )


def demo_problem(examples: int, batch_size: int) -> Problem:
    """One pass over the digits, with room for a few copies of the model."""
    steps = round(PASSES * examples / batch_size)
    return Problem(
        steps=steps,
        budget=Budget(EPSILON, DELTA),
        examples=examples,
        batch_size=batch_size,
        workload=Momentum(0.0, schedule(steps)),
        memory_copies=MEMORY_COPIES,
    )
