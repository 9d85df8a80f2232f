"""Compares DP-SGD with the mechanism that the planner chooses. Data, epochs and epsilon are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from antiphase._accounting import Budget
from antiphase._check import invalid, positive_integer
from antiphase._demo.confidence_interval import Interval, difference, mean
from antiphase._demo.digits import Digits, load_digits
from antiphase._demo.training import schedule, train, train_without_privacy
from antiphase._plan import Plan
from antiphase._planner import plan
from antiphase._problem import Problem
from antiphase._run import PrivacyReport
from antiphase._workload import Momentum

EPSILON, DELTA = 4.0, 1e-5
EPOCHS = 1
MEMORY_COPIES = 4
QUICK_PIPELINES = ("poisson", "cyclic-poisson", "fixed-epochs")  # these need no Monte Carlo accounting
BATCH_SIZE = 16
LARGER_BATCH_SIZE = 64  # the best batch size for DP-SGD among 16, 32, 64 and 128
# Initial learning rates. Each is the best power of two for its arm (see `Arm`), from at least twelve separate runs.
DP_SGD_RATE, DP_SGD_LARGER_RATE, CHOSEN_RATE, NOISELESS_RATE = 4.0, 16.0, 4.0, 8.0
SEEDS = 20

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Arm:
    """One arm of the comparison: several runs with the same mechanism.

    Args:
        name: the name of the mechanism.
        plan: the plan of the runs.
        learning_rate: the learning rate of SGD at the first step.
        accuracies: accuracy on the test examples, one number per run.
        report: the privacy report of the first run, derived from its ledger.
        directory: the directory of the first run.
    """

    name: str
    plan: Plan
    learning_rate: float
    accuracies: tuple[float, ...]
    report: PrivacyReport
    directory: Path

    @property
    def accuracy(self) -> Interval:
        """Mean accuracy over the runs, with its confidence interval."""
        return mean(self.accuracies)


@dataclass(frozen=True)
class Comparison:
    """The result of the demo.

    Args:
        plain: DP-SGD with the batch size of the chosen mechanism.
        larger: DP-SGD with its best batch size, which is larger than that of the chosen mechanism.
        chosen: the mechanism that the planner chose.
        without_noise: accuracy of training without noise, which is not private.
    """

    plain: Arm
    larger: Arm
    chosen: Arm
    without_noise: Interval

    @property
    def arms(self) -> tuple[Arm, Arm, Arm]:
        """The private arms."""
        return self.plain, self.larger, self.chosen

    def gain(self, over: Arm) -> Interval:
        """Return the gain in accuracy of the chosen mechanism over another arm."""
        return difference(self.chosen.accuracies, over.accuracies)


@dataclass(frozen=True)
class _Trainer:
    """Trains the arms of the comparison.

    Args:
        data: training and test examples.
        directory: directory in which the runs are stored.
        seeds: number of runs per arm.
        report: function that is called with a description before each run.
    """

    data: tuple[Digits, Digits]
    directory: Path
    seeds: int
    report: Callable[[str], None]

    def arm(self, label: str, found: Plan, rate: float) -> Arm:
        name = found.candidates[0].name
        runs = []
        for seed in range(self.seeds):
            self.report(f"training, {name}")
            runs.append(train(found, *self.data, rate, self.directory / f"{label}-{seed + 1:02d}"))
        accuracies = tuple(run.accuracy for run in runs)
        return Arm(name, found, rate, accuracies, runs[0].report, runs[0].directory)

    def without_noise(self, found: Plan) -> Iterator[float]:
        for _ in range(self.seeds):
            self.report("training without noise")
            yield train_without_privacy(found, *self.data, NOISELESS_RATE)


def compare(directory: Path, seeds: int = SEEDS, progress: Progress | None = None) -> Comparison:
    """Plan, train `seeds` runs with each mechanism, and compare their accuracy.

    All arms make the same number of passes over the data. With many passes and large batches, amplification by sampling
    is strong, and DP-SGD is nearly as accurate. With few passes, correlated noise is more accurate.

    Args:
        directory: directory in which the runs are stored, one subdirectory for each run.
        seeds: number of runs per mechanism, at least 2.
        progress: called as progress(description, fraction done).
    """
    if positive_integer("compare", "seeds", seeds) < 2:
        raise invalid("compare", "seeds", "at least 2", seeds, "an interval needs at least two runs")
    report = progress or (lambda description, fraction: None)
    data = load_digits()
    problem = demo_problem(len(data[0]), BATCH_SIZE)
    report("planning", 0.0)
    plain, chosen = plan(problem, ["identity"]), plan(problem, pipelines=QUICK_PIPELINES)
    larger = plan(demo_problem(len(data[0]), LARGER_BATCH_SIZE), ["identity"])
    fractions = iter((i + 1) / (4 * seeds + 1) for i in range(4 * seeds))
    trainer = _Trainer(data, directory, seeds, lambda description: report(description, next(fractions)))
    return Comparison(
        trainer.arm("dp-sgd", plain, DP_SGD_RATE),
        trainer.arm("dp-sgd-larger", larger, DP_SGD_LARGER_RATE),
        trainer.arm("chosen", chosen, CHOSEN_RATE),
        mean(list(trainer.without_noise(chosen))),
    )


def demo_problem(examples: int, batch_size: int) -> Problem:
    """Return the problem of the demo: one epoch on the digits, with memory for a few copies of the model."""
    steps = round(EPOCHS * examples / batch_size)
    return Problem(
        steps=steps,
        budget=Budget(EPSILON, DELTA),
        examples=examples,
        batch_size=batch_size,
        workload=Momentum(0.0, schedule(steps)),
        memory_copies=MEMORY_COPIES,
    )
