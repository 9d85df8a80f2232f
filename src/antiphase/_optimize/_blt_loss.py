"""Loss of a BLT in closed form, with its gradient, for many candidates at once.

Under the earliest pattern C u is, between two participations, a sum of d geometric sequences; for the prefix sum the
response of A C^-1 is w_i = w + sum_j r_j that_j^i with w, r_j > 0. All sums are geometric, and cancel nowhere.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._loss import Objective
from antiphase._optimize._decays import Decays, clipped, decays
from antiphase._optimize._doubling import DoublingSquare
from antiphase._optimize._geometric import GeometricSums
from antiphase._optimize._objective import power_mean
from antiphase._optimize._schema import Schema
from antiphase._workload import Workload

LARGEST_BATCH = 1 << 22  # participations x buffers held at a time


class EarliestSquare:
    """The squared sensitivity: |C u|^2 for u = 1 at steps 0, b, ..., (k - 1) b.

    Block m is what follows participation m up to the next. There buffer j starts with A_mj = 1 + q + ... + q^m,
    q = theta_j^b, and the entry at the participation itself is 1 + sum_j scale_j theta_j^(b - 1) A_(m-1)j.

    Args:
        steps: n.
        separation: b.
        count: k.
    """

    def __init__(self, steps: int, separation: int, count: int) -> None:
        self._separation, self._count = separation, count
        left = steps - count * separation
        self._whole = count if left >= 0 else count - 1
        self._block = GeometricSums(separation - 1)
        self._last = GeometricSums(left + separation - 1) if left < 0 else None
        self._tail = GeometricSums(left) if left > 0 else None

    def __call__(self, rate: Array, scale: Array) -> tuple[Array, Array, Array]:
        """The value for each candidate of a batch, and its derivatives for rate and scale, shape (batch, d)."""
        b, m = self._separation, np.arange(self._count)[:, None]
        powers = np.exp(-b * m * rate[:, None, :])
        A, dA = np.cumsum(powers, axis=1), -b * np.cumsum(m * powers, axis=1)
        shift = np.exp(-(b - 1) * rate)[:, None, :]
        carried, d_carried = shift * A, shift * dA - (b - 1) * shift * A
        hits = 1.0 + np.einsum("smj,sj->sm", carried[:, :-1], scale)
        value = 1.0 + np.einsum("sm,sm->s", hits, hits)
        by_scale = 2.0 * np.einsum("sm,smj->sj", hits, carried[:, :-1])
        by_rate = 2.0 * scale * np.einsum("sm,smj->sj", hits, d_carried[:, :-1])
        w = self._whole
        parts = [
            (A[:, :w], dA[:, :w], self._block),
            (A[:, -1:], dA[:, -1:], self._last),
            (carried[:, -1:], d_carried[:, -1:], self._tail),
        ]
        for amplitude, d_amplitude, sums in parts:
            if sums is not None:
                added = _decaying_square(amplitude, d_amplitude, rate, scale, sums)
                value, by_rate, by_scale = value + added[0], by_rate + added[1], by_scale + added[2]
        return value, by_rate, by_scale


def _decaying_square(
    amplitude: Array, d_amplitude: Array, rate: Array, scale: Array, sums: GeometricSums
) -> tuple[Array, Array, Array]:
    """sum over m and i of (sum_j scale_j amplitude_mj exp(-rate_j i))^2, and its derivatives."""
    rates = rate[:, :, None] + rate[:, None, :]
    ratio = np.exp(-rates)
    zeroth, slope, _ = sums(ratio, rates)
    gram = amplitude.swapaxes(1, 2) @ amplitude
    mixed = d_amplitude.swapaxes(1, 2) @ amplitude
    by_scale = 2.0 * np.einsum("sjl,sl->sj", gram * zeroth, scale)
    by_rate = 2.0 * scale * np.einsum("sjl,sl->sj", mixed * zeroth - gram * ratio * slope, scale)
    return 0.5 * np.einsum("sj,sj->s", by_scale, scale), by_rate, by_scale


class ResponseSquare:
    """The squared error for the prefix sum: sum_i w_i^2 for "max", sum_i (1 - i / n) w_i^2 for "rms"."""

    def __init__(self, steps: int, objective: Objective) -> None:
        self._steps, self._objective = float(steps), objective
        self._sums = GeometricSums(steps)

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """The value for each candidate of a batch, and its gradient for the coordinates."""
        theta, that = np.s_[:, 0::2], np.s_[:, 1::2]
        limit = np.log(found.rest[theta]).sum(axis=1) - np.log(found.rest[that]).sum(axis=1)
        r = np.exp(np.concatenate([found.log_scale[that] - np.log(found.rest[that]), limit[:, None]], axis=1))
        ratio = np.concatenate([found.value[that], np.ones((len(r), 1))], axis=1)
        rate = np.concatenate([found.rate[that], np.zeros((len(r), 1))], axis=1)
        weight, slope = self._weights(ratio[:, :, None] * ratio[:, None, :], rate[:, :, None] + rate[:, None, :])
        by_log_r = 2.0 * r * np.einsum("spq,sq->sp", weight, r)
        by_ratio = 2.0 * r * np.einsum("spq,sq->sp", slope, r * ratio)
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_log_scale[that] = by_log_r[:, :-1]
        by_value[that] = by_ratio[:, :-1] + (by_log_r[:, :-1] + by_log_r[:, -1:]) / found.rest[that]
        by_value[theta] = -by_log_r[:, -1:] / found.rest[theta]
        return 0.5 * by_log_r.sum(axis=1), found.pull_back(by_value, by_log_scale)

    def _weights(self, ratio: Array, rate: Array) -> tuple[Array, Array]:
        """The sum of weight x ratio^i, and its derivative for the ratio."""
        plain, slope, second = self._sums(ratio, rate)
        if self._objective == "max":
            return plain, slope
        return plain - ratio * slope / self._steps, slope - second / self._steps


class ClosedLoss:
    """log(loss) under a Toeplitz workload for a batch of points in the coordinates of `_decays`."""

    def __init__(self, steps: int, promise: Schema, inverse: Array, objective: Objective) -> None:
        prefix = len(inverse) == 2 and inverse.sum() == 0.0
        self._log_unit = -np.log(inverse[0]) if prefix else 0.0  # the learning rate
        self._error = ResponseSquare(steps, objective) if prefix else DoublingSquare(steps, objective, inverse)
        self._square = EarliestSquare(steps, promise.separation, promise.count)
        self._most = max(1, LARGEST_BATCH // promise.count)

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Values and gradients; as many points at a time as fit in memory."""
        size = max(1, self._most // points.shape[1])
        parts = [self._evaluate(points[i : i + size]) for i in range(0, len(points), size)]
        return np.concatenate([v for v, _ in parts]), np.concatenate([g for _, g in parts])

    def _evaluate(self, points: Array) -> tuple[Array, Array]:
        found = decays(points)
        error, error_gradient = self._error(found)
        square, square_gradient = squared_sensitivity(self._square, found)
        gradient = error_gradient / error[:, None] + square_gradient / square[:, None]
        return 0.5 * (np.log(error) + np.log(square)) + self._log_unit, 0.5 * gradient


class StepwiseLoss:
    """log(loss) under any workload at one point, error by the covariance recursion, O(n d^2).

    Args:
        steps: n.
        promise: separation and count.
        workload: A.
        power: of the power mean of the variances; 1 for "rms".
    """

    def __init__(self, steps: int, promise: Schema, workload: Workload, power: float) -> None:
        self._inverse, self._power = workload.inverse_bands(steps), power
        self._square = EarliestSquare(steps, promise.separation, promise.count)

    def __call__(self, point: Array, gradient: Array) -> float:
        """The value at the point brought within bounds; coordinates that were moved have derivative 0."""
        from antiphase._kernels.blt import weighted_variances

        inside = clipped(point[None])
        found = decays(inside)
        decay, scale = found.value[0, 1::2].copy(), np.exp(found.log_scale[0, 1::2])
        equal = np.ones(len(self._inverse) if self._power == 1.0 else 0)  # the weights of "rms" are known beforehand
        variances, slopes = weighted_variances(decay, scale, self._inverse, equal)
        if not np.isfinite(variances).all() or variances.min() <= 0.0:
            return np.inf
        error, weights = power_mean(variances, self._power)
        slopes *= weights[0]
        if self._power != 1.0:
            slopes = weighted_variances(decay, scale, self._inverse, weights)[1]
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_value[0, 1::2], by_log_scale[0, 1::2] = slopes[: len(decay)], slopes[len(decay) :] * scale
        square, square_gradient = squared_sensitivity(self._square, found)
        total = found.pull_back(by_value, by_log_scale) + 0.5 * square_gradient / square[:, None]
        gradient[:] = np.where(inside[0] == point, total[0], 0.0)
        return float(error + 0.5 * np.log(square[0]))


def squared_sensitivity(formula: EarliestSquare, found: Decays) -> tuple[Array, Array]:
    """The squared sensitivity for each candidate of a batch, and its gradient for the coordinates."""
    theta = np.s_[:, 0::2]
    scale = np.exp(found.log_scale[theta])
    value, by_rate, by_scale = formula(found.rate[theta], scale)
    by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
    by_value[theta], by_log_scale[theta] = -by_rate / found.value[theta], by_scale * scale
    return value, found.pull_back(by_value, by_log_scale)
