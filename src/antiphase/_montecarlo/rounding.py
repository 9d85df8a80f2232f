"""Rounding errors of a sampled bound: where they arise, and the margins that cover them.

A certified delta must not fall below the true value because of floating-point rounding. Each source of error is bounded
here and the bound is added to the limit.

**The Gram matrix** of the modes, its decomposition, and the eigenvalues dropped there. delta is the mean of a convex
function F of L = sum_i u_i. It increases with every entry of the Gram matrix K (divided by the noise variance), because
d delta = sum_ij E[F''(L) u_i u_j] dK_ij / 2 (`slopes.py`), F'' >= 0 and u >= 0. So it is enough that the Gram matrix of
the sampled modes is nowhere smaller than the true one. `Split.outward` adds the deficit of the worst entry to the
common part, plus GRAM times the largest entry. For random min-separation the columns are non-negative, and the noise is
reduced by the factor 1 - GRAM.

**The sample.** The shift and ratio of `estimator.py` are sums of products. With u = 2^-53, a sum of at most k terms of
total size S has an error of at most 2 k u S. `loss_error` bounds the error of the shift; D decreases with the shift, so
the weights are computed for epsilon - loss_error. `ratio_error` bounds the errors of the ratio, of the factor in c and
of all exponentials; the limit is multiplied by exp(ratio_error). Normal numbers of the generator are below
LARGEST_NORMAL.

**D itself.** `gaussian.divergence_error` bounds its error; to cover underflow, the limit is increased by UNDERFLOW
times the largest weight.

**Drawing.** Uniform numbers have 53 bits, and cumulative probabilities are rounded. `bias` bounds the total variation
distance between the distribution that is drawn from and the one that the weights assume. A weight is at most c, so the
limit grows by at most bias x c.

**The limit.** The sum over the samples in `betting.upper_limit` has an error of at most 2 log2(N) u times the sum of
the absolute values of its terms.

Remaining assumptions: the random numbers of the generator are independent and uniform or normal; exp, log, erfcx and
ndtr of the libraries are accurate to a few units in the last place (tests compare with 60 digits).
"""

from __future__ import annotations

import math

UNIT = 2.0**-53
GRAM = 1e-10  # relative to the largest entry; accuracy of a sum of a million non-negative terms, or of a transform
LARGEST_NORMAL = 14.0  # the generator never returns more than 12.3
UNDERFLOW = 1e-300


def modes_error(bins: int, largest: float, power: float) -> float:
    """Bound the error of the log-likelihood ratios of the modes, at a sum of `power` modes plus noise.

    They are inner products of b terms, between rows of norm sqrt(K_ii) and noise of norm at most 14 sqrt(b), plus
    `power` entries of K.
    """
    size = 1.0 + power * largest + LARGEST_NORMAL * math.sqrt(bins * largest)
    return 8.0 * UNIT * (bins + power + 8.0) * size


def patterns_error(steps: int, bands: int, separation: int, largest: float, moderate: float) -> float:
    """Bound the error of the log of a mean over patterns: n recursion steps with exponents of at most `largest`.

    If `largest` exceeds `moderate`, the recursion runs on logarithms, which are as large as the exponents of a whole
    pattern.
    """
    size = 1.0 + largest
    logs = (steps / separation + 1.0) * largest if largest > moderate else 0.0
    return 8.0 * UNIT * steps * ((bands + 8.0) * size + logs)
