"""Accuracy of private training by mechanism and epsilon, on 50,000 pictures labelled by a fixed teacher.

20 epochs of 100 steps of 500 examples, a network of 4,810 parameters, heavy-ball SGD with a cool-down. For every
mechanism and epsilon the learning rate is chosen from one grid by the mean accuracy of two seeds that are not used
again; ten other seeds give the accuracy. Mechanism, noise and batches are the planner's. The secret of the noise is
known: this is a study of accuracy, and nothing here is kept private.

Results are kept line by line in training.jsonl beside this file: what is there is not computed again, so that a run can
be interrupted. Remove the file to begin anew, or name another with RESULTS=path. The picture is drawn anew each time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student_t

import antiphase as ap
from benchmarks._measure import print_table, sized
from benchmarks._student import PARAMETERS, accuracy, flat_params, teacher, train
from benchmarks._training_picture import picture

NOWHERE = Path(os.devnull)
RESULTS = sized(Path(os.environ.get("RESULTS", Path(__file__).with_name("training.jsonl"))), NOWHERE)
PICTURE = sized(Path(__file__).parents[1] / "docs" / "images" / "training.svg", NOWHERE)
EXAMPLES, BATCH, EPOCHS, STEPS = sized((50_000, 500, 20, 2000), (120, 20, 2, 12))
PER_EPOCH = STEPS // EPOCHS
EPSILONS = sized((0.5, 1.0, 2.0, 4.0, 8.0), (1.0, 8.0))
DELTA, CLIP, BETA = 1e-5, 1.0, 0.9
RATES = sized(tuple(2.0**i for i in range(-5, 3)), (0.5, 1.0))
TUNING, SEEDS = (100, 101), sized(tuple(range(10)), (0, 1))
SCHEDULE = ap.schedules.linear(STEPS, warmup=0.0, cooldown=0.25, floor=0.05)
WORKLOAD = ap.Momentum(BETA, SCHEDULE)
DENSE_TOLERANCE = 0.01
Row = dict[str, Any]


class Made(NamedTuple):
    """What is trained with, and what is expected of it."""

    name: str
    mechanism: ap.Mechanism
    error: float
    guarantee: float


def problem(epsilon: float) -> ap.Problem:
    return ap.Problem(STEPS, ap.Budget(epsilon, DELTA), examples=EXAMPLES, batch_size=BATCH, workload=WORKLOAD)


def planned(problem: ap.Problem, families: list[str], pipelines: list[str] | None = None) -> Made:
    plan = ap.plan(problem, families, pipelines=pipelines)
    return Made(plan.candidates[0].name, plan.mechanism, plan.error, plan.guarantee.value)


def in_bins(epsilon: float) -> Made:
    return planned(replace(problem(epsilon), participation=ap.BallsInBins(EPOCHS, PER_EPOCH)), ["blt"])


def dense(epsilon: float) -> Made:
    """Without amplification the best matrix does not depend on epsilon: found once, it is only scaled."""
    strategy = dense_strategy()
    found = ap.calibrate(strategy, ap.FixedEpochs(EPOCHS, PER_EPOCH), ap.Budget(epsilon, DELTA))
    error = found.mechanism.noise_std * ap.error(strategy, WORKLOAD).rms
    return Made(f"dense (to {DENSE_TOLERANCE:.0%})", found.mechanism, error, found.guarantee.value)


@cache
def dense_strategy() -> Any:
    promise = ap.FixedEpochs(EPOCHS, PER_EPOCH)
    found = ap.optimize("dense", steps=STEPS, participation=promise, workload=WORKLOAD, tolerance=DENSE_TOLERANCE)
    return found.strategy


MECHANISMS: dict[str, Callable[[float], Made]] = {
    "DP-SGD, Poisson": lambda e: planned(problem(e), ["identity"], ["poisson"]),
    "banded, amplified": lambda e: planned(problem(e), ["identity", "toeplitz", "banded"], ["cyclic-poisson"]),
    "dense, multi-epoch": dense,
    "BLT, balls in bins": in_bins,
}


class Kept:
    """The lines of the results file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def find(self, **wanted: Any) -> list[Row]:
        return [row for row in self.rows if wanted.items() <= row.items()]


