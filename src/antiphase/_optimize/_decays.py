"""Coordinates of a BLT: 2 d interlaced decays as a decreasing sequence of logits.

    1 > theta_1 > that_1 > theta_2 > that_2 > ... > 0,    C(x) = prod(1 - that_j x) / prod(1 - theta_j x).

Every such sequence gives positive scales, so that the coefficients of C are positive and do not increase: no point
is infeasible. Differences and complements of decays are formed from the logits, which keeps them accurate next to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._check import Array

LARGEST_LOGIT = 36.0  # 1 - decay is then less than half a unit in the last place of 1
SMALLEST_GAP, LARGEST_GAP = -12.0, 4.0  # logarithms of the differences of logits


@dataclass(frozen=True)
class Decays:
    """Decays and scales of a batch of BLTs, from logits of shape (batch, 2 d): theta_1, that_1, theta_2, ...

    Args:
        value: the decays.
        rest: 1 - decay.
        rate: -log(decay).
        log_scale: log of the scale of C for theta_j, and log of minus the scale of C^-1 for that_j.
        log_scale_gradient: entry [s, i, j] is the derivative of log_scale[s, i] for logit j.
    """

    value: Array
    rest: Array
    rate: Array
    log_scale: Array
    log_scale_gradient: Array


def decays(logits: Array) -> Decays:
    """The decays of a batch, scales by Dvijotham et al. 2024, Lemma 5.2."""
    value, rest = 1.0 / (1.0 + np.exp(-logits)), 1.0 / (1.0 + np.exp(logits))
    size = logits.shape[-1]
    i, j = np.ogrid[:size, :size]
    signs = np.where((i + j) % 2 == 1, 1.0, -1.0)
    np.fill_diagonal(signs, 0.0)
    upper, lower = np.maximum(i, j), np.minimum(i, j)  # the larger logit has the lower index
    gap = np.where(i == j, 1.0, -np.expm1(logits[:, upper] - logits[:, lower]))
    difference = np.where(i == j, 1.0, gap * value[:, lower] * rest[:, upper])
    slope = (value * rest)[:, :, None] / difference * np.sign(j - i)  # of log|decay_i - decay_j| for logit i
    gradient = signs * slope.swapaxes(1, 2)
    gradient[:, np.arange(size), np.arange(size)] = (signs * slope).sum(axis=2)
    return Decays(value, rest, np.log1p(np.exp(-logits)), (signs * np.log(difference)).sum(axis=2), gradient)


def to_logits(points: Array) -> Array:
    """From coordinates (first logit, logs of the gaps) to decreasing logits."""
    gaps = np.cumsum(np.exp(points[:, 1:]), axis=1)
    return points[:, :1] - np.concatenate([np.zeros((len(points), 1)), gaps], axis=1)


def to_points(logits: Array) -> Array:
    """The inverse of `to_logits`."""
    return np.concatenate([logits[:, :1], np.log(-np.diff(logits, axis=1))], axis=1)


def pull_back(points: Array, gradient: Array) -> Array:
    """The gradient for the coordinates from that for the logits."""
    sums = np.cumsum(gradient[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([sums[:, :1], -sums[:, 1:] * np.exp(points[:, 1:])], axis=1)


def clipped(points: Array) -> Array:
    """Coordinates that floating point can tell apart."""
    out = np.clip(points, SMALLEST_GAP, LARGEST_GAP)
    out[:, 0] = np.minimum(points[:, 0], LARGEST_LOGIT)
    return out
