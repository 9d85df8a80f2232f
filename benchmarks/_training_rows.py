"""The rows of the training benchmarks: fixed mechanisms, and the choices of the planner.

Rows with "rms" in their name minimise the noise over all steps, as if gradients did not depend on the parameters. Rows
with "last" in their name minimise the noise of the last iterate for a mixture of curvatures, which is a set of
curvatures with weights. Most "last" rows use the reference optimizer of `_curvature.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

import antiphase as ap
from benchmarks._curvature import last_iterate_toeplitz, last_rows, log_uniform
from benchmarks._measure import sized
from benchmarks._training_cells import Made, Row, Task

DENSE_TOLERANCE = 0.01
BUFFERS = 3


class Mixture(NamedTuple):
    """Values of curvature x learning rate, with weights."""

    curvatures: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, curvatures: np.ndarray, weights: np.ndarray) -> Mixture:
        """Create a mixture from arrays."""
        return cls(tuple(curvatures.tolist()), tuple(weights.tolist()))

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Curvatures and weights as arrays."""
        return np.array(self.curvatures), np.array(self.weights)

    def scaled(self, rate: float) -> Mixture:
        """Return the mixture with all curvatures multiplied by a learning rate."""
        return Mixture(tuple(rate * curvature for curvature in self.curvatures), self.weights)


def schedule_of(task: Task) -> np.ndarray:
    """Return the learning rate schedule of a task, relative to the tuned learning rate."""
    rates = task.workload.learning_rates
    return np.ones(task.steps) if rates is None else rates


def sampled(task: Task, groups: int) -> Any:
    """Return the participation that draws batches by Poisson sampling from `groups` groups of examples, in turn.

    Use as many groups as the strategy has bands.
    """
    rate = groups * task.batch_size / task.examples
    return ap.Poisson(rate) if groups == 1 else ap.CyclicPoisson(groups, rate)


def in_order(task: Task) -> Any:
    """Return the participation of the task for rows without amplification."""
    return task.unamplified or ap.FixedEpochs(task.epochs, task.per_epoch)


def in_bins(task: Task) -> ap.BallsInBins:
    """Return balls-in-bins: each example takes part at a random position of the epoch, the same in every epoch."""
    return ap.BallsInBins(task.epochs, task.per_epoch)


def calibrated(task: Task, epsilon: float, strategy: Any, participation: Any, words: str) -> Made:
    """Return the strategy with the noise that the privacy budget requires."""
    found = ap.calibrate(strategy, participation, ap.Budget(epsilon, task.delta))
    return Made(found.mechanism, words)


# ---- strategies, which are the same for all epsilons


@cache
def toeplitz_rms(task: Task, bands: int) -> Any:
    if bands == 1:
        return ap.strategies.Identity(task.steps)
    once = ap.SingleParticipation()
    return ap.optimize("toeplitz", steps=task.steps, participation=once, workload=task.workload, bands=bands).strategy


@cache
def banded_rms(task: Task, bands: int) -> Any:
    if bands == 1:
        return ap.strategies.Identity(task.steps)
    once = ap.SingleParticipation()
    return ap.optimize("banded", steps=task.steps, participation=once, workload=task.workload, bands=bands).strategy


@cache
def unamplified_rms(task: Task, family: str, **options: Any) -> Any:
    found = ap.optimize(family, steps=task.steps, participation=in_order(task), workload=task.workload, **options)
    return found.strategy


@cache
def toeplitz_last(task: Task, bands: int, mixture: Mixture) -> Any:
    if bands == 1:
        return ap.strategies.Identity(task.steps)
    column = last_iterate_toeplitz(bands, task.workload.beta, schedule_of(task), *mixture.arrays)
    return ap.strategies.Toeplitz(column, task.steps)


# ---- rows


def dp_sgd(task: Task, epsilon: float) -> Made:
    return calibrated(task, epsilon, ap.strategies.Identity(task.steps), sampled(task, 1), "DP-SGD")


def toeplitz_amplified(bands: int, task: Task, epsilon: float) -> Made:
    return calibrated(task, epsilon, toeplitz_rms(task, bands), sampled(task, bands), f"{bands} bands")


def choices(task: Task) -> list[int]:
    """Return numbers of bands from 1 to one epoch, each about a quarter larger than the previous one."""
    found, bands = [], 1.0
    while bands < task.per_epoch:
        found.append(round(bands))
        bands = max(bands * 1.25, bands + 1)
    return [*found, task.per_epoch]


