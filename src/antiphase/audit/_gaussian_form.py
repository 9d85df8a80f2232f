"""Lower bounds on the signal-to-noise ratio of a Gaussian mechanism, and on the epsilon that follows from it.

Canaries are artificial examples. The value x_i of canary i is the projection of the release on the canary's
contributions (`Scores.values`). If the noise is Gaussian, x_i = c + r s g_i + s e_i, where the e_i are independent
standard normals. If the canary is present, g_i is its claimed signal, in standard deviations of the claimed noise;
otherwise, g_i is 0. The ratio r is the actual signal-to-noise ratio divided by the claimed one. A correct program has
r <= 1. The offset c and the scale s are unknown. The t statistic of the slope in a linear regression of x_i on g_i has
a noncentral t distribution with noncentrality r sqrt(sum (g_i - mean of g)^2). Inverting this distribution gives an
exact lower confidence limit on r for any c and s.

If r > 1, the noise is only 1 / r times as large as claimed, or contributions are r times too large. If examples are
sampled as claimed, the program is then exactly as private as the claimed mechanism with noise_std / r.

Reference: Nasr et al. 2023 (audits of mu in Gaussian differential privacy); Agrawal et al. 2026, arXiv:2606.12733
(Gaussian scores in one run); Johnson and Welch 1940 (noncentral t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from antiphase._accounting import Mechanism, epsilon
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._measured import MeasuredLowerBound
from antiphase._participation import Deterministic, Poisson
from antiphase.audit._counting import check_confidence
from antiphase.audit._release import Flags
from antiphase.audit._scores import Scores

QUADRATURE = 400
REACH = 13.0  # integrals over a normal variable are cut off at this many standard deviations
LARGEST_EPSILON = 1e5
COARSE_RATE = 1e-3  # for Poisson sampling below this rate, the accountant overstates epsilon by up to 2 %
SMALLEST_NUMBER = 3  # minimum number of canaries, because two parameters are fitted


@dataclass(frozen=True)
class Ratio:
    """The measured signal-to-noise ratio, divided by the claimed one.

    Args:
        estimate: the most likely value.
        lower: lower confidence limit.
        upper: upper confidence limit, at the same confidence.
        p_value: largest probability of an estimate at least this large, if the true ratio is at most 1, as claimed.
    """

    estimate: float
    lower: float
    upper: float
    p_value: float


def signal_ratio(values: Array, signals: Array, present: Flags, confidence: float) -> Ratio:
    """Return confidence limits of the signal-to-noise ratio, each at `confidence`.

    Args:
        values: projection of the release on each canary's contributions.
        signals: claimed mean of each value if its canary is present. Canaries with signal 0 never took part and are
            left out.
        present: for each canary, True if it is present.
        confidence: confidence of each limit.
    """
    _check_canaries(present)
    # The value of a canary that never took part is 0, without noise. Including it would make the noise look small.
    took_part = signals > 0.0
    values, signals, present = values[took_part], signals[took_part], present[took_part]
    g = signals * present
    centred = g - (g.mean() if len(g) else 0.0)
    spread = float(centred @ centred)
    freedom = len(values) - 2
    if spread <= 0.0 or freedom < 1:  # too few canaries took part to measure anything
        return Ratio(0.0, 0.0, math.inf, 1.0)
    slope = float(centred @ values) / spread
    residuals = values - values.mean() - slope * centred
    scale = math.sqrt(max(float(residuals @ residuals) / freedom, 1e-300))
    t, root = slope * math.sqrt(spread) / scale, math.sqrt(spread)
    alpha = 1.0 - confidence
    lower = _noncentrality(t, freedom, alpha) / root
    upper = _noncentrality(t, freedom, 1.0 - alpha) / root
    return Ratio(slope / scale, lower, upper, float(_tail(t, freedom, root)))


def _check_canaries(present: Flags) -> None:
    if len(present) < SMALLEST_NUMBER or present.all() or not present.any():
        raise InvalidArgument(
            "The signal-to-noise ratio needs at least three canaries, some present and some absent.",
            hint="use more canaries",
        )


def gaussian_bound(
    mechanism: Mechanism, found: Scores, delta: float, confidence: float = 0.95
) -> tuple[MeasuredLowerBound, Ratio]:
    """Return a lower bound on epsilon that assumes Gaussian noise, and the signal-to-noise ratio behind it.

    **Guarantee**: assume that the noise along different canaries is independent and Gaussian, and that batches are
    drawn as claimed. Then the bound exceeds the epsilon of the program with probability at most 1 - confidence. For
    deterministic participations, the bound is the epsilon of mu-Gaussian differential privacy, where mu is the largest
    claimed signal of a canary times the lower limit of the returned ratio. For `BallsInBins` and
    `PoissonMinSeparation`, epsilon at the measured noise is estimated from below by sampling, with a margin of four
    standard errors.

    Args:
        mechanism: mechanism that the program claims to run.
        found: scores of the program's canaries.
        delta: delta of the bound.
        confidence: probability with which the bound holds.
    """
    ratio = signal_ratio(found.values, found.signals, found.present, check_confidence("gaussian_bound", confidence))
    value = 0.0 if ratio.lower <= 0.0 else epsilon_at_most(mechanism, ratio.lower, found.signals, delta)
    method = (
        f"noncentral t, signal-to-noise ratio at least {math.floor(1e4 * max(ratio.lower, 0.0)) / 1e4} of the claim"
    )
    return MeasuredLowerBound(value, delta, confidence, method, "Gaussian noise", len(found.values)), ratio


def epsilon_at_most(mechanism: Mechanism, ratio: float, signals: Array, delta: float) -> float:
    """Return a lower bound on the epsilon of the mechanism with noise_std / ratio.

    For deterministic participations, the bound is for the canary with the largest signal. It is then lower than the
    epsilon if the participation allows larger signals.
    """
    from antiphase._accounting import gaussian_epsilon
    from antiphase._montecarlo import epsilon_from_below

    given = mechanism.participation
    if isinstance(given, Deterministic):
        return max(0.0, min(gaussian_epsilon(ratio * float(signals.max()), delta) * (1.0 - 1e-9), LARGEST_EPSILON))
    changed = replace(mechanism, noise_std=mechanism.noise_std / ratio)
    if mechanism.reduction.theorem.amplified:
        return epsilon_from_below(changed.strategy, given, changed.noise_std, delta)
    slack = 1e-4 if getattr(given, "rate", 1.0) >= COARSE_RATE or not isinstance(given, Poisson) else 0.02
    return max(0.0, epsilon(changed, delta).value * (1.0 - slack) - 1e-6)


def _noncentrality(t: float, freedom: int, tail: float) -> float:
    """Return the noncentrality at which the t statistic is at least `t` with probability `tail`."""
    low, high = -40.0 - 10.0 * abs(t), 40.0 + 10.0 * abs(t)
    for _ in range(64):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _tail(t, freedom, middle) < tail else (low, middle)
    return low


def _tail(t: float, freedom: int, noncentrality: float) -> float:
    """Return the probability that (z + noncentrality) / chi is at least `t`.

    Here z is standard normal, and chi has a chi distribution with `freedom` degrees, scaled to mean square 1.

    One of z and t chi is integrated by Gauss-Legendre quadrature, and the distribution function of the other one is
    known. The variable with the narrower distribution is integrated, so that the integrand is smooth. The relative
    error is below 1e-6 down to probabilities of 1e-12.
    """
    from scipy.special import gammainc, gammaln, ndtr

    if t < 0.0 and abs(t) >= math.sqrt(2.0 * freedom):
        return 1.0 - _tail(-t, freedom, -noncentrality)
    if t >= math.sqrt(2.0 * freedom):  # given z, chi must be at most (z + noncentrality) / t
        z, weights = _nodes(max(-noncentrality, -REACH), REACH)
        known = gammainc(freedom / 2.0, freedom * ((z + noncentrality) / t) ** 2 / 2.0)
        logs = -(z**2) / 2.0 - math.log(2.0 * math.pi) / 2.0
    else:  # given chi, z must be at least t chi - noncentrality
        width = REACH / math.sqrt(freedom)
        x, weights = _nodes(max(0.0, 1.0 - width), 1.0 + width)
        known = ndtr(noncentrality - t * x)
        half = freedom / 2.0
        logs = (freedom - 1) * np.log(x) - half * x**2 + half * math.log(half) + math.log(2.0) - gammaln(half)
    return float(min(1.0, (weights * np.exp(logs) * known).sum()))


def _nodes(low: float, high: float) -> tuple[Array, Array]:
    """Return quadrature nodes and weights for an interval. The weights are 0 if the interval is empty."""
    points, weights = _legendre()
    half = max(0.0, high - low) / 2.0
    return low + half * (1.0 + points), half * weights


@cache
def _legendre() -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(QUADRATURE)
