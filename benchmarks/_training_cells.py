"""Measures the accuracy of mechanisms in training, with one table for each task.

A task trains models. Each row of its table is a way to choose a mechanism, and each column is an epsilon. For each
cell of the table, the learning rate is tuned with two seeds, by the same procedure for every row. Then models are
trained with other seeds to measure the accuracy. These seeds are run in blocks of ten, so that more blocks can be added
later. Results are stored as lines of JSON, and stored results are not computed again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import antiphase as ap
from benchmarks._measure import TINY, sized

CURVATURES = (0.0, *(10.0 ** (i / 5) for i in range(-25, 1)))  # values of curvature x learning rate, h
TUNING_SEEDS = (100, 101)
BLOCK = sized(10, 2)
CACHE = Path(__file__).parents[1] / "build" / "training"
Line = dict[str, Any]
Runs = Callable[[ap.Mechanism, tuple[int, ...], tuple[float, ...]], dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Task:
    """A training task.

    Args:
        name: name of the task.
        steps: number of steps.
        per_epoch: number of steps per epoch.
        examples: number of examples or users.
        batch_size: expected number of examples per step.
        workload: workload of the optimizer.
        first_rates: for each epsilon, the learning rate at which tuning starts.
        runs: function of (mechanism, seeds, learning rates) that trains one model for each seed and learning rate. It
            returns a dict of arrays of shape (rates, seeds). The array "accuracy" is used for tuning.
        results: path of the results file.
        unamplified: the participation for rows without amplification. By default, every example takes part once per
            epoch, always at the same position.
        delta: delta of the privacy budget.
        clip_norm: clipping norm.
    """

    name: str
    steps: int
    per_epoch: int
    examples: int
    batch_size: int
    workload: ap.Momentum
    first_rates: dict[float, float]
    runs: Runs
    results: Path
    unamplified: ap.FixedEpochs | ap.MinSeparation | None = None
    delta: float = 1e-5
    clip_norm: float = 1.0

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return self.steps // self.per_epoch

    def problem(self, epsilon: float) -> ap.Problem:
        """Return the problem for the planner. It does not specify a participation."""
        budget = ap.Budget(epsilon, self.delta)
        return ap.Problem(
            self.steps, budget, examples=self.examples, batch_size=self.batch_size, workload=self.workload
        )


@dataclass(frozen=True)
class Made:
    """A mechanism, a short description of it, and its predicted losses by the name of the prediction."""

    mechanism: ap.Mechanism
    words: str
    predicted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A way to choose a mechanism for a task and an epsilon.

    Args:
        title: title in tables.
        make: function that creates the mechanism; called once for each cell.
        group: whether the mechanism uses amplification. Only rows of the same group are compared.
        chosen: True if this row is the planner's choice, with which the other rows of its group are compared.
    """

    title: str
    make: Callable[[Task, float], Made]
    group: Literal["amplified", "unamplified"]
    chosen: bool = False


class Kept:
    """The lines of a results file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Line] = []
        self.reload()

    def reload(self) -> None:
        """Read the file again, because another process may have added lines."""
        if self._path.is_file():
            self.rows = [json.loads(line) for line in self._path.read_text().splitlines()]

    def add(self, **row: Any) -> None:
        """Append one line."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def find(self, **wanted: Any) -> list[Line]:
        """Return the lines that have all these values."""
        return [row for row in self.rows if wanted.items() <= row.items()]

    def forget(self, **wanted: Any) -> None:
        """Remove the lines that have all these values."""
        self.rows = [row for row in self.rows if not wanted.items() <= row.items()]
        self._path.write_text("".join(json.dumps(row) + "\n" for row in self.rows))


def measure(task: Task, rows: dict[str, Row], epsilons: Iterable[float], seeds: int, kept: Kept) -> None:
    """Compute the cells that are not in the results file yet. `seeds` is rounded up to a multiple of BLOCK."""
    blocks = [tuple(range(start, start + BLOCK)) for start in range(0, seeds, BLOCK)]
    for epsilon in epsilons:
        for name, row in rows.items():
            kept.reload()
            case = {"row": name, "epsilon": epsilon}
            done = {line["seed"] for line in kept.find(stage="final", **case)}
            missing = [block for block in blocks if not set(block) <= done]
            if not missing:
                continue
            start, cpu = time.perf_counter(), time.process_time()
            made = mechanism_of(task, name, row, epsilon, kept)
            rate = tuned(task, made, case, kept)
            for block in missing:
                found = task.runs(made.mechanism, block, (rate,))
                for i, seed in enumerate(block):
                    values = {key: float(value[0, i]) for key, value in found.items()}
                    kept.add(stage="final", **case, rate=rate, seed=seed, **values)
            mean = np.mean([line["accuracy"] for line in kept.find(stage="final", **case)])
            spent = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of one core"
            print(f"{task.name}, {name}, epsilon {epsilon:g}: {mean:.2%} at {rate:g}; {spent}", file=sys.stderr)