def banded_amplified(task: Task, epsilon: float) -> Made:
    """Choose the number of bands that is best for Toeplitz strategies, and optimise a banded strategy with it."""

    def error(bands: int) -> float:
        strategy = toeplitz_rms(task, bands)
        found = calibrated(task, epsilon, strategy, sampled(task, bands), "")
        return found.mechanism.noise_std * float(ap.error(strategy, task.workload).rms)

    bands = least(error, choices(task))
    return calibrated(task, epsilon, banded_rms(task, bands), sampled(task, bands), f"{bands} bands")


def last_amplified(mixture: Mixture, task: Task, epsilon: float) -> Made:
    """Choose the number of bands with the smallest error of the last iterate for the mixture."""

    def made(bands: int) -> Made:
        strategy = toeplitz_last(task, bands, mixture)
        return calibrated(task, epsilon, strategy, sampled(task, bands), f"{bands} bands")

    return made(least(lambda bands: last_loss(task, made(bands).mechanism, mixture), choices(task)))


def last_loss(task: Task, mechanism: ap.Mechanism, mixture: Mixture) -> float:
    """Return noise_std sqrt(sum_i w_i ||a_i C^-1||^2), where a_i is the last row of the workload for curvature i."""
    h, weights = mixture.arrays
    noise = last_rows(task.workload.beta, schedule_of(task), h) @ mechanism.strategy.noising()
    return mechanism.noise_std * float(np.sqrt(weights @ np.square(noise).sum(1)))


def last_for_rate(spectrum: Callable[[], Mixture], task: Task, epsilon: float) -> Made:
    """Return the result of `last_amplified` for the curvatures of a model, which `spectrum` computes.

    The curvatures are multiplied by the learning rate at which tuning starts.
    """
    return last_amplified(spectrum().scaled(task.first_rates[epsilon]), task, epsilon)


def least(function: Callable[[int], float], values: list[int]) -> int:
    """Return the value that minimises the function, by descent from the middle value.

    The result is exact if the function has only one local minimum.
    """
    known: dict[int, float] = {}

    def at(i: int) -> float:
        if i not in known:
            known[i] = function(values[i])
        return known[i]

    i = len(values) // 2
    while True:
        around = [j for j in (i - 1, i, i + 1) if 0 <= j < len(values)]
        best = min(around, key=at)
        if best == i:
            return values[i]
        i = best


def bins_rms(family: str, options: dict[str, int], task: Task, epsilon: float) -> Made:
    budget = ap.Budget(epsilon, task.delta)
    found = ap.optimize(
        family, steps=task.steps, participation=in_bins(task), workload=task.workload, budget=budget, **options
    )
    return calibrated(task, epsilon, found.strategy, in_bins(task), f"{family} {options}")


def bins_trained(family: str, options: dict[str, int], trajectory: float, task: Task, epsilon: float) -> Made:
    """Optimise under balls-in-bins for the last iterate, with curvatures x learning rate from SPAN[0] to SPAN[1].

    `trajectory` is the weight of the noise over all steps in the objective.
    """
    found = ap.optimize(
        family,
        steps=task.steps,
        participation=in_bins(task),
        workload=task.workload,
        objective=ap.Curvatures.log_uniform(*SPAN, 13, trajectory=trajectory),
        budget=ap.Budget(epsilon, task.delta),
        **options,
    )
    return calibrated(task, epsilon, found.strategy, in_bins(task), f"{family} {options}")


def unamplified_trained(family: str, options: dict[str, int], trajectory: float, task: Task, epsilon: float) -> Made:
    objective = ap.Curvatures.log_uniform(*SPAN, 13, trajectory=trajectory)
    found = ap.optimize(
        family, steps=task.steps, participation=in_order(task), workload=task.workload, objective=objective, **options
    )
    return calibrated(task, epsilon, found.strategy, in_order(task), f"{family} {options}")


def planned(pipelines: list[str] | None, task: Task, epsilon: float) -> Made:
    """Return the mechanism that `antiphase.plan` chooses for the objective "training"."""
    plan = ap.plan(replace(task.problem(epsilon), objective="training"), pipelines=pipelines)
    chosen = plan.candidates[0]
    return Made(plan.mechanism, f"{chosen.name}, {chosen.batches}", {"planner": chosen.error})


def bins_last(bands: int, mixture: Mixture, task: Task, epsilon: float) -> Made:
    """Use a Toeplitz strategy with balls-in-bins that is optimised for the last iterate, but not for balls-in-bins."""
    strategy = toeplitz_last(task, bands, mixture)
    return calibrated(task, epsilon, strategy, in_bins(task), f"{bands} bands, in bins")


def unamplified(family: str, options: dict[str, Any], task: Task, epsilon: float) -> Made:
    strategy = unamplified_rms(task, family, **options)
    return calibrated(task, epsilon, strategy, in_order(task), f"{family} {options}")


