"""Shows why the dense strategy trains worse than DP-SGD at the same rms error: training forgets noise.

The rms error measures the noise in the parameters as if gradients did not depend on the parameters. In a direction of
curvature lambda, gradients do depend on them: momentum and parameter follow m_t = beta m_{t-1} + lambda theta_{t-1} +
w_t and theta_t = theta_{t-1} - eta_t m_t. SGD then forgets the noise w after about (1 - beta) / (eta lambda) steps. The
correlated noise of later steps, which should cancel w, then only adds noise. For the mechanisms of training.py at
epsilon 1, this benchmark measures

- the exact error of each mechanism in a direction with learning rate x lambda = h, for several h;
- the accuracy of a model that is trained without noise and gets the noise of the whole run at the end (no feedback);
- the accuracy of a model that is trained with this noise (feedback).

Results are stored in findings_feedback.jsonl and are not computed again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from benchmarks._measure import print_table, sized
from benchmarks._student import PARAMETERS, accuracy, flat_params, teacher, train
from benchmarks._training_cells import Kept, Made
from benchmarks._training_command import NOWHERE
from benchmarks._training_statistics import interval
from benchmarks.training import BATCH, BETA, CLIP, EXAMPLES, PER_EPOCH, ROWS, SCHEDULE, STEPS, TASK

RESULTS = sized(Path(__file__).with_name("findings_feedback.jsonl"), NOWHERE)
EPSILON, RATE = 1.0, 0.125
CURVATURES = (0.0, 1e-4, 1e-3, 1e-2)
SEEDS = sized(tuple(range(10)), (0, 1))
NAMES = {"DP-SGD": "dp-sgd", "banded": "banded-rms", "dense": "dense-rms", "BLT": "blt-bins-rms"}
MADE: dict[str, Callable[[], Made]] = {name: partial(ROWS[row].make, TASK, EPSILON) for name, row in NAMES.items()}


def batches(made: Made, seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches of all steps and seeds as (indices, mask), padded to the same size.

    The mechanism's own sampler draws the batches.
    """
    drawn = []
    for seed in seeds:
        sampler = made.mechanism.participation.sampler(EXAMPLES, STEPS, ap.Secret.insecure(seed))
        drawn.append([sampler.batch(step).indices for step in range(STEPS)])
    width = -(-max(len(batch) for run in drawn for batch in run) // 16) * 16
    indices = np.zeros((STEPS, len(seeds), width), np.int32)
    mask = np.zeros(indices.shape, bool)
    for seed, run in enumerate(drawn):
        for step, batch in enumerate(run):
            indices[step, seed, : len(batch)], mask[step, seed, : len(batch)] = batch, True
    return indices, mask


def errors(noising: np.ndarray, curvature: float) -> tuple[float, float]:
    """Return the standard deviation of the noise in a direction with learning rate x curvature = `curvature`.

    The first number is the rms over the steps, and the second is the value at the last step.
    """
    theta = momentum = np.zeros(noising.shape[1])
    variance = np.empty(STEPS)
    for t in range(STEPS):
        momentum = BETA * momentum + curvature * theta + noising[t]
        theta = theta - SCHEDULE[t] * momentum
        variance[t] = theta @ theta
    return float(np.sqrt(variance.mean())), float(np.sqrt(variance[-1]))


def trained(made: Made, drawn: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays with one accuracy per seed.

    For the first, the noise of all steps is added to the finished model. For the second, it is added in every step.
    """
    stream = ap.NoiseStream(made.mechanism, [(len(SEEDS), PARAMETERS)], ap.Secret.insecure(SEEDS[0]))
    indices, mask = drawn
    start = np.stack([flat_params(seed) for seed in SEEDS])[None]
    clean = noisy = (start, np.zeros_like(start))
    sum_of_noise, momentum = np.zeros(start.shape), np.zeros(start.shape)
    for first in range(0, STEPS, PER_EPOCH):
        here = slice(first, first + PER_EPOCH)
        noise = np.stack([stream.next()[0] for _ in range(PER_EPOCH)])
        for row, rate in zip(noise, SCHEDULE[here], strict=True):
            momentum = BETA * momentum + CLIP * row / BATCH
            sum_of_noise -= RATE * rate * momentum
        rest = (indices[here], mask[here], SCHEDULE[here].astype(np.float32))
        rates, settings = np.array([RATE], np.float32), (CLIP, BATCH, BETA)
        noisy = train(noisy, data[0], (noise, *rest), rates, settings)
        clean = train(clean, data[0], (np.zeros_like(noise), *rest), rates, settings)
    free = (np.asarray(clean[0]) + sum_of_noise).astype(np.float32)
    return np.asarray(accuracy(free, data[1]))[0], np.asarray(accuracy(noisy[0], data[1]))[0]


def compute(kept: Kept, data: Any) -> None:
    drawn = None
    for name, make in MADE.items():
        if len(kept.find(stage="final", mechanism=name)) == len(SEEDS):
            continue
        start = time.perf_counter()
        made = make()
        if drawn is None:  # all mechanisms use the batches of DP-SGD, so that only the noise differs
            drawn = batches(MADE["DP-SGD"](), SEEDS)
        free, noisy = trained(made, drawn, data)
        noising = made.mechanism.noise_std * made.mechanism.strategy.noising()
        kept.add(stage="step", mechanism=name, noise=float(np.sqrt(np.square(noising).sum() / STEPS)))
        for curvature in CURVATURES:
            rms, last = errors(noising, curvature)
            kept.add(stage="error", mechanism=name, curvature=curvature, rms=rms, last=last)
        for seed, without, within in zip(SEEDS, free.tolist(), noisy.tolist(), strict=True):
            kept.add(stage="final", mechanism=name, seed=seed, no_feedback=without, feedback=within)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


def tables(kept: Kept) -> None:
    rows = []
    for name in MADE:
        noise = [f"{row['noise']:.1f}" for row in kept.find(stage="step", mechanism=name)[:1]]
        found = {row["curvature"]: row for row in kept.find(stage="error", mechanism=name)}
        rows.append([name, *noise, *(f"{found[h]['rms']:.0f}, {found[h]['last']:.0f}" for h in CURVATURES)])
    columns = ["mechanism", "one step", *(f"h = {h:g}" for h in CURVATURES)]
    print_table(f"Noise: rms of a step; error, rms and last step, by curvature; epsilon {EPSILON:g}", columns, rows)

    rows = []
    for name in MADE:
        final = kept.find(stage="final", mechanism=name)
        cells = [interval([row[kind] for row in final]) for kind in ("no_feedback", "feedback")]
        rows.append([name, *("{:.2%} ± {:.2%}".format(*cell) for cell in cells)])
    columns = ["mechanism", "noise added at the end", "noise in training"]
    print_table(f"Accuracy at learning rate {RATE:g}, the same batches, {len(SEEDS)} seeds", columns, rows)


def main() -> None:
    kept = Kept(RESULTS)
    compute(kept, teacher.make_data(EXAMPLES))
    tables(kept)


if __name__ == "__main__":
    main()
