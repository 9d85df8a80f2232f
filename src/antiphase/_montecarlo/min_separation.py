"""The dominating pair (see `pair.py`) of `PoissonMinSeparation` with a banded C.

A pattern is the set of steps in which one example participates. These steps are at least `separation` apart. If C has
at most `separation` bands, the columns of C at the steps of a pattern are never non-zero in the same row. The
likelihood ratio of a pattern is then a product over its steps. A recursion over the steps computes the mean of these
likelihood ratios over all patterns (`_kernels.separation`).

Below, y is the output divided by noise_std, p is a random pattern with distribution pi, and m_p is the sum of the
columns of |C| at the steps of p, divided by noise_std. The likelihood ratio L is the mean of
exp(<m_p, y> - |m_p|^2 / 2) over pi, and Y = log L. Samples of y have weights, and delta is the mean weight
(`estimator.py`).

**Removal.** For s >= 1, draw p with probability pi(p) exp((s - 1) |m_p|^2 / 2) / A, where A is the normalizing
constant, and then draw y ~ N(s m_p, I). Let R be the density of y relative to N(0, I). It is the mean of
exp(s <m_p, y> - (s^2 - s + 1) |m_p|^2 / 2) over pi, divided by A. The same recursion computes R. Hoelder's inequality
with exponents s and s / (s - 1) gives L <= A R^(1/s), so the weight (L - e^eps)_+ / R is at most
A^s L^-s (L - e^eps)_+. With s = 1, y has the distribution that the output has with the example, a mixture over all
patterns.

**Addition.** For s >= 0 and any distribution q of patterns, draw y ~ N(-s m, I), where m is the mean of m_p over q. The
weight is (1 - e^eps L)_+ times exp(s <m, y> + s^2 |m|^2 / 2). The weight is bounded, because it is positive only if
Y < -eps, and because Jensen's inequality gives <m, y> <= Y + (mean of |m_p|^2 / 2 over q) + KL(q || pi). With s = 0,
samples are unshifted noise.

For removal and for addition, the bound on the weights is close to the delta against an adversary who knows the
pattern. If sampling amplifies privacy a lot, this bound is far above the true delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._montecarlo.estimator import Draws, Estimator, best_slope, ceiling, log_bound
from antiphase._montecarlo.gaussian import MARGIN, upper_divergence
from antiphase._montecarlo.pair import Pair, Upper
from antiphase._montecarlo.patterns import Law, count_probabilities
from antiphase._montecarlo.pilot import Effort, Pilot, best, run_pilot
from antiphase._montecarlo.rounding import GRAM, LARGEST_NORMAL, UNIT, patterns_error
from antiphase._participation import PoissonMinSeparation
from antiphase.strategies import Strategy

_GAUSSIAN = "Balle and Wang 2018, Thm. 8"
_PAIR = "Choquette-Choo et al. 2025 (near-exact amplification), Lemma C.1"


@dataclass(frozen=True)
class SeparatedPair(Pair):
    """The pair (P, Q). P is the mixture of N(|C| p, noise_std^2 I) over random patterns p. Q is N(0, noise_std^2 I).

    Here a pattern p is a vector with one entry per step: 1 if the example takes part in the step, and 0 otherwise.

    Args:
        columns: entries of |C|, shape (steps, bands): columns[t, r] = |C[t + r, t]|.
        participation: the participation. Its separation, rate and warm_start define the distribution of patterns.
        noise_std: standard deviation of the noise.
        sensitivity: sens(C) at the worst pattern, for the bound without amplification.
        counts: probabilities of 0, 1, ... participations, from `count_probabilities`.
    """

    columns: Array
    participation: PoissonMinSeparation
    noise_std: float
    sensitivity: float
    counts: Array
    _is_outward: bool = False

    tight = False
    pilot = 1 << 14
    reference = _PAIR

    @property
    def samples(self) -> int:  # type: ignore[override]
        """Default number of samples; the time per sample is proportional to the number of steps."""
        return max(1 << 16, round((1 << 22) * min(1.0, 400.0 / len(self.columns))))

    @cached_property
    def scaled(self) -> Array:
        """The columns divided by noise_std."""
        return self.columns / self.noise_std

    @cached_property
    def squares(self) -> Array:
        """Squared norms of the scaled columns."""
        return np.einsum("tr,tr->t", self.scaled, self.scaled)

    def at(self, noise_std: float) -> SeparatedPair:
        """Return the pair with a different noise level."""
        return replace(self, noise_std=noise_std, _is_outward=False)

    @cached_property
    def outward(self) -> SeparatedPair:
        """The pair with slightly less noise, so that rounding leaves no inner product of `scaled` columns too small."""
        return self if self._is_outward else replace(self, noise_std=self.noise_std * (1.0 - GRAM), _is_outward=True)

    def upper(self, epsilon: float, *, fine: bool = True) -> Upper:
        """Return the smallest of three proved bounds on delta."""
        bound = min(1.0, max(ceiling(e, epsilon) for e in self.outward.estimators(epsilon)))
        found = [
            Upper(self._unamplified(epsilon), "without amplification", _GAUSSIAN),
            Upper(self._known(epsilon), "mean over the numbers of participations", f"{_PAIR}; {_GAUSSIAN}"),
            Upper(bound, "largest possible weight of a sample", _PAIR),
        ]
        return min(found, key=lambda upper: upper.value)

    def least(self, epsilon: float, samples: int, log_inverse: float) -> float:
        """Return the smallest possible confidence limit, c * log_inverse / samples, where c bounds the weights.

        `log_inverse` is log(1 / failure probability).
        """
        bound = max(log_bound(e, epsilon) for e in self.estimators(epsilon))
        return math.exp(min(0.0, bound)) * log_inverse / samples

    def plain(self) -> tuple[Estimator, Estimator]:
        """Return estimators that sample P (for removal) and Q (for addition) directly."""
        return Joined(self, 0.0), Absent(self, 0.0, Law(self.participation, np.zeros(len(self.columns))))

    def estimators(self, epsilon: float) -> tuple[Estimator, Estimator]:
        """Return the `Joined` (removal) and `Absent` (addition) estimators with the smallest bounds on the weights."""
        joined = best_slope(lambda slope: log_bound(Joined(self, slope), epsilon))
        absent = best_slope(lambda slope: log_bound(best_absent(self, slope), epsilon))
        return Joined(self, joined), best_absent(self, absent)

    def pilots(self, epsilon: float, effort: Effort) -> tuple[Pilot, Pilot]:
        """Return the best pilot runs for removal and addition.

        For removal, also try a larger slope, whose weights often have a smaller variance.
        """
        removal, addition = self.estimators(epsilon)
        joined = [removal, Joined(self, 1.5 * removal.slope)]
        return (
            best([run_pilot(e, epsilon, self.pilot, effort) for e in joined], effort),
            run_pilot(addition, epsilon, self.pilot, effort),
        )

    def error(self, scale: float, farthest: float) -> float:
        """Return a bound on the rounding error of each number that `log_means` returns.

        Args:
            scale: factor of <m_p, y> in the exponent.
            farthest: upper bound on |y_t|, the entries of a sample y.
        """
        from antiphase._kernels import LINEAR_EXPONENTS, SMALLEST_SHARED_SCALE

        steps, bands = self.columns.shape
        largest = scale * farthest * float(self.scaled.sum(axis=1).max()) + (scale**2 + 1.0) * float(self.squares.max())
        given = self.participation
        connected = given.separation == 1 or (1.0 - given.rate) ** given.separation > SMALLEST_SHARED_SCALE
        moderate = LINEAR_EXPONENTS if connected else 0.0
        return patterns_error(steps, bands, given.separation, largest, moderate)

    def _unamplified(self, epsilon: float) -> float:
        """Return delta of the Gaussian mechanism at the worst pattern, without amplification."""
        return float(upper_divergence(epsilon, (self.sensitivity / self.noise_std) ** 2)) * (1.0 + 1e-9)

    def _known(self, epsilon: float) -> float:
        """Return a mean of Gaussian divergences over the random number of participations, k.

        For each k, the squared distance of the Gaussians is k times the largest squared norm of a scaled column. The
        mean bounds delta for two reasons. The divergence of a mixture is at most the mean divergence of its components,
        and the sum of k columns without common rows has at most k times the largest squared norm. The last entry of
        `self.counts` also counts all larger k (see `count_probabilities`), so it is combined with the divergence at the
        largest possible k.
        """
        counts = np.append(np.arange(len(self.counts) - 1), -(-len(self.columns) // self.participation.separation))
        parts = upper_divergence(epsilon, counts * self.squares.max())
        return float(self.counts @ parts) * (1.0 + 1e-9)


@dataclass(frozen=True)
class Joined(Estimator):
    """Estimator of delta for the mixture against the noise alone (removal).

    Args:
        pair: the dominating pair.
        slope: s - 1, with s >= 1 as in the module docstring; with 0, samples come from the mixture itself.
    """

    pair: SeparatedPair
    slope: float

    rho = 0.0

    @cached_property
    def law(self) -> Law:
        """Distribution from which patterns are drawn, pi(p) exp((s - 1) |m_p|^2 / 2) / A."""
        return Law(self.pair.participation, self.slope * self.pair.squares / 2.0)

    @cached_property
    def log_factor(self) -> float:  # type: ignore[override]
        """s log A, the logarithm of the factor A^s in the bound on the weights."""
        return (1.0 + self.slope) * self.law.log_mean + MARGIN

    @cached_property
    def loss_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of the loss Y.

        The columns of a pattern share no row, so each |y_t| is at most s times one entry of a column plus the noise.
        """
        s = 1.0 + self.slope
        return self.pair.error(s, LARGEST_NORMAL + s * float(self.pair.scaled.max()))

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of two log means over patterns and of s log A."""
        return (4.0 + self.slope) * self.loss_error

    @property
    def bias(self) -> float:  # type: ignore[override]
        """Bound on how much rounding of the sum `law.reach` changes the samples, in total variation distance."""
        return 8.0 * UNIT * (self.width + self.pair.participation.separation) * (float(self.law.reach[-1]) + 40.0)

    @property
    def width(self) -> int:
        """Number of steps, n."""
        return len(self.pair.columns)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` samples: s times the sum of the columns of a random pattern, plus noise."""
        s, squares = 1.0 + self.slope, self.pair.squares / 2.0
        noise = rng.standard_normal((count, self.width))
        self.law.add(s * self.pair.scaled, noise, rng)
        if self.slope == 0.0:
            losses = log_means(self.pair, noise, [1.0], [-squares])[0]
            return Draws(np.zeros(count), -losses)
        losses, densities = log_means(self.pair, noise, [1.0, s], [-squares, -(s**2 - s + 1.0) * squares])
        return Draws(losses - densities + self.law.log_mean, -losses)