def last_unamplified(bands: int, mixture: Mixture, task: Task, epsilon: float) -> Made:
    bands = min(bands, task.per_epoch)  # then the columns of C for the steps of one example do not overlap
    strategy = toeplitz_last(task, bands, mixture)
    return calibrated(task, epsilon, strategy, in_order(task), f"{bands} bands")


def plain(strategy: str, task: Task, epsilon: float) -> Made:
    made = ap.strategies.Identity(task.steps) if strategy == "identity" else ap.strategies.Tree(task.steps)
    return calibrated(task, epsilon, made, in_order(task), strategy)


SPAN = (1e-3, 1.0)
MIXTURE = Mixture.of(*log_uniform(*SPAN, 0.5))


def fixed_rows(per_epoch: int) -> dict[str, Row]:
    """Return all rows by short name, for a task with this many steps per epoch."""
    rows = {
        "dp-sgd": Row("DP-SGD, Poisson", dp_sgd, "amplified"),
        "banded-rms": Row("banded, cyclic Poisson, rms", banded_amplified, "amplified"),
        "blt-bins-rms": Row("BLT, bins, rms", partial(bins_rms, "blt", {"buffers": BUFFERS}), "amplified"),
        "last-mixture": Row("Toeplitz, cyclic Poisson, last, mixture", partial(last_amplified, MIXTURE), "amplified"),
        "dense-rms": Row("dense, rms", partial(unamplified, "dense", {"tolerance": DENSE_TOLERANCE}), "unamplified"),
        "blt-rms": Row("BLT, rms", partial(unamplified, "blt", {"buffers": BUFFERS}), "unamplified"),
        "tree": Row("tree", partial(plain, "tree"), "unamplified"),
        "sgd-unamplified": Row("independent noise", partial(plain, "identity"), "unamplified"),
    }
    widths = [b for b in sized((4, 8, 16, 32, 64, 100), (4,)) if b <= per_epoch]
    for b in widths:
        title = f"Toeplitz, {b} bands, cyclic Poisson, rms"
        rows[f"toeplitz-{b}-rms"] = Row(title, partial(toeplitz_amplified, b), "amplified")
    for b in widths:
        make = partial(unamplified, "toeplitz", {"bands": b})
        rows[f"toeplitz-{b}-rms-unamplified"] = Row(f"Toeplitz, {b} bands, rms", make, "unamplified")
    rows["toeplitz-bins-rms"] = Row(
        "Toeplitz, bins, rms", partial(bins_rms, "toeplitz", {"bands": min(64, per_epoch)}), "amplified"
    )
    for b in [b for b in sized((16, 64), (4,)) if b <= per_epoch]:
        title = f"Toeplitz, {b} bands, last, mixture"
        rows[f"last-{b}-unamplified"] = Row(title, partial(last_unamplified, b, MIXTURE), "unamplified")
        rows[f"last-{b}-bins"] = Row(f"{title}, bins", partial(bins_last, b, MIXTURE), "amplified")
    for buffers in sized((1, 2, 3), (1,)):
        made = partial(bins_trained, "blt", {"buffers": buffers}, 0.0)
        rows[f"blt-{buffers}-bins-last"] = Row(f"BLT, {buffers} buffers, bins, last, mixture", made, "amplified")
    made = partial(bins_trained, "toeplitz", {"bands": min(64, per_epoch)}, 0.0)
    rows["toeplitz-bins-last"] = Row("Toeplitz, optimised for the bins, last, mixture", made, "amplified")
    wide = min(32, per_epoch)
    made = partial(bins_trained, "banded", {"bands": wide}, 0.0)
    rows["banded-bins-last"] = Row(f"free columns, {wide} bands, bins, last, mixture", made, "amplified")
    made = partial(bins_trained, "banded", {"bands": wide}, 1.0)
    rows["banded-bins-training"] = Row(f"free columns, {wide} bands, bins, training", made, "amplified")
    made = partial(unamplified_trained, "blt", {"buffers": 3}, 0.0)
    rows["blt-last"] = Row("BLT, 3 buffers, last, mixture", made, "unamplified")
    made = partial(unamplified_trained, "banded", {"bands": per_epoch}, 1.0)
    rows["banded-training"] = Row(f"free columns, {per_epoch} bands, training", made, "unamplified")
    rows["planner"] = Row("planner, objective training", partial(planned, None), "amplified", chosen=True)
    make = partial(planned, ["fixed-epochs"])
    rows["planner-unamplified"] = Row("planner, objective training", make, "unamplified", chosen=True)
    whole = partial(last_unamplified, per_epoch, MIXTURE)
    title = f"Toeplitz, {per_epoch} bands, last, mixture"
    rows[f"last-{per_epoch}-unamplified"] = Row(title, whole, "unamplified")
    return rows
