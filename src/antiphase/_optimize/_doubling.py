"""Error of a BLT under a Toeplitz workload in O(log n), by doubling the number of terms.

The response w of A C^-1 to an impulse is an entry of F^i x, with F the update of the buffers of C^-1 and of the last
outputs of A. With P and Q the sums over i < m of F^i x (F^i x)^T times 1 and i,

    P_2m = P_m + F^m P_m F^mT,        Q_2m = Q_m + F^m (Q_m + m P_m) F^mT,

and the same steps in reverse give the gradient.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._loss import Objective
from antiphase._optimize._decays import Decays


class DoublingSquare:
    """The squared error under a Toeplitz workload: sum_i w_i^2 for "max", sum_i (1 - i / n) w_i^2 for "rms".

    Args:
        steps: n.
        objective: "rms" or "max".
        inverse: the first column of A^-1.
    """

    def __init__(self, steps: int, objective: Objective, inverse: Array) -> None:
        self._steps = steps
        self._inverse = np.append(inverse, 0.0) if len(inverse) == 1 else inverse
        self._by_index = 0.0 if objective == "max" else -1.0 / steps

    def __call__(self, found: Decays) -> tuple[Array, Array]:
        """The value for each candidate of a batch, and its gradient for the coordinates."""
        that = np.s_[:, 1::2]
        decay, scale = found.value[that], np.exp(found.log_scale[that])
        d = decay.shape[1]
        value, slope = self._sums(*self._system(decay, scale), d)
        by_value, by_log_scale = np.zeros_like(found.value), np.zeros_like(found.value)
        by_value[that] = np.einsum("sjj->sj", slope)[:, :d]
        by_log_scale[that] = -slope[:, d, :d] / self._inverse[0] * scale
        return value, found.pull_back(by_value, by_log_scale)

    def _system(self, decay: Array, scale: Array) -> tuple[Array, Array]:
        """F and the state x that an impulse leaves."""
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
        """The weighted sum of squares of one entry of F^i x, and its derivative for F."""
        M, P, Q, m = F, np.broadcast_to(np.outer(x, x), F.shape), np.zeros_like(F), 1
        passed = []
        for bit in bin(self._steps)[3:]:
            passed.append((M, P, Q, m, "double"))
            P, Q, M, m = P + _around(M, P), Q + _around(M, Q + m * P), M @ M, 2 * m
            if bit == "1":
                passed.append((M, P, Q, m, "add"))
                y = M @ x
                outer = y[:, :, None] * y[:, None, :]
                P, Q, M, m = P + outer, Q + m * outer, F @ M, m + 1
        value = P[:, entry, entry] + self._by_index * Q[:, entry, entry]
        return value, self._reverse(F, x, entry, passed)

    def _reverse(self, F: Array, x: Array, entry: int, passed: list[tuple[Array, Array, Array, int, str]]) -> Array:
        """The derivative for F: P, Q and M now stand for the derivatives for what bears their names."""
        P, Q, M, slope = (np.zeros_like(F) for _ in range(4))
        P[:, entry, entry], Q[:, entry, entry] = 1.0, self._by_index
        for M_before, P_before, Q_before, m, kind in reversed(passed):
            transposed = M_before.swapaxes(1, 2)
            if kind == "double":
                S_before = Q_before + m * P_before
                M = M @ transposed + transposed @ M + 2.0 * (P @ M_before @ P_before + Q @ M_before @ S_before)
                S = _around(transposed, Q)
                P, Q = P + _around(transposed, P) + m * S, Q + S
            else:
                slope += M @ transposed
                y = 2.0 * np.einsum("sij,sj->si", P + m * Q, M_before @ x)
                M = F.swapaxes(1, 2) @ M + y[:, :, None] * x
        return slope + M


def _around(M: Array, S: Array) -> Array:
    """M S M^T."""
    return M @ S @ M.swapaxes(1, 2)
