"""Tests three findings of papers on correlated noise with the small student network of training.py.

1. bands: does the number of bands matter at equal rms error, for plain SGD and for Adam? (McKenna 2024, Fig. 5)
2. batches: how do real balls-in-bins batches compare with shuffled batches? The batches are padded and truncated to a
   fixed size, or have any size. (Choquette-Choo et al. 2025, Fig. 30)
3. workload: does it help to include momentum and learning-rate cooldown in the workload? (Choquette-Choo et al. 2023,
   multi-epoch, App. F.2)

Training has 10 epochs of 50 steps. Each step uses 500 of 25,000 images. In every case, the learning rate with the best
mean accuracy of two seeds is chosen from a grid, and ten other seeds give the accuracy. Results are stored in
findings.jsonl next to this file and are not computed again. As in training.py, the results are not private, because the
secret of the noise is known.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import antiphase as ap
from benchmarks._measure import print_table, sized
from benchmarks._student import PARAMETERS, accuracy, clipped_sum, flat_params, teacher
from benchmarks._training_cells import Kept
from benchmarks._training_command import NOWHERE
from benchmarks._training_statistics import interval

RESULTS = sized(Path(__file__).with_name("findings.jsonl"), NOWHERE)
EXAMPLES, BATCH, EPOCHS, STEPS = sized((25_000, 500, 10, 500), (120, 20, 2, 12))
PER_EPOCH = STEPS // EPOCHS
DELTA, CLIP, BETA = 1e-5, 1.0, 0.9
TUNING, SEEDS = (100, 101), sized(tuple(range(10)), (0, 1))
CONSTANT = np.ones(STEPS)
COOLING = ap.schedules.linear(STEPS, warmup=0.0, cooldown=0.25, floor=0.05)
SCHEDULES = {"constant rate": CONSTANT, "cool-down": COOLING}

PLAIN, HEAVY_BALL, ADAM = optax.identity(), optax.trace(BETA), optax.scale_by_adam()
RATES = {
    PLAIN: tuple(2.0**i for i in range(-3, 5)),
    HEAVY_BALL: tuple(2.0**i for i in range(-7, 3)),
    ADAM: tuple(2.0**i for i in range(-8, 2)),
}

BANDS = sized((1, 4, 16, 64, STEPS), (1, 4, STEPS))
NOISES = sized((0.5, 2.0, 8.0), (2.0,))
OPTIMIZERS = {"plain SGD": PLAIN, "Adam": ADAM}
BIN_EPSILONS, WORKLOAD_EPSILONS = sized((0.5, 2.0, 8.0), (8.0,)), sized((2.0, 8.0), (8.0,))
SHUFFLED, FIXED = ap.ShuffledEpochs(EPOCHS, PER_EPOCH), ap.FixedEpochs(EPOCHS, PER_EPOCH)
Case = dict[str, Any]


class Setting(NamedTuple):
    """The mechanism, batches, optimizer and learning rate schedule of a training run, and its predicted error."""

    mechanism: ap.Mechanism
    batches: Any
    optimizer: optax.GradientTransformation
    schedule: np.ndarray
    planned: float


# ---- the findings


def bands() -> Iterator[tuple[Case, Callable[[], Setting]]]:
    """Yield the cases of the first finding: optimal banded strategies for the prefix sum with equal rms errors.

    The rms error is that of independent noise with standard deviation `noise`.
    """
    for name, optimizer in OPTIMIZERS.items():
        for noise in NOISES:
            for width in BANDS:
                case = {"finding": "bands", "optimizer": name, "noise": noise, "bands": width}
                yield case, partial(_banded, width, noise, optimizer)


def batches() -> Iterator[tuple[Case, Callable[[], Setting]]]:
    """Yield the cases of the second finding.

    Three cases have the same BLT and noise, with three kinds of batches. A fourth case is the dense strategy without
    amplification.
    """
    for epsilon in BIN_EPSILONS:
        kinds = {
            "BLT, balls in bins, padded": ap.BallsInBins(EPOCHS, PER_EPOCH, max_batch=BATCH),
            "BLT, balls in bins, any size": ap.BallsInBins(EPOCHS, PER_EPOCH),
            "BLT, shuffled (not what is accounted for)": SHUFFLED,
        }
        for name, kind in kinds.items():
            case = {"finding": "batches", "epsilon": epsilon, "arm": name}
            yield case, partial(_in_bins, epsilon, kind)
        case = {"finding": "batches", "epsilon": epsilon, "arm": "dense, no amplification"}
        yield case, partial(_dense, epsilon, "cool-down", "in the workload")


def workloads() -> Iterator[tuple[Case, Callable[[], Setting]]]:
    """Yield the cases of the third finding: the dense strategy for the workload of the optimizer or the prefix sum."""
    for epsilon in WORKLOAD_EPSILONS:
        for trained in SCHEDULES:
            for planned in ("in the workload", "afterwards"):
                case = {"finding": "workload", "epsilon": epsilon, "trained": trained, "planned": planned}
                yield case, partial(_dense, epsilon, trained, planned)


def _banded(width: int, noise: float, optimizer: optax.GradientTransformation) -> Setting:
    strategy = _prefix_strategy(width)
    white = ap.error(ap.strategies.Identity(STEPS), ap.PrefixSum()).rms * noise
    mechanism = ap.Mechanism(
        strategy, ap.SingleParticipation(), noise_std=white / ap.error(strategy, ap.PrefixSum()).rms
    )
    return Setting(mechanism, SHUFFLED, optimizer, CONSTANT, white)


@cache
def _prefix_strategy(width: int) -> Any:
    once = ap.SingleParticipation()
    if width == 1:
        return ap.strategies.Identity(STEPS)
    if width == STEPS:
        return ap.optimize("dense", steps=STEPS, participation=once).strategy
    return ap.optimize("banded", steps=STEPS, participation=once, bands=width).strategy


def _in_bins(epsilon: float, kind: Any) -> Setting:
    plan = _blt(epsilon)
    return Setting(plan.mechanism, kind, HEAVY_BALL, COOLING, plan.error)


@cache
def _blt(epsilon: float) -> ap.Plan:
    participation = ap.BallsInBins(EPOCHS, PER_EPOCH)
    workload = ap.Momentum(BETA, COOLING)
    problem = ap.Problem(
        STEPS, ap.Budget(epsilon, DELTA), EXAMPLES, BATCH, participation=participation, workload=workload
    )
    return ap.plan(problem, ["blt"])


def _dense(epsilon: float, trained: str, planned: str) -> Setting:
    schedule = SCHEDULES[trained]
    strategy = _dense_strategy(trained if planned == "in the workload" else None)
    mechanism = ap.calibrate(strategy, FIXED, ap.Budget(epsilon, DELTA)).mechanism
    error = mechanism.noise_std * ap.error(strategy, ap.Momentum(BETA, schedule)).rms
    return Setting(mechanism, FIXED, HEAVY_BALL, schedule, error)


@cache
def _dense_strategy(schedule: str | None) -> Any:
    workload = ap.PrefixSum() if schedule is None else ap.Momentum(BETA, SCHEDULES[schedule])
    return ap.optimize("dense", steps=STEPS, participation=FIXED, workload=workload, tolerance=1e-3).strategy


# ---- training


@partial(jax.jit, static_argnums=0)
def train(optimizer: optax.GradientTransformation, theta: Any, data: Any, steps: Any, rates: Any) -> Any:
    """Return the parameters after the last step, of shape (rates, seeds, parameters).

    `steps` is (noise, indices, mask, schedule), each with one row per step.
    """
    images, labels = data
    gradients = jax.vmap(jax.vmap(clipped_sum, (0, 0, 0, 0, None)), (0, None, None, None, None))

    def step(carry: Any, now: Any) -> Any:
        theta, state = carry
        noise, indices, mask, schedule = now
        total = gradients(theta, images[indices], labels[indices], mask, CLIP) + CLIP * noise
        update, state = optimizer.update(total / BATCH, state)
        return (theta - schedule * rates[:, None, None] * update, state), None

    return jax.lax.scan(step, (theta, optimizer.init(theta)), steps)[0][0]


def runs(setting: Setting, seeds: tuple[int, ...], rates: tuple[float, ...], data: Any) -> np.ndarray:
    """Return the accuracies, of shape (rates, seeds)."""
    training, testing = data
    stream = ap.NoiseStream(setting.mechanism, [(len(seeds), PARAMETERS)], ap.Secret.insecure(seeds[0]))
    noise = np.stack([stream.next()[0] for _ in range(STEPS)])
    theta = np.broadcast_to(np.stack([flat_params(seed) for seed in seeds]), (len(rates), len(seeds), PARAMETERS))
    steps = (noise, *drawn(setting.batches, seeds), setting.schedule.astype(np.float32))
    return np.asarray(accuracy(train(setting.optimizer, theta, training, steps, np.array(rates, np.float32)), testing))


def drawn(participation: Any, seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the batches of all steps and seeds as (indices, mask), padded to the same size."""
    made = [participation.sampler(EXAMPLES, STEPS, ap.Secret.insecure(seed)) for seed in seeds]
    found = [[sampler.batch(step) for sampler in made] for step in range(STEPS)]
    width = -(-max(len(batch.indices) for row in found for batch in row) // 16) * 16
    indices, mask = np.zeros((STEPS, len(seeds), width), np.int32), np.zeros((STEPS, len(seeds), width), bool)
    for step, row in enumerate(found):
        for seed, batch in enumerate(row):
            indices[step, seed, : len(batch.indices)] = batch.indices
            mask[step, seed, : len(batch.indices)] = batch.mask
    return indices, mask


def compute(kept: Kept, data: Any) -> None:
    """Compute all cases that are not in the results file yet."""
    for case, make in (*bands(), *batches(), *workloads()):
        if len(kept.find(stage="final", **case)) == len(SEEDS):
            continue
        start = time.perf_counter()
        setting = make()
        rates = RATES[setting.optimizer]
        tuned = runs(setting, TUNING, rates, data).mean(1)
        best = rates[int(tuned.argmax())]
        found = runs(setting, SEEDS, (best,), data)[0].tolist()
        if not kept.find(stage="plan", **case):
            kept.add(stage="plan", **case, error=setting.planned, tuned=dict(zip(rates, tuned.tolist(), strict=True)))
        for seed, value in zip(SEEDS, found, strict=True):
            kept.add(stage="final", **case, rate=best, seed=seed, accuracy=value)
        print(f"{case}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)


# ---- tables


def shown(kept: Kept, case: Case) -> str:
    values = [row["accuracy"] for row in kept.find(stage="final", **case)]
    return "{:.2%} ± {:.2%}".format(*interval(values)) if len(values) == len(SEEDS) else ""


def tables(kept: Kept) -> None:
    rows = []
    for optimizer in OPTIMIZERS:
        for noise in NOISES:
            case = {"finding": "bands", "optimizer": optimizer, "noise": noise}
            rows.append([f"{optimizer}, {noise:g}", *(shown(kept, {**case, "bands": width}) for width in BANDS)])
    title = "Accuracy by bands, at the rms error of independent noise with the standard deviation of the row"
    print_table(title, ["optimizer, noise", *(f"{width} bands" for width in BANDS)], rows)

    arms = list(dict.fromkeys(case["arm"] for case, _ in batches()))
    columns = [f"epsilon {epsilon:g}" for epsilon in BIN_EPSILONS]
    rows = [
        [arm, *(shown(kept, {"finding": "batches", "epsilon": epsilon, "arm": arm}) for epsilon in BIN_EPSILONS)]
        for arm in arms
    ]
    print_table("Accuracy by batches", ["mechanism, batches", *columns], rows)

    rows = []
    for case, _ in workloads():
        plan = kept.find(stage="plan", **case)
        error = f"{plan[0]['error']:.0f}" if plan else ""
        rows.append([f"{case['epsilon']:g}", case["trained"], case["planned"], error, shown(kept, case)])
    columns = ["epsilon", "trained with", "momentum and rates", "error", "accuracy"]
    print_table("Accuracy of the dense matrix by workload", columns, rows)


def main() -> None:
    kept = Kept(RESULTS)
    compute(kept, teacher.make_data(EXAMPLES))
    tables(kept)


if __name__ == "__main__":
    main()
