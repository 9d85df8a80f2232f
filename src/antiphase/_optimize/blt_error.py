"""Squared error of a BLT, and its gradient.

For the prefix sum, the squared error has a closed form. For other Toeplitz workloads, it takes O(log n) operations. For
the last iterate under `Curvatures`, it is computed from the last rows of the workloads. `blt_decays` defines the decays
theta_j and hat_j of a BLT, and its coordinates. All gradients are with respect to these coordinates. A is the workload
matrix, and C is the strategy matrix of the BLT.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._error import trajectory_weight
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.blt_decays import Decays
from antiphase._optimize.curvature_error import MAX_SOLVED_STEPS, remembered_rows, sampled_rows
from antiphase._workload import Workload


class PrefixSumSquaredError:
    """Squared error for prefix sums: sum_i w_i^2 for "max", sum_i (1 - i / n) w_i^2 for "rms".

    Here w is the first column of A C^-1. Its entries are w_i = w_inf + sum_j r_j hat_j^i with positive constants w_inf
    and r_j. So the squared error is a sum of geometric sums, all of which are positive, and no digits cancel.

    Args:
        steps: number of steps, n.
        objective: the error to minimise, "rms" or "max" over the steps.
    """

    def __init__(self, steps: int, objective: Objective) -> None:
        self._steps, self._objective = float(steps), objective
        self._sums = GeometricSums(steps)

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """Return the value for each BLT of a batch, and its gradient with respect to the coordinates."""
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
        """Return sum_i weight_i ratio^i and its derivative with respect to the ratio.

        The weights are 1 for "max" and 1 - i / n for "rms". `rate` is -log|ratio|.
        """
        plain, slope, second = self._sums(ratio, rate)
        if self._objective == "max":
            return plain, slope
        return plain - ratio * slope / self._steps, slope - second / self._steps


class ToeplitzSquaredError:
    """Squared error under a Toeplitz workload: sum_i w_i^2 for "max", sum_i (1 - i / n) w_i^2 for "rms".

    Here w is the first column of A C^-1. A recursion computes w from a state, which holds the buffers of C^-1 and the
    last outputs of A. The vector x is the state after the first step, and the matrix F advances the state by one step.
    Then w_i is one entry of F^i x. Let P_m be the sum of F^i x (F^i x)^T over i < m, and Q_m the sum of
    i F^i x (F^i x)^T. Doubling the number of terms gives

        P_2m = P_m + F^m P_m F^mT,        Q_2m = Q_m + F^m (Q_m + m P_m) F^mT,

    and the same steps in reverse give the gradient.

    Args:
        steps: number of steps, n.
        objective: the error to minimise, "rms" or "max" over the steps.
        inverse: the first column of A^-1.
    """

    def __init__(self, steps: int, objective: Objective, inverse: Array) -> None:
        self._steps = steps
        self._inverse = np.append(inverse, 0.0) if len(inverse) == 1 else inverse
        self._by_index = 0.0 if objective == "max" else -1.0 / steps

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """Return the value for each BLT of a batch, and its gradient with respect to the coordinates."""
        that = np.s_[:, 1::2]
        decay, scale = found.value[that], np.exp(found.log_scale[that])
        d = decay.shape[1]
        value, slope = self._sums(*self._system(decay, scale), d)
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_value[that] = np.einsum("sjj->sj", slope)[:, :d]
        by_log_scale[that] = -slope[:, d, :d] / self._inverse[0] * scale
        return value, found.pull_back(by_value, by_log_scale)

    def _system(self, decay: Array, scale: Array) -> tuple[Array, Array]:
        """Return F, and the state x after the first step with input 1."""
        (count, d), e = decay.shape, self._inverse
        q = len(e) - 1
        F = np.zeros((count, d + q, d + q))
        F[:, np.arange(d), np.arange(d)] = decay
        F[:, d, :d] = -scale / e[0]
        F[:, d, d:] = -e[1:] / e[0]
        F[:, np.arange(d + 1, d + q), np.arange(d, d + q - 1)] = 1.0
        x = np.zeros(d + q)
        x[:d], x[d] = 1.0, 1.0 / e[0]
        return F, x

    def _sums(self, F: Array, x: Array, entry: int) -> tuple[Array, Array]:
        """Return sum_i weight_i v_i^2 and its derivative with respect to F.

        Here v_i is the entry of F^i x with index `entry`. The weights are 1 for "max" and 1 - i / n for "rms".
        """
        M, P, Q, m = F, np.broadcast_to(np.outer(x, x), F.shape), np.zeros_like(F), 1
        tape = []
        for bit in bin(self._steps)[3:]:
            tape.append((M, P, Q, m, "double"))
            P, Q, M, m = P + _congruence(M, P), Q + _congruence(M, Q + m * P), M @ M, 2 * m
            if bit == "1":
                tape.append((M, P, Q, m, "add"))
                y = M @ x
                outer = y[:, :, None] * y[:, None, :]
                P, Q, M, m = P + outer, Q + m * outer, F @ M, m + 1
        value = P[:, entry, entry] + self._by_index * Q[:, entry, entry]
        return value, self._reverse(F, x, entry, tape)

    def _reverse(self, F: Array, x: Array, entry: int, tape: list[tuple[Array, Array, Array, int, str]]) -> Array:
        """Return the derivative of the result of `_sums` with respect to F, from the steps recorded in `tape`.

        The local variables P, Q and M hold the derivatives with respect to the matrices P, Q and M of the forward pass.
        """
        P, Q, M, slope = (np.zeros_like(F) for _ in range(4))
        P[:, entry, entry], Q[:, entry, entry] = 1.0, self._by_index
        for M_before, P_before, Q_before, m, kind in reversed(tape):
            transposed = M_before.swapaxes(1, 2)
            if kind == "double":
                S_before = Q_before + m * P_before
                M = M @ transposed + transposed @ M + 2.0 * (P @ M_before @ P_before + Q @ M_before @ S_before)
                S = _congruence(transposed, Q)
                P, Q = P + _congruence(transposed, P) + m * S, Q + S
            else:
                slope += M @ transposed
                y = 2.0 * np.einsum("sij,sj->si", P + m * Q, M_before @ x)
                M = F.swapaxes(1, 2) @ M + y[:, :, None] * x
        return slope + M


class LastIterateSquaredError:
    """Squared error J of the last iterate under `Curvatures`: J = sum_i |C^-T a_i|^2.

    Here a_i is the last row of sqrt(p_i) A_i, where p_i and A_i are the weight and the workload of curvature i.
    Multiplying by C^-T applies C^-1 backwards in time, from the last step to the first. The rows a_i are zero (or
    negligible) except in a number of steps at the end, called the remembered steps. At all earlier steps, the buffers
    of C^-1 get no input and only decay. So the sum over these steps is geometric, and its cost does not depend on their
    number.

    Args:
        rows: the rows a_i, restricted to the remembered steps, of shape (remembered steps, curvatures).
        steps: number of steps, n.
    """

    def __init__(self, rows: Array, steps: int) -> None:
        self._rows = np.ascontiguousarray(rows[-steps:][::-1])
        self._rest = GeometricSums(steps - len(self._rows))

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """Return the value for each BLT of a batch, and its gradient with respect to the coordinates."""
        from antiphase._kernels import buffered_rows

        that = np.s_[:, 1::2]
        decay, scale = np.ascontiguousarray(found.value[that]), np.exp(found.log_scale[that])
        d = decay.shape[1]
        value, slopes = np.empty(len(decay)), np.empty((len(decay), 2 * d))
        held = np.empty((2, len(decay), d, self._rows.shape[1]))
        for s in range(len(decay)):
            value[s], slopes[s], held[0, s], held[1, s] = buffered_rows(decay[s], scale[s], self._rows)
        rest, rest_by_decay, rest_by_scale = self._decaying(decay, found.rate[that], scale, *held)
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_value[that] = slopes[:, :d] + rest_by_decay
        by_log_scale[that] = (slopes[:, d:] + rest_by_scale) * scale
        return value + rest, found.pull_back(by_value, by_log_scale)

    def _decaying(self, decay: Array, rate: Array, scale: Array, B: Array, D: Array) -> tuple[Array, Array, Array]:
        """Return the sum over t of (sum_j scale_j decay_j^t B_j)^2, and its derivatives for the decays and scales.

        The steps t = 0, 1, ... are those before the remembered steps, counted backwards. B_j is the value of buffer j
        at t = 0, for every curvature. D_j is the derivative of B_j with respect to decay_j.
        """
        plain, slope, _ = self._rest(decay[:, :, None] * decay[:, None, :], rate[:, :, None] + rate[:, None, :])
        gram, mixed = B @ B.swapaxes(1, 2), D @ B.swapaxes(1, 2)
        by_scale = 2.0 * np.einsum("sjl,sl->sj", gram * plain, scale)
        by_decay = np.einsum("sjl,sl->sj", mixed * plain + gram * slope * decay[:, None, :], scale)
        return 0.5 * np.einsum("sj,sj->s", by_scale, scale), 2.0 * scale * by_decay, by_scale


class MeanSquaredError:
    """Squared error J under `Curvatures` for Toeplitz workloads: the mean over the last m steps.

    Let W_t be the sum of the noise variances of the first t steps. Then the mean variance of the last m of n steps is
    (W_n - W_{n-m}) / m.

    Args:
        inverses: the first columns of A_i^-1, where A_i is the workload for curvature i.
        shares: the weights p_i of the curvatures, which sum to 1.
        steps: number of steps, n.
        counted: number of steps at the end whose error counts, m.
    """

    def __init__(self, inverses: list[Array], shares: Array, steps: int, counted: int) -> None:
        self._parts = []
        for inverse, share in zip(inverses, shares, strict=True):
            for count, sign in ((steps, 1.0), (steps - counted, -1.0)):
                if count:
                    factor = sign * share * count / counted
                    self._parts.append((factor, ToeplitzSquaredError(count, "rms", inverse)))

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """Return the value for each BLT of a batch, and its gradient with respect to the coordinates."""
        value, gradient = np.zeros(len(found.value)), np.zeros_like(found.value)
        for factor, error in self._parts:
            part, slope = error(found)
            value += factor * part
            gradient += factor * slope
        return value, gradient


# decays of a batch of BLTs -> squared errors, and their gradients with respect to the coordinates
SquaredErrorFormula = Callable[[Decays], tuple[Array, Array]]


def curvatures_formula(
    workload: Workload, objective: Curvatures, run: int, steps: int | None = None
) -> SquaredErrorFormula | None:
    """Return a function from the decays of a BLT to the squared error J of `Curvatures`.

    Returns None if the learning rate changes over the steps and the errors of all steps count. There is no formula for
    this case.

    Args:
        workload: the workload matrix for curvature 0.
        objective: the curvatures, and the steps whose error counts.
        run: number of steps of the whole run.
        steps: number of steps at the end of the run that use C; by default, all steps.
    """
    n = run if steps is None else steps
    if objective.way is not None:
        return _with_trajectory(workload, objective, run, n)
    counted, is_constant = objective.counted_steps(n), workload.toeplitz_inverse is not None
    short = n <= MAX_SOLVED_STEPS or objective.values.min() > 0.0 or objective.averaged_steps(n) > 1
    if counted == 1 and (short or not is_constant):
        return LastIterateSquaredError(remembered_rows(workload, objective, run), n)
    if not is_constant:
        return None
    inverses = [A.toeplitz_inverse for A in objective.workloads(workload)]
    return MeanSquaredError([i for i in inverses if i is not None], objective.shares, n, counted)


def _with_trajectory(workload: Workload, objective: Curvatures, run: int, steps: int) -> SquaredErrorFormula | None:
    """Return a formula for an objective with a trajectory term, the second term of `Curvatures`.

    The formula is the squared error without this term, plus the weighted term. The term is the mean noise variance over
    all steps in a direction of curvature 0. Under a learning-rate schedule, it is the mean over a few steps only.
    """
    at_end = curvatures_formula(workload, objective.destination, run, steps)
    if at_end is None:
        return None
    weight, inverse = trajectory_weight(workload, objective, run), workload.toeplitz_inverse
    over_steps: SquaredErrorFormula
    if inverse is None:
        over_steps = LastIterateSquaredError(sampled_rows(workload, run, steps), steps)
    else:
        over_steps = MeanSquaredError([inverse], np.ones(1), steps, steps)

    def formula(found: Decays) -> tuple[Array, Array]:
        (end, by_end), (mean, by_mean) = at_end(found), over_steps(found)
        return end + weight * mean, by_end + weight * by_mean

    return formula


def squared_error_formula(
    steps: int, objective: Objective, inverse: Array
) -> PrefixSumSquaredError | ToeplitzSquaredError:
    """Return a formula for the squared error under a Toeplitz workload, given the first column of A^-1.

    If A is a multiple of the prefix sum, the result is the closed form for the prefix sum itself, without the factor.
    """
    if len(inverse) == 2 and inverse.sum() == 0.0:
        return PrefixSumSquaredError(steps, objective)
    return ToeplitzSquaredError(steps, objective, inverse)


def _congruence(M: Array, S: Array) -> Array:
    """Return M S M^T."""
    return M @ S @ M.swapaxes(1, 2)


class GeometricSums:
    """Computes geometric sums and their derivatives, to full accuracy for every ratio from -1 to 1.

    For a ratio x, the sums are P = sum x^i, P' = sum i x^(i-1) and R = sum i^2 x^(i-1) over 0 <= i < count. Hence
    sum i x^i = x P'. Multiplied by 1 - x, each sum telescopes to sums with a lower power of i. If x is very close to 1,
    the division by 1 - x would lose digits. The sums are then computed from their power series in -log x, whose
    coefficients contain sums of powers of integers.

    Args:
        count: number of terms.

    >>> [float(s) for s in GeometricSums(3)(np.array(1.0), np.array(0.0))]
    [3.0, 3.0, 5.0]
    """

    def __init__(self, count: int) -> None:
        self._count = count
        terms = 10
        sums = _power_sums(count, terms + 2)
        signs = [(-1.0) ** p / math.factorial(p) for p in range(terms)]
        self._series = [[sign * float(sums[p + q]) for p, sign in enumerate(signs)] for q in range(3)]

    def __call__(self, ratio: Array, rate: Array) -> tuple[Array, Array, Array]:
        """Return P, P' and R for an array of ratios x. `rate` must be -log|x|."""
        n = float(self._count)
        if n == 0:
            return np.zeros_like(rate), np.zeros_like(rate), np.zeros_like(rate)
        small = (ratio > 0.0) & (rate * n < 0.05)  # use the series
        x, safe = np.where(small, 0.5, ratio), np.where(small, math.log(2.0), rate)
        rest = np.where(x > 0.0, -np.expm1(-safe), 1.0 - x)
        last = np.exp(-(n - 1.0) * safe) if n > 1 else np.ones_like(safe)  # |x|^(n - 1)
        last *= np.where((x < 0.0) & (self._count % 2 == 0), -1.0, 1.0)
        plain = (1.0 - x * last) / rest
        slope = (plain - n * last) / rest
        second = (2.0 * slope - plain + (1.0 - (n - 1.0) ** 2) * last) / rest
        if not small.any():
            return plain, slope, second
        near = np.where(small, rate, 0.0)
        exact = [np.polynomial.polynomial.polyval(near, series) for series in self._series]
        over = np.exp(near)
        pairs = zip((exact[0], exact[1] * over, exact[2] * over), (plain, slope, second), strict=True)
        plain, slope, second = (np.where(small, series, closed) for series, closed in pairs)
        return plain, slope, second


def _power_sums(count: int, largest: int) -> list[int]:
    """Return the exact sums of i^q over 0 <= i < count for q = 0, ..., largest, by Pascal's identity."""
    sums: list[int] = []
    for q in range(largest + 1):
        lower = sum(math.comb(q + 1, j) * sums[j] for j in range(q))
        sums.append((count ** (q + 1) - lower) // (q + 1))
    return sums
