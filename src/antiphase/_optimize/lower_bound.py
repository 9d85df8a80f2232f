"""A lower bound on the loss of every strategy for the prefix sum, which is fast for any number of steps."""

from __future__ import annotations

import math

import numpy as np

from antiphase._optimize.participation_limits import ParticipationLimits

SUMMED_TERMS = 1 << 20  # number of singular values that are summed one by one; the rest is bounded by an integral


def prefix_sum_bound(steps: int, allowed: ParticipationLimits) -> float:
    """Return a lower bound on the "rms" loss of every C for the prefix sum. It also holds for the "max" loss.

    The bound is the dual function at the multiplier U = I: ||A C^-1||_F ||C||_F is at least the sum of the singular
    values of A. The mean squared column norm of C is at most sens^2 x max(b, n / k) / n, because either b residue
    classes of steps, or patterns of k steps, cover all steps equally often. The singular values of A are
    1 / (2 sin((2 j - 1) pi / (4 n + 2))) for j = 1, ..., n.

    Args:
        steps: number of steps, n.
        allowed: separation b and number of participations k.

    Reference: Henzinger, Upadhyay and Upadhyay 2023, Thm 2; Matousek, Nikolov and Talwar 2020.

    >>> round(prefix_sum_bound(64, ParticipationLimits(64, 1)), 3)
    2.04
    """
    patterns = max(allowed.separation, steps / allowed.count)
    return _nuclear_norm(steps) / math.sqrt(steps * patterns)


def _nuclear_norm(n: int) -> float:
    """Return a lower bound on the sum of the singular values of the prefix sum.

    The largest singular values are summed one by one. 1 / sin decreases on (0, pi / 2), so each of the others is at
    least the integral from its angle to the next angle.
    """
    j = np.arange(1, min(n, SUMMED_TERMS) + 1)
    angles = (2 * j - 1) * (math.pi / (4 * n + 2))
    total = math.fsum(1.0 / np.sin(angles))
    following = (2 * len(j) + 1) * math.pi / (4 * n + 2)
    if n > SUMMED_TERMS:
        total -= (2 * n + 1) / math.pi * math.log(math.tan(following / 2.0))
    return 0.5 * total * (1.0 - 1e-12)
