"""The error of a BLT under any workload, and its derivatives with respect to the parameters of C^-1.

A is the workload matrix, C the matrix of the BLT and z white noise. C^-1 is also the matrix of a BLT, with its own
decays and scales. So u = C^-1 z has the entries u_t = z_t - sum_j scale_j R_j(t), where scale_j is the negated scale
number j of C^-1, and R_j is a buffer with R_j(t + 1) = decay_j R_j(t) + z_t. Then s = A u follows from the bands e of
A^-1: s_t = (u_t - sum_{r >= 1} e_r s_{t-r}) / e_0. The state of this recursion is (R, s_{t-1}, ..., s_{t-q}), where q
is the number of bands minus one. The s_t are called outputs.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled()
def weighted_variances(decay: Array, scale: Array, inverse: Array, weights: Array) -> tuple[Array, Array]:
    """Return the variance of every row of A C^-1 z, and the derivatives of the weighted sum of these variances.

    The kernel propagates covariances from step to step. PR is the covariance of the buffers, PX the covariance of the
    last q outputs with the buffers, and PS the covariance of the last q outputs. Entry [a, i] of dPR is the derivative
    of PR[a, i] with respect to decay[a]. dPX[k] and dPS[k] are the derivatives of PX and PS with respect to decay[k]
    for k < d, and to scale[k - d] for larger k. With d buffers, this takes O(steps d^2) time.

    Args:
        decay: decays of C^-1.
        scale: negated scales of C^-1.
        inverse: inverse[t, r] = A^-1[t, t - r].
        weights: one weight per step; an empty array to compute the variances only.

    Returns:
        The variances, shape (steps,), and the derivatives with respect to `decay` and then `scale`, shape (2 d,).
    """
    n, d, q = len(inverse), len(decay), inverse.shape[1] - 1
    size = 2 * d if len(weights) > 0 else 0
    PR, PX, PS = np.zeros((d, d)), np.zeros((q, d)), np.zeros((q, q))
    dPR = np.zeros((d, d))
    dPX, dPS = np.zeros((size, q, d)), np.zeros((size, q, q))
    cR, cS, dcR, dcS = np.zeros(d), np.zeros(q), np.zeros(d), np.zeros(q)
    variances, slopes = np.empty(n), np.zeros(2 * d)
    for t in range(n):
        e, pivot = inverse[t], 1.0 / inverse[t, 0]
        total = 1.0
        for j in range(d):
            cR[j] = 0.0
            for i in range(d):
                cR[j] -= scale[i] * PR[i, j]
            for r in range(q):
                cR[j] -= e[r + 1] * PX[r, j]
            total -= scale[j] * cR[j]
        for r in range(q):
            cS[r] = 0.0
            for i in range(d):
                cS[r] -= scale[i] * PX[r, i]
            for p in range(q):
                cS[r] -= e[p + 1] * PS[p, r]
            total -= e[r + 1] * cS[r]
        variances[t] = total * pivot * pivot
        for k in range(size):
            a = k % d
            by_decay = k < d
            change = 0.0
            for j in range(d):
                if not by_decay:
                    value = -PR[a, j]
                elif j == a:
                    value = 0.0
                    for i in range(d):
                        value -= scale[i] * dPR[a, i]
                else:
                    value = -scale[a] * dPR[a, j]
                for r in range(q):
                    value -= e[r + 1] * dPX[k, r, j]
                dcR[j] = value
                change -= scale[j] * value
            for r in range(q):
                value = 0.0 if by_decay else -PX[r, a]
                for i in range(d):
                    value -= scale[i] * dPX[k, r, i]
                for p in range(q):
                    value -= e[p + 1] * dPS[k, p, r]
                dcS[r] = value
                change -= e[r + 1] * value
            if not by_decay:
                change -= cR[a]
            change *= pivot * pivot
            slopes[k] += weights[t] * change
            _shift(dPX[k], dPS[k], decay, dcR, dcS, 0.0, pivot, change)
            if by_decay and q > 0:
                dPX[k, 0, a] += pivot * cR[a]
                for r in range(1, q):
                    dPX[k, r, a] += PX[r - 1, a]
        _shift(PX, PS, decay, cR, cS, 1.0, pivot, variances[t])
        for a in range(d):
            for i in range(d):
                dPR[a, i] = decay[a] * decay[i] * dPR[a, i] + decay[i] * PR[a, i] * (2.0 if a == i else 1.0)
        for j in range(d):
            for i in range(d):
                PR[j, i] = decay[j] * decay[i] * PR[j, i] + 1.0
    return variances, slopes


@compiled()
def _shift(
    PX: Array, PS: Array, decay: Array, cR: Array, cS: Array, noise: float, pivot: float, variance: float
) -> None:
    """Shift the covariances of the last outputs by one step and insert the new output's covariances."""
    q, d = PX.shape
    for r in range(q - 1, 0, -1):
        for j in range(d):
            PX[r, j] = decay[j] * PX[r - 1, j]
        for p in range(q - 1, 0, -1):
            PS[r, p] = PS[r - 1, p - 1]
    for j in range(d):
        if q > 0:
            PX[0, j] = pivot * (decay[j] * cR[j] + noise)
    for r in range(1, q):
        PS[0, r] = PS[r, 0] = pivot * cS[r - 1]
    if q > 0:
        PS[0, 0] = variance
