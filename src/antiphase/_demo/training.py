"""Trains one model privately, with batches, noise and ledger from `Run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._demo.digits import Digits, Model, accuracy, clipped_sum, zero_model
from antiphase._plan import Plan
from antiphase._run import PrivacyReport, Run
from antiphase._secret import Secret
from antiphase.schedules import linear


@dataclass(frozen=True)
class TrainedRun:
    """The result of a training run.

    Args:
        accuracy: accuracy on the test examples.
        report: the privacy guarantee of the run, derived from its ledger.
        directory: directory in which the run is stored.
    """

    accuracy: float
    report: PrivacyReport
    directory: Path


def schedule(steps: int) -> Array:
    """Return the learning rate schedule, a linear decrease from 1 to 0.05. It is part of the plan's workload."""
    return linear(steps, warmup=0.0, cooldown=1.0, floor=0.05)


def train(plan: Plan, train_set: Digits, test_set: Digits, learning_rate: float, directory: Path) -> TrainedRun:
    """Train for all steps of the plan, publish the model and measure its accuracy."""
    model, rates = zero_model(train_set.images.shape[1]), learning_rate * schedule(plan.steps)
    shapes = [leaf.shape for leaf in model]
    with Run.open(plan, directory, leaves=shapes, examples=len(train_set), dtype="float64") as run:
        for step in range(run.steps):
            indices, mask = run.batch(step)
            total = clipped_sum(model, _take(train_set, indices[mask]), plan.problem.clip_norm)
            model = _descend(model, total, run.gradient_noise(step), plan, rates[step])
            run.commit(step, run.digest(step, model))
        run.publish("model and its test accuracy")
        return TrainedRun(accuracy(model, test_set), run.report(), directory)


def train_without_privacy(plan: Plan, train_set: Digits, test_set: Digits, learning_rate: float) -> float:
    """Return the accuracy with the same sampling and clipping but without noise.

    The difference from the accuracy of a private run shows what the noise costs.
    """
    model, rates = zero_model(train_set.images.shape[1]), learning_rate * schedule(plan.steps)
    sampler = plan.mechanism.participation.sampler(len(train_set), plan.steps, Secret.generate())
    for step in range(plan.steps):
        indices, mask = sampler.batch(step)
        total = clipped_sum(model, _take(train_set, indices[mask]), plan.problem.clip_norm)
        model = _descend(model, total, [np.zeros_like(leaf) for leaf in model], plan, rates[step])
    return accuracy(model, test_set)


def _descend(model: Model, total: Model, noise: list[Array], plan: Plan, learning_rate: float) -> Model:
    """Return the model after one step of SGD. The noise is added to the sum of clipped gradients before averaging."""
    assert plan.problem.batch_size is not None
    scale = learning_rate / plan.problem.batch_size
    return [m - scale * (g + z) for m, g, z in zip(model, total, noise, strict=True)]


def _take(data: Digits, indices: NDArray[np.int64]) -> Digits:
    return Digits(data.images[indices], data.labels[indices])
