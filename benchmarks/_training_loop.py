"""Trains many models on one core, with clipped gradients, noise, and SGD with momentum or Adam."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numba
import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
ADAM_SECOND, ADAM_EPSILON = 0.999, 1e-8


class Model(Protocol):
    """Interface of a model with its training examples. It computes sums of the clipped gradients of these examples."""

    def gather(self, indices: np.ndarray) -> Any:
        """Return the examples of a batch. They are valid until the next call."""

    def clipped_sum(self, theta: Floats, batch: Any, out: Floats) -> None:
        """Write the sum of the clipped gradients of a batch to `out`."""


class Settings(NamedTuple):
    """Settings of the training.

    Each step clips gradients to `clip_norm`, adds noise, divides by `batch_size`, and passes the result to the
    optimizer. The learning rate is a value of `rates` times the value of `schedule` for this step.
    """

    clip_norm: float
    batch_size: float
    beta: float
    schedule: np.ndarray
    rates: Sequence[float]
    optimizer: Literal["momentum", "adam"] = "momentum"


@numba.njit(fastmath=True, cache=True)
def _momentum(theta: Floats, momentum: Floats, total: Floats, noise: Floats, numbers: Any) -> None:
    clip_norm, batch_size, beta, rate = numbers
    for i in range(theta.size):
        momentum[i] = beta * momentum[i] + (total[i] + clip_norm * noise[i]) / batch_size
        theta[i] -= rate * momentum[i]


@numba.njit(fastmath=True, cache=True)
def _adam(theta: Floats, momentum: Floats, squares: Floats, total: Floats, noise: Floats, numbers: Any) -> None:
    clip_norm, batch_size, beta, rate, second, first_scale, second_scale, epsilon = numbers
    one = np.float32(1.0)
    for i in range(theta.size):
        gradient = (total[i] + clip_norm * noise[i]) / batch_size
        momentum[i] = beta * momentum[i] + (one - beta) * gradient
        squares[i] = second * squares[i] + (one - second) * gradient * gradient
        theta[i] -= rate * first_scale * momentum[i] / (np.sqrt(second_scale * squares[i]) + epsilon)


def train(
    model: Model, start: Floats, batches: Sequence[Sequence[np.ndarray]], noise: Iterable[Floats], settings: Settings
) -> Floats:
    """Train one model for each learning rate and seed, and return the parameters, of shape (rates, seeds, parameters).

    Args:
        model: model with the training examples.
        start: initial parameters, one row per seed.
        batches: for each seed, the example indices of every step.
        noise: for each step, noise of shape (seeds, parameters) for clipping norm 1.
        settings: clipping, optimizer and learning rates.
    """
    theta = np.repeat(start[None].astype(np.float32), len(settings.rates), 0)
    momentum, total = np.zeros_like(theta), np.empty(theta.shape[-1], np.float32)
    squares = np.zeros_like(theta) if settings.optimizer == "adam" else None
    for step, (factor, now) in enumerate(zip(settings.schedule, noise, strict=True)):
        for seed, mine in enumerate(batches):
            batch = model.gather(mine[step])
            for i, rate in enumerate(settings.rates):
                at = (i, seed)
                model.clipped_sum(theta[at], batch, total)
                numbers = (settings.clip_norm, settings.batch_size, settings.beta, factor * rate)
                if squares is None:
                    _momentum(theta[at], momentum[at], total, now[seed], _singles(*numbers))
                    continue
                scales = (1 / (1 - settings.beta ** (step + 1)), 1 / (1 - ADAM_SECOND ** (step + 1)))
                more = _singles(*numbers, ADAM_SECOND, *scales, ADAM_EPSILON)
                _adam(theta[at], momentum[at], squares[at], total, now[seed], more)
    return theta


def _singles(*numbers: float) -> tuple[np.float32, ...]:
    return tuple(np.float32(number) for number in numbers)