def batches(made: Made, seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(indices, mask) of all steps and seeds from the mechanism's own sampler, padded to one width."""
    drawn = []
    for seed in seeds:
        secret = ap.Secret.insecure(seed)
        sampler = made.mechanism.participation.sampler(EXAMPLES, STEPS, secret)
        drawn.append([sampler.batch(step).indices for step in range(STEPS)])
    width = -(-max(len(batch) for run in drawn for batch in run) // 16) * 16
    indices = np.zeros((STEPS, len(seeds), width), np.int32)
    mask = np.zeros(indices.shape, bool)
    for seed, run in enumerate(drawn):
        for step, batch in enumerate(run):
            indices[step, seed, : len(batch)], mask[step, seed, : len(batch)] = batch, True
    return indices, mask


def runs(made: Made, seeds: tuple[int, ...], rates: tuple[float, ...], data: Any) -> np.ndarray:
    """Accuracies, of shape (rates, seeds); noise and batches of a seed are the same at every rate."""
    training, testing = data
    stream = ap.NoiseStream(made.mechanism, [(len(seeds), PARAMETERS)], ap.Secret.insecure(seeds[0]))
    indices, mask = batches(made, seeds)
    theta = np.broadcast_to(np.stack([flat_params(seed) for seed in seeds]), (len(rates), len(seeds), PARAMETERS))
    carry = (theta, np.zeros_like(theta))
    for start in range(0, STEPS, PER_EPOCH):
        here = slice(start, start + PER_EPOCH)
        noise = np.stack([stream.next()[0] for _ in range(PER_EPOCH)])
        steps = (noise, indices[here], mask[here], SCHEDULE[here].astype(np.float32))
        carry = train(carry, training, steps, np.array(rates, np.float32), (CLIP, BATCH, BETA))
    return np.asarray(accuracy(carry[0], testing))


def compare(kept: Kept, data: Any) -> None:
    """Everything that is not in the file yet."""
    for mechanism, make in MECHANISMS.items():
        for epsilon in EPSILONS:
            case = {"mechanism": mechanism, "epsilon": epsilon}
            if len(kept.find(stage="final", **case)) == len(SEEDS):
                continue
            start = time.perf_counter()
            made = make(epsilon)
            if not kept.find(stage="plan", **case):
                kept.add(stage="plan", **case, **described(made))
            if not kept.find(stage="tuning", **case):
                tuned = runs(made, TUNING, RATES, data).mean(1)
                for rate, value in zip(RATES, tuned.tolist(), strict=True):
                    kept.add(stage="tuning", **case, rate=rate, accuracy=value)
            best = max(kept.find(stage="tuning", **case), key=lambda row: row["accuracy"])["rate"]
            for seed, value in zip(SEEDS, runs(made, SEEDS, (best,), data)[0].tolist(), strict=True):
                kept.add(stage="final", **case, rate=best, seed=seed, accuracy=value)
            print(f"{mechanism}, epsilon {epsilon}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


def described(made: Made) -> Row:
    noise_std = made.mechanism.noise_std
    return {"name": made.name, "noise_std": noise_std, "error": made.error, "guarantee": made.guarantee}


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval."""
    half = student_t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def summary(kept: Kept) -> Iterator[tuple[str, float, float, float]]:
    """(mechanism, epsilon, mean, half width) of what is complete."""
    for mechanism in MECHANISMS:
        for epsilon in EPSILONS:
            rows = kept.find(stage="final", mechanism=mechanism, epsilon=epsilon)
            if len(rows) == len(SEEDS):
                yield mechanism, epsilon, *interval([row["accuracy"] for row in rows])


def main() -> None:
    kept = Kept(RESULTS)
    compare(kept, teacher.make_data(EXAMPLES))
    found = {(name, epsilon): f"{mean:.2%} ± {half:.2%}" for name, epsilon, mean, half in summary(kept)}
    rows = [[name, *(found.get((name, epsilon), "") for epsilon in EPSILONS)] for name in MECHANISMS]
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    print_table(f"Accuracy, {len(SEEDS)} seeds, 95 % intervals, delta {DELTA:g}", columns, rows)
    PICTURE.write_text(picture(list(summary(kept))))


if __name__ == "__main__":
    main()
