"""Tests whether released noise has the distribution that the guarantee assumes.

The test uses directions in the space of gradients along which the gradient of every example is zero. The released sums
y along these directions contain only noise. The test whitens them: E = W y / noise_std, where the matrix W makes the
noise white (see `whiten` in `_canary.py`; W = C if C is square). E has one row for each step and one column for each
direction. If the noise is as claimed, the entries of E are independent standard normals, and each part of the test has
a known distribution:

| part | statistic and its distribution | detects |
|---|---|---|
| scale | sum of all squares; chi-squared | noise too small or too large |
| steps | sum of squares of each row; chi-squared | noise missing in some steps |
| lags | sum of E_t E_{t+k} for each k up to 16; normal | wrong order, C transposed, noise that is not correlated |
| pairs of steps | largest correlation of two rows; beta | noise used twice |
| directions | largest correlation of two columns; beta | the same noise in two processes or two arrays of the model |
| covariance | likelihood ratio for the covariance of the rows; chi-squared | wrong covariances (for few steps) |
| shape | largest distance from the normal distribution function; Kolmogorov | noise that is not normal |

Parts that test several rows, lags or pairs use Bonferroni's correction. The covariance part needs at least eight times
as many directions as steps. With fewer directions, its p-value is 1.

The distributions for lags, covariance and shape are limits for many values. All others are exact.

Reference: Kolmogorov 1933; Anderson 2003, section 10.8 (likelihood ratio, with Bartlett's correction).
"""

from __future__ import annotations

import math

import numpy as np

from antiphase import _check
from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._measured import StatisticalTest
from antiphase.audit._canary import whiten

PARTS = 7
MOST_LAGS = 16
MOST_PAIRED = 256
MOST_SORTED = 200_000
SMALLEST_NOISE = 1e-300


def noise_test(mechanism: Mechanism, noise: Array, level: float = 0.01, *, seed: int = 0) -> StatisticalTest:
    """Test whether released noise is the noise of a mechanism.

    **Guarantee**: if the noise is as claimed, the test raises an alarm with probability at most `level`. `noise_power`
    estimates how often the test detects noise with a different distribution.

    Args:
        mechanism: claimed mechanism.
        noise: released sums along directions in which no example contributes, in units of the clipping norm, shape
            (steps, directions).
        level: largest probability of a false alarm.
        seed: seed of the random choice of rows, columns and values to test, if there are too many to test all of them.

    >>> import antiphase as ap
    >>> mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 8), ap.SingleParticipation(), noise_std=2.0)
    >>> z = np.random.default_rng(1).normal(0.0, 2.0, (8, 1000))
    >>> noise = mechanism.strategy.solve(z)
    >>> noise_test(mechanism, noise).departs, noise_test(mechanism, 0.95 * noise).departures
    (False, ('scale', 'steps', 'covariance'))
    """
    level = _check.real("noise_test", "level", level, 1e-12, 0.5, "use a value such as 0.01")
    noise = np.asarray(noise, dtype=np.float64)
    if noise.ndim != 2 or noise.shape[0] != mechanism.strategy.steps or noise.shape[1] < 2:
        raise InvalidArgument(
            f"noise_test needs noise of {mechanism.strategy.steps} steps along two or more directions. Got shape "
            f"{noise.shape}.",
            hint="pass one row for each step",
        )
    E = whiten(mechanism.strategy, noise) / mechanism.noise_std
    if not np.isfinite(E).all():
        raise InvalidArgument(
            "The noise passed to noise_test contains NaN or infinity.", hint="check what was released"
        )
    rng = np.random.default_rng(seed)
    parts = (
        ("scale", _two_sided(float((E**2).sum()), E.size)),
        ("steps", _steps(E)),
        ("lags", _lags(E)),
        ("pairs of steps", _correlations(E, rng)),
        ("directions", _correlations(E.T, rng)),
        ("shape", _shape(E.ravel(), rng)),
        ("covariance", _covariance(E)),
    )
    return StatisticalTest("noise", parts, level, E.size, math.sqrt(float((E**2).mean())))


