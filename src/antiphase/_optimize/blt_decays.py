"""Unconstrained coordinates for BLTs (buffered linear Toeplitz strategies) with d buffers.

Every point in these coordinates is a valid BLT with interlaced decays: the decays theta_j of the strategy C and the
decays hat_j ("theta hat") of C^-1 satisfy

    1 > theta_1 > hat_1 > theta_2 > hat_2 > ... > theta_d > hat_d,   C(x) = prod(1 - hat_j x) / prod(1 - theta_j x).

Here C(x) is the power series of the coefficients of C. It follows that the scales of C are positive, and that the
coefficients of C are positive and decrease from the second one on. The first 2 d - 1 decays are positive. They are
given by a decreasing sequence of logits, log(decay / (1 - decay)). The last decay, hat_d, may be negative, as long as
the second coefficient, c_1 = sum_j theta_j - sum_j hat_j, is at most c_0 = 1. It is given by
hat_d = theta_d - W sigmoid(z). Here z is a free coordinate, and W = 1 - sum_{j < d} (theta_j - hat_j) > 0.

All differences of decays, and all values 1 - decay, are computed as sums of positive terms. So they are accurate even
if the decays are close to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._check import Array

MAX_LOGIT = 36.0  # at this logit, 1 - decay is 2.3e-16, about the spacing of floating-point numbers near 1
MIN_LOG_GAP, MAX_LOG_GAP = -12.0, 4.0  # bounds on the logarithms of the differences of logits


@dataclass(frozen=True)
class Decays:
    """Decays and scales of BLTs in the order theta_1, hat_1, theta_2, ..., each array of shape (batch, 2 d).

    Args:
        value: the decays.
        rest: 1 - decay, for each decay.
        rate: -log|decay|, for each decay.
        log_scale: for theta_j, the logarithm of the scale of C; for hat_j, the logarithm of the negated scale of C^-1.
        by_value: entry [s, i, j] is the derivative of log_scale[s, i] with respect to value[s, j].
        by_point: entry [s, i, j] is the derivative of value[s, i] with respect to coordinate j.
    """

    value: Array
    rest: Array
    rate: Array
    log_scale: Array
    by_value: Array
    by_point: Array

    def pull_back(self, by_value: Array, by_log_scale: Array) -> Array:
        """Return the gradient for the coordinates, given the gradients for the decays and for the log scales."""
        total = by_value + np.einsum("si,sij->sj", by_log_scale, self.by_value)
        return np.einsum("si,sij->sj", total, self.by_point)


def decays(points: Array) -> Decays:
    """Return the decays at a batch of points, of shape (batch, 2 d).

    The coordinates of a point are the first logit, the logarithms of the 2 d - 2 gaps between neighbouring logits, and
    z (see the top of this module).
    """
    logits, size = _logits(points), points.shape[1]
    value, rest = 1.0 / (1.0 + np.exp(-logits)), 1.0 / (1.0 + np.exp(logits))
    gaps = -np.expm1(-np.exp(points[:, 1:-1])) * value[:, :-1] * rest[:, 1:]  # differences of neighbouring decays
    room = rest[:, 0] + gaps[:, 1::2].sum(axis=1) + value[:, -1]  # W
    share = 1.0 / (1.0 + np.exp(-points[:, -1]))
    gaps = np.concatenate([gaps, (room * share)[:, None]], axis=1)
    value = np.concatenate([value, value[:, -1:] - gaps[:, -1:]], axis=1)
    rest = np.concatenate([rest, rest[:, -1:] + gaps[:, -1:]], axis=1)
    with np.errstate(divide="ignore"):
        rate = np.concatenate([np.log1p(np.exp(-logits)), -np.log(np.abs(value[:, -1:]))], axis=1)
    log_scale, by_value = _scales(gaps)
    return Decays(value, rest, rate, log_scale, by_value, _jacobian(points, value, rest, room, share, size))


def _logits(points: Array) -> Array:
    falls = np.cumsum(np.exp(points[:, 1:-1]), axis=1)
    return points[:, :1] - np.concatenate([np.zeros((len(points), 1)), falls], axis=1)


def _scales(gaps: Array) -> tuple[Array, Array]:
    """Return the logarithms of the scales and their derivatives, given the differences of neighbouring decays.

    Let t_i be all decays of both kinds, theta and hat. Then |scale_i| is a quotient. The numerator is the product of
    |t_i - t_k| over all t_k of the opposite kind. The denominator is the same product over all other t_k of the same
    kind.

    Reference: Dvijotham et al. 2024, Lemma 5.2.
    """
    size = gaps.shape[1] + 1
    i, j = np.ogrid[:size, :size]
    between = (np.arange(size - 1) >= np.minimum(i, j)[..., None]) & (np.arange(size - 1) < np.maximum(i, j)[..., None])
    distance = np.where(i == j, 1.0, np.einsum("sg,ijg->sij", gaps, between))
    signs = np.where((i + j) % 2 == 1, 1.0, -1.0) * (i != j)
    slope = signs * np.sign(j - i) / distance  # terms of the derivative of log_scale_i with respect to t_i
    by_value = -slope
    by_value[:, np.arange(size), np.arange(size)] = slope.sum(axis=2)
    return (signs * np.log(distance)).sum(axis=2), by_value


def _jacobian(points: Array, value: Array, rest: Array, room: Array, share: Array, size: int) -> Array:
    """Return the derivative of the decays with respect to the coordinates."""
    first = (value * rest)[:, :-1]  # derivative of each decay with respect to its logit
    by_logit = np.zeros((len(points), size, size))
    k = np.arange(size - 1)
    by_logit[:, k, k] = first
    signs = np.where(k % 2 == 0, 1.0, -1.0)
    signs[-1] = 0.0  # W does not depend on theta_d
    by_logit[:, -1, :-1] = share[:, None] * signs * first
    by_logit[:, -1, -2] += first[:, -1]
    by_logit[:, -1, -1] = -room * share * (1.0 - share)
    # Each logit is the first coordinate minus the sum of exp(coordinate) over the gaps up to it.
    sums = np.cumsum(by_logit[:, :, -2::-1], axis=2)[:, :, ::-1]
    middle = -sums[:, :, 1:] * np.exp(points[:, None, 1:-1])
    return np.concatenate([sums[:, :, :1], middle, by_logit[:, :, -1:]], axis=2)


def to_points(logits: Array) -> Array:
    """Return the coordinates of a batch of BLTs with positive decays, given their 2 d decreasing logits."""
    value, rest = 1.0 / (1.0 + np.exp(-logits)), 1.0 / (1.0 + np.exp(logits))
    gaps = -np.expm1(np.diff(logits, axis=1)) * value[:, :-1] * rest[:, 1:]
    room = rest[:, 0] + gaps[:, 1:-1:2].sum(axis=1) + value[:, -2]
    share = gaps[:, -1] / room
    last = np.log(share) - np.log1p(-share)
    return np.concatenate([logits[:, :1], np.log(-np.diff(logits[:, :-1], axis=1)), last[:, None]], axis=1)


def to_logits(points: Array) -> Array:
    """Return the 2 d decreasing logits of the decays at a batch of points.

    If the last decay is less than 0.3 times the decay before, it is raised to this value. It is then positive and has a
    logit.
    """
    logits, value = _logits(points), decays(points).value
    last = np.maximum(value[:, -1:], 0.3 * value[:, -2:-1])
    return np.concatenate([logits, np.log(last) - np.log1p(-last)], axis=1)


def clipped(points: Array) -> Array:
    """Return the points with all coordinates clipped to a range in which neighbouring decays differ numerically."""
    out = np.clip(points, MIN_LOG_GAP, MAX_LOG_GAP)
    out[:, 0] = np.minimum(points[:, 0], MAX_LOGIT)
    out[:, -1] = np.clip(points[:, -1], -MAX_LOGIT, MAX_LOGIT)
    return out
