"""Learning-rate schedules: arrays with one positive learning rate per step."""

from __future__ import annotations

import numpy as np

from antiphase import _check
from antiphase._check import Array

__all__ = ["linear"]


def linear(steps: int, warmup: float = 0.15, cooldown: float = 0.25, floor: float = 0.05) -> Array:
    """Return learning rates that warm up linearly from `floor` to 1, stay at 1, and cool down linearly to `floor`.

    Args:
        steps: number of steps; the result has shape (steps,).
        warmup: fraction of the steps in the warm-up.
        cooldown: fraction of the steps in the cool-down.
        floor: learning rate at both ends; positive, so that the workload is invertible.

    >>> linear(8, warmup=0.25, cooldown=0.25, floor=0.5).tolist()
    [0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5]
    """
    owner = "schedules.linear"
    n = _check.positive_integer(owner, "steps", steps)
    up = _check.real(owner, "warmup", warmup, 0.0, 1.0, "pass a fraction of the steps, such as 0.15")
    down = _check.real(owner, "cooldown", cooldown, 0.0, 1.0 - up, "warmup + cooldown must be at most 1")
    low = _check.real(
        owner, "floor", floor, np.finfo(float).tiny, 1.0, "a learning rate of 0 makes the workload singular"
    )
    t = np.arange(n, dtype=np.float64)
    rising = low + (1.0 - low) * t / (up * n) if up > 0 else np.ones(n)
    falling = low + (1.0 - low) * (n - 1 - t) / (down * n) if down > 0 else np.ones(n)
    return np.minimum(1.0, np.minimum(rising, falling))
