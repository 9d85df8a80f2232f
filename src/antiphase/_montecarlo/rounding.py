"""Rounding errors of a sampled bound: where they arise, and the room that is left for them.

A certified delta must not fall below the truth because numbers have 53 bits. Each source of error is bounded here and
added to the limit; nothing is left to "about ten digits".

**The Gram matrix** of the modes, its decomposition and the eigenvalues dropped there. delta is the mean of a convex
function F of L = sum_i u_i, and increases with every entry of the Gram matrix K over the noise, since d delta =
sum_ij E[F''(L) u_i u_j] dK_ij / 2 (`slopes.py`), F'' >= 0 and u >= 0. So it is enough that the modes which are sampled
have a Gram matrix that is nowhere smaller than the true one. `Split.outward` adds to the common part what is missing in
the worst entry, and GRAM of the largest. For random min-separation columns are non-negative, and the noise is taken
smaller by that share.

**The sample.** shift and ratio of `estimator.py` are sums of products. With u = 2^-53 and at most k terms of total size
S, a sum is off by at most 2 k u S. `loss_error` bounds the error of the shift; D decreases with it, so the weights are
computed for epsilon - loss_error. `ratio_error` bounds that of the ratio, of the factor in c and of all exponentials:
it multiplies the limit by exp(ratio_error). Normal numbers of the generator are below LARGEST_NORMAL.

**D itself**, by `gaussian.divergence_error`, and for what underflows UNDERFLOW of the largest weight.

**Drawing.** Uniform numbers have 53 bits, and cumulated probabilities are rounded: `bias` bounds the total variation
between the law that is drawn from and the one that the weights are for. A weight is at most c, so the limit grows by
bias x c at most.

**The limit.** The sum over the samples in `betting.upper_limit` is off by at most 2 log2(N) u times the sum of its
absolute terms.

What remains assumed: the generator's numbers are independent, uniform and normal; exp, log, erfcx and ndtr of the
libraries are right to a few units in the last place (tests compare with 60 digits).
"""

from __future__ import annotations

import math

UNIT = 2.0**-53
GRAM = 1e-10  # relative to the largest entry; sums of a million non-negative terms, or a transform, are this accurate
LARGEST_NORMAL = 14.0  # the generator's method for tails ends at 12.3
UNDERFLOW = 1e-300


def modes_error(bins: int, largest: float, power: float) -> float:
    """Bound the error of the log-likelihood ratios of the modes, at a sum of `power` modes plus noise.

    Products of b terms with rows of length sqrt(K_ii), noise of length 14 sqrt(b) at most, and `power` entries of K.
    """
    size = 1.0 + power * largest + LARGEST_NORMAL * math.sqrt(bins * largest)
    return 8.0 * UNIT * (bins + power + 8.0) * size


def patterns_error(steps: int, bands: int, separation: int, largest: float, moderate: float) -> float:
    """Bound the error of the log of a mean over patterns: n recursion steps with exponents of at most `largest`.

    Beyond `moderate` the recursion runs on logarithms, which are as large as the exponents of a whole pattern.
    """
    size = 1.0 + largest
    logs = (steps / separation + 1.0) * largest if largest > moderate else 0.0
    return 8.0 * UNIT * steps * ((bands + 8.0) * size + logs)
