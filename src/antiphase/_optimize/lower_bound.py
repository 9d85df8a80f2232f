"""A lower bound on the loss of every strategy for the prefix-sum workload, computed fast for any number of steps."""

from __future__ import annotations

import math

import numpy as np

from antiphase._optimize.participation_limits import ParticipationLimits

SUMMED_TERMS = 1 << 20  # singular values summed one by one; an integral bounds the sum of the smaller ones


def prefix_sum_bound(steps: int, allowed: ParticipationLimits) -> float:
    """Return a lower bound on the "rms" loss of every strategy C for prefix sums. It also holds for the "max" loss.

    The bound combines three facts about the prefix-sum matrix A. First, ||A C^-1||_F ||C||_F is at least the sum of the
    singular values of A. (This is the dual function of `dense.dual` at the multiplier U = I.) Second, the mean squared
    column norm of C is at most sensitivity^2 x max(b, n / k) / n. To see this, note that the squared norms of the
    columns in one participation pattern add up to at most sensitivity^2. Then average over patterns that contain every
    step equally often: the b residue classes modulo b if each has at most k steps, otherwise patterns of k steps.
    Third, for j = 1, ..., n, the singular values of A are 1 / (2 sin((2 j - 1) pi / (4 n + 2))).

    Args:
        steps: number of steps, n.
        allowed: the separation, b, and the largest number of participations, k.

    Reference: Henzinger, Upadhyay and Upadhyay 2023, Thm 2; Matousek, Nikolov and Talwar 2020.

    >>> round(prefix_sum_bound(64, ParticipationLimits(64, 1)), 3)
    2.04
    """
    patterns = max(allowed.separation, steps / allowed.count)
    return _nuclear_norm(steps) / math.sqrt(steps * patterns)


def _nuclear_norm(n: int) -> float:
    """Return a lower bound on the sum of the singular values of the n x n prefix-sum matrix.

    The largest singular values are summed one by one. An integral bounds the sum of all other singular values. The
    function 1 / sin decreases on (0, pi / 2). So each term 1 / sin(angle) is at least the mean of 1 / sin between this
    angle and the angle of the next term.
    """
    j = np.arange(1, min(n, SUMMED_TERMS) + 1)
    angles = (2 * j - 1) * (math.pi / (4 * n + 2))
    total = math.fsum(1.0 / np.sin(angles))
    following = (2 * len(j) + 1) * math.pi / (4 * n + 2)
    if n > SUMMED_TERMS:
        total -= (2 * n + 1) / math.pi * math.log(math.tan(following / 2.0))
    return 0.5 * total * (1.0 - 1e-12)