def tuned(task: Task, made: Made, case: Line, kept: Kept) -> float:
    """Return the learning rate with the best mean accuracy over TUNING_SEEDS.

    The search starts at the learning rate in `first_rates` and moves by factors of two while the accuracy improves.
    """
    known = {line["rate"]: line["accuracy"] for line in kept.find(stage="tuning", **case)}
    best = task.first_rates[case["epsilon"]]
    while True:
        rates = tuple(rate for rate in (best / 2, best, best * 2) if rate not in known)
        if rates:
            found = task.runs(made.mechanism, TUNING_SEEDS, rates)["accuracy"].mean(1)
            for rate, value in zip(rates, found.tolist(), strict=True):
                kept.add(stage="tuning", **case, rate=rate, accuracy=value)
                known[rate] = value
        around = {rate: known[rate] for rate in (best / 2, best, best * 2)}
        if around[best] == max(around.values()):
            return best
        best = max(around, key=lambda rate: around[rate])


def mechanism_of(task: Task, name: str, row: Row, epsilon: float, kept: Kept) -> Made:
    """Return the mechanism of a cell, from the cache on this machine if possible.

    Exits if the results file has results of a different mechanism for this cell.
    """
    path = CACHE / task.name / f"{name}-{epsilon:g}.json"
    if path.exists() and not TINY:
        stored = json.loads(path.read_text())
        made = Made(ap.from_json(stored["mechanism"]), stored["words"], stored["predicted"])
    else:
        made = row.make(task, epsilon)
        if not TINY:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {"mechanism": ap.to_json(made.mechanism), "words": made.words, "predicted": made.predicted}
            path.write_text(json.dumps(content))
    case = {"row": name, "epsilon": epsilon}
    known = kept.find(stage="plan", **case)
    described = description(task, made)
    if not known:
        kept.add(stage="plan", **case, **described)
    elif not np.allclose(known[0]["last"], described["last"], rtol=0.02):
        raise SystemExit(
            f"The mechanism of {name} at epsilon {epsilon:g} differs from the one whose results are in "
            f"{task.results.name}. Give the row another name, or remove its results with --forget {name}."
        )
    return made


def description(task: Task, made: Made) -> Line:
    """Return the properties of a mechanism that are known before training, such as its noise by curvature."""
    mechanism = made.mechanism
    rms, last = noise_by_curvature(task, mechanism)
    return {
        "words": made.words,
        "noise_std": mechanism.noise_std,
        "memory_copies": mechanism.strategy.memory_copies,
        "participation": str(mechanism.participation),
        "predicted": made.predicted,
        "rms": rms,
        "last": last,
    }


def noise_by_curvature(task: Task, mechanism: ap.Mechanism) -> tuple[list[float], list[float]]:
    """Return the standard deviation of the noise in the model for every h in CURVATURES.

    The first list has its rms over the steps, and the second list its value at the last step. The recursion is
    m_t = beta m_{t-1} + h theta_{t-1} + w_t, theta_t = theta_{t-1} - s_t m_t. Here w is the noise, m the momentum,
    theta the parameter and s the learning rate schedule.
    """
    noising = np.ascontiguousarray(mechanism.strategy.noising())
    beta, rates = task.workload.beta, task.workload.learning_rates
    rates = np.ones(task.steps) if rates is None else rates
    rms, last = [], []
    for h in CURVATURES:
        theta, momentum, squares = np.zeros(noising.shape[1]), np.zeros(noising.shape[1]), 0.0
        for t in range(task.steps):
            momentum *= beta
            momentum += h * theta + noising[t]
            theta -= rates[t] * momentum
            squares += float(theta @ theta)
        scale = mechanism.noise_std
        rms.append(float(f"{scale * np.sqrt(squares / task.steps):.6g}"))
        last.append(float(f"{scale * np.sqrt(theta @ theta):.6g}"))
    return rms, last


# ---- batches and noise for tasks


def draw_batches(participation: Any, examples: int, steps: int, seed: int) -> list[np.ndarray]:
    """Return the example indices of every step of a run, with the distribution that the participation prescribes.

    The library's own samplers use a cipher and would take longer than the training. For Poisson and CyclicPoisson, the
    same distribution is sampled with a NumPy generator instead. For FixedEpochs and MinSeparation, the examples are
    permuted once, and every epoch goes through them in this order. Other participations use the library's samplers.
    """
    rng = np.random.default_rng([seed, 2025])
    if isinstance(participation, (ap.FixedEpochs, ap.MinSeparation)):
        parts = np.array_split(rng.permutation(examples), participation.spacing(steps))
        return [parts[step % len(parts)] for step in range(steps)]
    if isinstance(participation, (ap.Poisson, ap.CyclicPoisson)) and participation.max_batch is None:
        groups = np.array_split(rng.permutation(examples), participation.sampling_groups or 1)
        drawn = []
        for step in range(steps):
            group = groups[step % len(groups)]
            count = rng.binomial(len(group), participation.rate)
            drawn.append(np.sort(group[rng.choice(len(group), count, replace=False, shuffle=False)]))
        return drawn
    sampler = participation.sampler(examples, steps, ap.Secret.insecure(seed))
    found = [sampler.batch(step) for step in range(steps)]
    return [batch.indices[batch.mask] for batch in found]


def noise_of(mechanism: ap.Mechanism, seeds: tuple[int, ...], parameters: int) -> Iterable[np.ndarray]:
    """Yield noise of shape (seeds, parameters) for each step, for clipping norm 1.

    The noise of a seed depends on which other seeds are run with it.
    """
    shape, secret = [(len(seeds), parameters)], ap.Secret.insecure(seeds[0])
    stream = ap.NoiseStream(mechanism, shape, secret, threads=1, source="simulation")
    for _ in range(mechanism.strategy.steps):
        yield stream.next()[0]
