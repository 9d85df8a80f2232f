"""Loss of a BLT, and its gradient: in closed form for Toeplitz workloads, and by a recursion for all workloads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import power_mean
from antiphase._optimize.blt_decays import Decays, clipped, decays
from antiphase._optimize.blt_error import (
    GeometricSums,
    PrefixSumSquaredError,
    SquaredErrorFormula,
    squared_error_formula,
)
from antiphase._optimize.participation_limits import ParticipationLimits
from antiphase._workload import Workload

# (rates, scales), each of shape (batch, d) -> squared sensitivities of shape (batch,), and their derivatives with
# respect to rates and scales; a rate is -log of a decay
SquareFormula = Callable[[Array, Array], tuple[Array, Array, Array]]


class BLTSquaredSensitivity:
    """Squared sensitivity under the earliest pattern: |C u|^2, where u is 1 at steps 0, b, ..., (k - 1) b, otherwise 0.

    C is the strategy matrix of the BLT. Block m consists of the b - 1 steps after participation m and before the next
    one. Within block m, C u is a sum of d geometric sequences, one for each buffer. The sequence of buffer j starts
    with scale_j A_mj, where A_mj = 1 + q + ... + q^m and q = theta_j^b. Its ratio is theta_j, the decay of the buffer.
    At the step of participation m > 0, the entry of C u is 1 + sum_j scale_j theta_j^(b - 1) A_(m-1)j.

    Args:
        steps: number of steps, n.
        separation: number of steps from one participation to the next, b.
        count: number of participations, k.
    """

    def __init__(self, steps: int, separation: int, count: int) -> None:
        self._separation, self._count = separation, count
        left = steps - count * separation
        self._whole = count if left >= 0 else count - 1
        self._block = GeometricSums(separation - 1)
        self._last = GeometricSums(left + separation - 1) if left < 0 else None
        self._tail = GeometricSums(left) if left > 0 else None

    def __call__(self, rate: Array, scale: Array) -> tuple[Array, Array, Array]:
        """Return the value for each BLT of a batch, and its derivatives. `rate` is -log of the decays."""
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
    """Return the sum over m and i of (sum_j scale_j amplitude_mj exp(-rate_j i))^2, and its derivatives.

    `sums` computes the geometric sums over i. `d_amplitude` is the derivative of `amplitude` with respect to `rate`.
    """
    rates = rate[:, :, None] + rate[:, None, :]
    ratio = np.exp(-rates)
    zeroth, slope, _ = sums(ratio, rates)
    gram = amplitude.swapaxes(1, 2) @ amplitude
    mixed = d_amplitude.swapaxes(1, 2) @ amplitude
    by_scale = 2.0 * np.einsum("sjl,sl->sj", gram * zeroth, scale)
    by_rate = 2.0 * scale * np.einsum("sjl,sl->sj", mixed * zeroth - gram * ratio * slope, scale)
    return 0.5 * np.einsum("sj,sj->s", by_scale, scale), by_rate, by_scale


class ClosedLoss:
    """Computes log(loss) under a Toeplitz workload for a batch of points in the coordinates of `blt_decays`.

    Args:
        steps: number of steps, n.
        allowed: the separation and the number of participations.
        inverse: the first column of A^-1.
        objective: the error to minimise, "rms" or "max" over the steps; ignored if `error` is given.
        error: formula for the squared error; by default, the formula for `inverse` and `objective`.
    """

    def __init__(
        self,
        steps: int,
        allowed: ParticipationLimits,
        inverse: Array,
        objective: Objective,
        error: SquaredErrorFormula | None = None,
    ) -> None:
        self._error = squared_error_formula(steps, objective, inverse) if error is None else error
        is_prefix_sum = isinstance(self._error, PrefixSumSquaredError)
        self._log_learning_rate = -np.log(inverse[0]) if is_prefix_sum else 0.0
        self._square = BLTSquaredSensitivity(steps, allowed.separation, allowed.count)
        self._max_entries = max(1, (1 << 22) // allowed.count)  # limits points x coordinates x participations

    def __call__(self, points: Array) -> tuple[Array, Array]:
        """Return the values and gradients at all points. They are evaluated in batches that fit in memory."""
        size = max(1, self._max_entries // points.shape[1])
        parts = [self._evaluate(points[i : i + size]) for i in range(0, len(points), size)]
        return np.concatenate([v for v, _ in parts]), np.concatenate([g for _, g in parts])

    def _evaluate(self, points: Array) -> tuple[Array, Array]:
        found = decays(points)
        error, error_gradient = self._error(found)
        square, square_gradient = squared_sensitivity(self._square, found)
        gradient = error_gradient / error[:, None] + square_gradient / square[:, None]
        return 0.5 * (np.log(error) + np.log(square)) + self._log_learning_rate, 0.5 * gradient


class StepwiseLoss:
    """Computes log(loss) under any workload at one point, with a covariance recursion in O(n d^2) for d buffers.

    Args:
        steps: number of steps, n.
        square: formula for the squared sensitivity.
        workload: the workload matrix, A.
        power: exponent of the power mean of the variances, if `objective` is None; 1 for "rms".
        objective: a `Curvatures` object that counts all steps or only the last one. Each curvature takes one recursion.
            A trajectory term (see `Curvatures`) is ignored. If None, the error is the root of the power mean of the
            variances under `workload`.
    """

    def __init__(
        self,
        steps: int,
        square: SquareFormula,
        workload: Workload,
        power: float,
        objective: Curvatures | None = None,
    ) -> None:
        self._power, self._square = power, square
        what = Curvatures(np.zeros(1), steps="all") if objective is None else objective
        workloads = [workload] if objective is None else objective.workloads(workload)
        self._parts = list(zip(what.shares, (A.inverse_bands(steps) for A in workloads), strict=True))
        counted = what.counted_steps(steps)
        self._weights = np.where(np.arange(steps) >= steps - counted, 1.0 / counted, 0.0)
        self._inverse, self._is_mixed = self._parts[0][1], objective is not None

    def __call__(self, point: Array, gradient: Array) -> float:
        """Clip `point` to its bounds. Return the value there, and write the gradient into `gradient`.

        The derivative with respect to a clipped coordinate is 0.
        """
        inside = clipped(point[None])
        found = decays(inside)
        decay, scale = found.value[0, 1::2].copy(), np.exp(found.log_scale[0, 1::2])
        error, slopes = (self._mixed if self._is_mixed else self._power_mean)(decay, scale)
        if slopes is None:
            return np.inf
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_value[0, 1::2], by_log_scale[0, 1::2] = slopes[: len(decay)], slopes[len(decay) :] * scale
        square, square_gradient = squared_sensitivity(self._square, found)
        total = found.pull_back(by_value, by_log_scale) + 0.5 * square_gradient / square[:, None]
        gradient[:] = np.where(inside[0] == point, total[0], 0.0)
        return float(error + 0.5 * np.log(square[0]))

    def _mixed(self, decay: Array, scale: Array) -> tuple[float, Array | None]:
        """Return log sqrt(J) for the squared error J of `Curvatures`, and its derivatives for decays and scales.

        `decay` and `scale` are the decays and the negated scales of C^-1.
        """
        from antiphase._kernels import weighted_variances

        total, slopes = 0.0, np.zeros(2 * len(decay))
        for share, inverse in self._parts:
            variances, part = weighted_variances(decay, scale, inverse, self._weights)
            total += share * float(self._weights @ variances)
            slopes += share * part
        if not np.isfinite(total) or total <= 0.0:
            return np.inf, None
        return 0.5 * float(np.log(total)), 0.5 * slopes / total

    def _power_mean(self, decay: Array, scale: Array) -> tuple[float, Array | None]:
        """Return the logarithm of the root of the power mean of the variances, and its derivatives as in `_mixed`."""
        from antiphase._kernels import weighted_variances

        equal = np.ones(len(self._inverse) if self._power == 1.0 else 0)  # for "rms" the weights are known in advance
        variances, slopes = weighted_variances(decay, scale, self._inverse, equal)
        if not np.isfinite(variances).all() or variances.min() <= 0.0:
            return np.inf, None
        error, weights = power_mean(variances, self._power)
        slopes *= weights[0]
        if self._power != 1.0:
            slopes = weighted_variances(decay, scale, self._inverse, weights)[1]
        return error, slopes


def squared_sensitivity(formula: SquareFormula, found: Decays) -> tuple[Array, Array]:
    """Return the squared sensitivity for each BLT of a batch, and its gradient with respect to the coordinates."""
    theta = np.s_[:, 0::2]
    scale = np.exp(found.log_scale[theta])
    value, by_rate, by_scale = formula(found.rate[theta], scale)
    by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
    by_value[theta], by_log_scale[theta] = -by_rate / found.value[theta], by_scale * scale
    return value, found.pull_back(by_value, by_log_scale)
