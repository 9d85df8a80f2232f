"""Bounds on the rounding errors of sampled bounds.

A certified delta must not fall below the true value because of floating-point rounding. Each source of error is bounded
here, and the bound is added to the confidence limit.

**Gram matrix.** The Gram matrix of the modes and its decomposition are rounded, and small eigenvalues are dropped.
Delta is the mean of a convex function F of L = sum_i u_i. It increases with every entry of the Gram matrix K (divided
by the noise variance), because d delta = sum_ij E[F''(L) u_i u_j] dK_ij / 2 (`slopes.py`), F'' >= 0 and u >= 0. It is
therefore enough that no entry of the Gram matrix of the sampled modes is below the true one. `Split.outward` adds the
largest deficit of any entry to the common part, plus GRAM times the largest entry. For `PoissonMinSeparation` the
columns are non-negative, and the noise is reduced by the factor 1 - GRAM.

**Samples.** The shift and the ratio of `estimator.py` are sums of products. With u = 2^-53, a sum of at most k terms
whose absolute values add up to S has an error of at most 2 k u S. `loss_error` bounds the error of the shift. D
decreases with the shift, so the weights are computed for epsilon - loss_error. `ratio_error` bounds the errors of the
ratio, of the factor in c and of all exponentials. The limit is multiplied by exp(ratio_error). Normal numbers from the
generator are below LARGEST_NORMAL.

**Divergence.** `gaussian.divergence_error` bounds the error of D. To cover underflow, the limit is increased by
UNDERFLOW times the largest weight.

**Drawing.** Uniform numbers have 53 bits, and cumulative probabilities are rounded. `bias` bounds the total variation
distance between the distribution that is drawn from and the one that the weights assume. A weight is at most c, so the
limit grows by at most bias x c.

**Limit.** The sum over N samples in `betting.upper_limit` has an error of at most 2 log2(N) u times the sum of the
absolute values of its terms.

Remaining assumptions: the numbers from the random generator are independent and uniform or normal, and exp, log, erfcx
and ndtr are accurate to a few units in the last place (tests compare them with 60 digits).
"""

from __future__ import annotations

import math

UNIT = 2.0**-53
GRAM = 1e-10  # error bound for entries of a Gram matrix, relative to the largest: sums of a million terms, or an FFT
LARGEST_NORMAL = 14.0  # the generator never returns more than 12.3
UNDERFLOW = 1e-300


def modes_error(bins: int, largest: float, power: float) -> float:
    """Return a bound on the rounding error of the log-likelihood ratios of the modes.

    They are evaluated at a sum of `power` modes plus noise. Each is an inner product of b terms, between a row of norm
    sqrt(K_ii) and noise of norm at most 14 sqrt(b), plus `power` entries of K.

    Args:
        bins: number of bins, b.
        largest: largest K_ii.
        power: number of modes in the sum.
    """
    size = 1.0 + power * largest + LARGEST_NORMAL * math.sqrt(bins * largest)
    return 8.0 * UNIT * (bins + power + 8.0) * size


def patterns_error(steps: int, bands: int, separation: int, largest: float, moderate: float) -> float:
    """Return a bound on the rounding error of the log of a mean over patterns.

    The mean is computed by one recursion step for each step of the run. If `largest` exceeds `moderate`, the recursion
    runs on logarithms, which are as large as the sum of the exponents of a whole pattern.

    Args:
        steps: number of steps.
        bands: number of bands of C.
        separation: minimum separation.
        largest: upper bound on the absolute value of an exponent.
        moderate: largest exponent for which the recursion runs without logarithms.
    """
    size = 1.0 + largest
    logs = (steps / separation + 1.0) * largest if largest > moderate else 0.0
    return 8.0 * UNIT * steps * ((bands + 8.0) * size + logs)
