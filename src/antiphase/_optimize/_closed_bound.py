"""A lower bound on the loss of every strategy for the prefix sum, at any number of steps."""

from __future__ import annotations

import math

import numpy as np

from antiphase._optimize._schema import Schema

SUMMED = 1 << 20


def prefix_sum_bound(steps: int, promise: Schema) -> float:
    """No C has a smaller rms loss for the prefix sum, hence none a smaller max loss.

    The multiplier U = I of the dual: ||A C^-1||_F ||C||_F >= the sum of the singular values of A, and the mean squared
    column norm of C is at most sens^2 x max(b, n / k) / n, since b classes of steps, or patterns of k steps, cover all
    steps alike. The singular values of A are 1 / (2 sin((2 j - 1) pi / (4 n + 2))).

    Args:
        steps: n.
        promise: separation b and count k.

    Reference: Henzinger, Upadhyay and Upadhyay 2023, Thm 2; Matousek, Nikolov and Talwar 2020.

    >>> round(prefix_sum_bound(64, Schema(64, 1)), 3)
    2.04
    """
    patterns = max(promise.separation, steps / promise.count)
    return _nuclear_norm(steps) / math.sqrt(steps * patterns)


def _nuclear_norm(n: int) -> float:
    """A lower bound on the sum of the singular values: the largest one by one, the others as an integral.

    1 / sin falls on (0, pi / 2), so each further term is at least the integral up to the next.
    """
    j = np.arange(1, min(n, SUMMED) + 1)
    angles = (2 * j - 1) * (math.pi / (4 * n + 2))
    total = math.fsum(1.0 / np.sin(angles))
    following = (2 * len(j) + 1) * math.pi / (4 * n + 2)
    if n > SUMMED:
        total -= (2 * n + 1) / math.pi * math.log(math.tan(following / 2.0))
    return 0.5 * total * (1.0 - 1e-12)