@dataclass(frozen=True)
class Absent(Estimator):
    """Estimator of delta for the noise alone against the mixture (addition).

    Args:
        pair: the dominating pair.
        slope: s >= 0, as in the module docstring; 0 samples the noise without a shift.
        law: distribution of patterns, q; the noise is shifted by -s times the mean of m_p over q.
    """

    pair: SeparatedPair
    slope: float
    law: Law

    rho = 0.0
    bias = 0.0  # only Gaussian numbers are drawn, no indices or patterns

    @cached_property
    def mean(self) -> Array:
        """The mean m of m_p over the distribution q of patterns."""
        n, out = len(self.pair.columns), np.zeros(len(self.pair.columns))
        for r, band in enumerate(self.pair.scaled.T):
            out[r:] += band[: n - r] * self.law.joins[: n - r]
        return out

    @cached_property
    def log_factor(self) -> float:  # type: ignore[override]
        """s^2 |m|^2 / 2 + s (mean of |m_p|^2 / 2 over q + KL(q || pi))."""
        size = float(self.law.joins @ (self.pair.squares / 2.0 + self.law.exponents)) - self.law.log_mean
        return float(self.slope**2 * (self.mean @ self.mean) / 2.0 + self.slope * size) + MARGIN

    @cached_property
    def _farthest(self) -> float:
        return LARGEST_NORMAL + self.slope * float(self.mean.max())

    @cached_property
    def loss_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding error of the log mean over patterns."""
        return self.pair.error(1.0, self._farthest)

    @property
    def ratio_error(self) -> float:  # type: ignore[override]
        """Bound on the rounding errors of s <m, y> + s^2 |m|^2 / 2 and of the other terms of `log_factor`."""
        products = 8.0 * UNIT * self.width * self._farthest * float(self.mean.sum())
        return 2.0 * (1.0 + self.slope) * (products + self.loss_error)

    @property
    def width(self) -> int:
        """Number of steps, n."""
        return len(self.pair.columns)

    def draw(self, rng: np.random.Generator, count: int) -> Draws:
        """Draw `count` samples of noise shifted by -s m."""
        m, s = self.mean, self.slope
        x = rng.standard_normal((count, self.width)) - s * m
        losses = log_means(self.pair, x, [1.0], [-self.pair.squares / 2.0])[0]
        return Draws(s * (x @ m) + s**2 * (m @ m) / 2.0, losses)


def best_absent(pair: SeparatedPair, slope: float) -> Absent:
    """Return the better of two `Absent` estimators, which differ in the distribution q of patterns.

    The first q minimizes `log_factor` without its term s^2 |m|^2 / 2. The second q takes this term into account,
    linearized at the mean m of the first.
    """
    weights = -pair.squares / 2.0
    first = Absent(pair, slope, Law(pair.participation, weights))
    n, products = len(weights), np.zeros(len(weights))
    for r, band in enumerate(pair.scaled.T):
        products[: n - r] += band[: n - r] * first.mean[r:]
    second = Absent(pair, slope, Law(pair.participation, weights - slope * products))
    return min(first, second, key=lambda estimator: estimator.log_factor)


def log_means(pair: SeparatedPair, samples: Array, scales: list[float], exponents: list[Array]) -> Array:
    """Return the log of the mean over patterns p of exp(scale <m_p, y> + sum of the exponents at the steps of p).

    Args:
        pair: gives the columns and the distribution of patterns.
        samples: the outputs y, one per row, shape (samples, steps).
        scales: one scale for each mean to compute.
        exponents: one array of shape (steps,) for each scale.

    Returns:
        Array of shape (scales, samples).
    """
    from antiphase._kernels import separated_log_means

    given, out = pair.participation, np.empty((len(scales), len(samples)))
    steps = given.separation, given.rate, given.warm_start
    bands = np.ascontiguousarray(pair.scaled.T)
    separated_log_means(bands, *steps, np.array(scales), np.stack(exponents), samples, out)
    return out


def separated_pair(
    strategy: Strategy, participation: PoissonMinSeparation, noise_std: float, sensitivity: float
) -> SeparatedPair:
    """Return the dominating pair of a strategy with at most `separation` bands."""
    columns = separated_columns(strategy, participation.separation)
    counts = count_probabilities(participation, len(columns))
    return SeparatedPair(columns, participation, noise_std, sensitivity, counts)


def separated_columns(strategy: Strategy, separation: int) -> Array:
    """Return columns[t, r] = |C[t + r, t]|; raise `NotProved` unless C has at most `separation` bands."""
    columns = strategy.band_columns()
    if columns is None:
        raise _too_wide(strategy, separation)
    used = int(np.flatnonzero(columns.any(axis=0))[-1]) + 1
    if used > separation:
        raise _too_wide(strategy, separation)
    return np.ascontiguousarray(np.abs(columns[:, :used]))


def is_separated(strategy: Strategy, separation: int) -> bool:
    """Return whether the strategy is known to be lower triangular with at most `separation` bands."""
    try:
        separated_columns(strategy, separation)
    except NotProved:
        return False
    return True


def _too_wide(strategy: Strategy, separation: int) -> NotProved:
    return NotProved(
        f"Amplification by random min-separation needs a lower-triangular C with at most {separation} bands; "
        f"this {type(strategy).__name__} is not known to be of that form.",
        hint=f"use Banded or Toeplitz with at most {separation} bands, or BallsInBins, which allows any "
        "lower-triangular C",
    )