def scale_power(values: int, scale: float, level: float = 0.01) -> float:
    """Return the probability that `noise_test` detects a standard deviation of `scale` times the claimed one.

    Only the part "scale" of the test is counted. Its distribution is exact.

    Args:
        values: number of values tested, which is steps x directions.
        scale: actual standard deviation divided by the claimed one.
        level: level of the test.

    >>> round(scale_power(8000, 0.95), 3), round(scale_power(2000, 0.95), 2)
    (1.0, 0.5)
    """
    from scipy.stats import chi2

    low, high = chi2.ppf(level / PARTS / 2.0, values), chi2.isf(level / PARTS / 2.0, values)
    return float(chi2.cdf(low / scale**2, values) + chi2.sf(high / scale**2, values))


def noise_power(
    mechanism: Mechanism,
    actual: Array,
    directions: int,
    level: float = 0.01,
    *,
    repetitions: int = 200,
    seed: int = 0,
) -> float:
    """Estimate, by simulation, how often `noise_test` raises an alarm if the noise is `actual` @ z.

    Args:
        mechanism: claimed mechanism.
        actual: matrix, shape (steps, rows), that maps standard normals to the noise that is released.
        directions: number of directions tested.
        level: level of the test.
        repetitions: number of simulated tests.
        seed: seed of the simulation.
    """
    rng = np.random.default_rng(seed)
    seen = sum(
        noise_test(mechanism, actual @ rng.standard_normal((actual.shape[1], directions)), level).departs
        for _ in range(repetitions)
    )
    return seen / repetitions


def _two_sided(total: float | Array, freedom: float) -> float:
    """Return the smallest two-sided p-value of chi-squared sums, with Bonferroni's correction if there are several."""
    from scipy.special import chdtr, chdtrc

    found = np.atleast_1d(np.asarray(total, dtype=np.float64))
    p = 2.0 * np.minimum(chdtr(freedom, found), chdtrc(freedom, found))
    return float(min(1.0, p.min() * len(found)))


def _steps(E: Array) -> float:
    return _two_sided((E**2).sum(axis=1), E.shape[1])


def _lags(E: Array) -> float:
    from scipy.special import ndtr

    rows = len(E)
    worst, count = 0.0, min(MOST_LAGS, rows - 1)
    for k in range(1, count + 1):
        total = float(np.einsum("tc,tc->", E[:-k], E[k:]))
        worst = max(worst, abs(total) / math.sqrt((rows - k) * E.shape[1]))
    return float(min(1.0, 2.0 * max(count, 1) * ndtr(-worst)))


def _correlations(E: Array, rng: np.random.Generator) -> float:
    """Return the p-value of the largest correlation of two rows, if all entries are independent standard normals."""
    from scipy.special import betainc

    rows = E if len(E) <= MOST_PAIRED else E[np.sort(rng.choice(len(E), MOST_PAIRED, replace=False))]
    count, size = rows.shape
    if count < 2 or size < 2:
        return 1.0
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST_NOISE)
    unit = rows / lengths
    products = np.abs(unit @ unit.T)
    np.fill_diagonal(products, 0.0)
    square = min(1.0, float(products.max()) ** 2)
    # For one pair, the square of the correlation has the distribution Beta(1/2, (size - 1) / 2).
    p = float(betainc((size - 1) / 2.0, 0.5, 1.0 - square))
    return min(1.0, p * count * (count - 1) / 2.0)


def _covariance(E: Array) -> float:
    """Return the p-value of the likelihood-ratio test that the rows of E have covariance I."""
    from scipy.special import chdtrc

    n, directions = E.shape
    if directions < 8 * n:
        return 1.0
    S = E @ E.T / directions
    sign, log_determinant = np.linalg.slogdet(S)
    if sign <= 0.0:
        return 0.0
    statistic = directions * (float(np.trace(S)) - log_determinant - n)
    correction = 1.0 - (2.0 * n + 1.0 - 2.0 / (n + 1.0)) / (6.0 * directions)
    return float(chdtrc(n * (n + 1) / 2.0, max(statistic * correction, 0.0)))


def _shape(values: Array, rng: np.random.Generator) -> float:
    from scipy.special import kolmogorov, ndtr

    if len(values) > MOST_SORTED:
        values = rng.choice(values, MOST_SORTED, replace=False)
    n, u = len(values), ndtr(np.sort(values))
    above = float((np.arange(1, n + 1) / n - u).max())
    below = float((u - np.arange(n) / n).max())
    return float(min(1.0, kolmogorov(math.sqrt(n) * max(above, below, 0.0))))
