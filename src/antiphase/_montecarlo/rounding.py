"""Bounds on the floating-point errors in confidence limits on delta.

A certified delta must not fall below the true value because of floating-point rounding. The confidence limit on delta
is the mean weight of random samples, plus a statistical margin (`estimator.py`, `betting.py`). Each section below
bounds one source of error and states how the limit is raised to cover it.

**Gram matrix.** In balls-in-bins, a bin is a step of the epoch. Its mode is the sum of the columns of |C| at this step
of every epoch. Let K be the Gram matrix of the modes, divided by the noise variance. K and its decomposition are
rounded, and small eigenvalues are dropped. Delta is the mean of a convex function F of the likelihood ratio
L = sum_i u_i, where each bin i has a term u_i >= 0. Delta increases with every entry of K, because
d(delta) = sum_ij E[F''(L) u_i u_j] dK_ij / 2 (`slopes.py` defines u_i and F) and F'' >= 0. It is therefore enough that
no entry of the matrix used for sampling is below its true value. `Split.outward` adds the same number to all entries:
the largest amount by which the decomposition lowered an entry, plus GRAM times the largest entry. For
`PoissonMinSeparation`, the columns of |C| are non-negative, so it is enough to multiply the standard deviation of the
noise by 1 - GRAM, which increases all inner products of the columns divided by it.

**Samples.** The weight of a sample is exp(ratio) D(epsilon + shift), where D is the hockey-stick divergence of a
Gaussian mechanism, and every weight is at most c (`estimator.py`). The shift and the ratio are sums of products. A sum
of at most k terms whose absolute values add up to S has an error of at most 2 * k * UNIT * S. `loss_error` bounds the
error of the shift. D is a decreasing function, so the weights are computed for epsilon - loss_error. `ratio_error`
bounds the errors of the ratio, of the factor exp(log_factor) in c, and of all exponentials. The limit is multiplied by
exp(ratio_error). Normal numbers from the generator are below LARGEST_NORMAL in absolute value.

**Divergence.** `gaussian.divergence_error` bounds the error of log D, and the limit is multiplied by the exponential of
this bound. To cover underflow, the limit is increased by UNDERFLOW x c.

**Drawing.** Uniform numbers have 53 bits, and cumulative probabilities are rounded. `bias` bounds the total variation
distance between the distribution of the samples and the distribution that the weights assume. A weight is at most c, so
the limit is increased by bias x c.

**Limit.** The sum over N samples in `betting.upper_limit` has an error of at most 2 * log2(N) * UNIT times the sum of
the absolute values of its terms.

Remaining assumptions: the numbers from the random generator are independent and uniform or normal, and exp, log, erfcx
and ndtr are accurate to a few units in the last place (tests compare them with 60 digits).
"""

from __future__ import annotations

import math

UNIT = 2.0**-53
GRAM = 1e-10  # error of a Gram matrix entry / largest entry; covers sums of a million terms, and FFTs
LARGEST_NORMAL = 14.0  # the generator's normal numbers are never above 12.3 in absolute value
UNDERFLOW = 1e-300  # added to weights / c and to bounds that may have underflowed


def modes_error(bins: int, largest: float, power: float) -> float:
    """Return a bound on the rounding error of the log-likelihood ratios of the modes.

    Let K be the Gram matrix of the modes m_i, which are divided by noise_std here. The log-likelihood ratio of mode i
    at x is <m_i, x> - K_ii / 2. Here x is the sum of `power` modes plus noise, so <m_i, x> is the sum of two parts. The
    first is an inner product of b terms, between a vector of norm sqrt(K_ii) and noise of norm at most 14 sqrt(b). The
    second is the sum of `power` entries of K.

    Args:
        bins: number of bins, b.
        largest: largest diagonal entry of K.
        power: number of modes in the sum x.
    """
    size = 1.0 + power * largest + LARGEST_NORMAL * math.sqrt(bins * largest)
    return 8.0 * UNIT * (bins + power + 8.0) * size


def patterns_error(steps: int, bands: int, separation: int, largest: float, moderate: float) -> float:
    """Return a bound on the rounding error of the log of a mean of exponentials over all participation patterns.

    The mean is computed by one recursion step for each step of the run. If `largest` exceeds `moderate`, the recursion
    runs on logarithms, which are as large as the sum of the exponents of all steps of a pattern.

    Args:
        steps: number of steps.
        bands: number of bands of C.
        separation: minimum separation.
        largest: upper bound on the absolute value of the exponent of one step.
        moderate: largest exponent for which the recursion runs without logarithms.
    """
    size = 1.0 + largest
    logs = (steps / separation + 1.0) * largest if largest > moderate else 0.0
    return 8.0 * UNIT * steps * ((bands + 8.0) * size + logs)
