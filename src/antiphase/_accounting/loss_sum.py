"""The distribution of a sum of independent privacy losses, which gives (epsilon, delta) of a composition.

A fast Fourier transform convolves loss distributions with an absolute error near 1e-16, which is too large for a delta
of 1e-12. Each distribution p is therefore tilted exponentially first, to p(l) e^(tilt l) / M(tilt), where M is its
moment generating function. The tilt moves the mean of the sum to the epsilon of interest. Removing the tilt after the
convolution multiplies the result and its error by the same small factor, so the error is small relative to delta. If
delta comes from one large loss among many small ones, the tilt does not isolate that loss, and the bound on the
rounding error may be far above delta.

Every approximation is on the safe side. Infinite losses count fully towards delta. The distribution of the sum is
computed on a window of losses, and a Chernoff bound on the mass outside the window counts fully towards delta as well.
Wrap-around in the transform only adds mass. A bound on the rounding error is added.

Reference: Koskela, Jälkö and Honkela 2020 (transform); Keich 2005 (tilt).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._accounting.loss_grid import LossGrid
from antiphase._check import Array

TAIL = 1e-6  # share of delta that may lie above the window, lie below it, or wrap around into it
UNIT = float(np.finfo(np.float64).eps)
MARGIN = 1e-8  # share of delta that covers the rounding of sums outside the transform
MARGIN_PER_LOSS = 2e-13  # additional share of delta for each loss in the sum
SMALLEST_TILT, LARGEST_TILT = 0.05, 1e9  # SMALLEST_TILT is in units of 1 / (standard deviation of the sum)
LARGEST_EXPONENT = 300.0
SMALLEST_LOG = -740.0
SMALLEST_FLOAT = 5e-324
LARGEST_WINDOW = 1 << 21  # grid points
MAX_PASSES = 3  # the distribution of the sum is computed again at most this many times
SMALL_ROUNDING = 1e-4  # it is not computed again if the rounding error is at most this share of delta

Precision = type[np.float64] | type[np.longdouble]


class TooWide(Exception):
    """Raised if the window needs too many grid points; `interval` is the smallest spacing that fits."""

    def __init__(self, interval: float) -> None:
        super().__init__(interval)
        self.interval = interval


@dataclass(frozen=True)
class Moments:
    """The log moment generating function of a sum at one tilt, with its first two derivatives.

    Args:
        tilt: argument of the log moment generating function.
        value: value of the function at this tilt.
        mean: its first derivative, which is the mean of the tilted sum.
        variance: its second derivative, which is the variance of the tilted sum.
    """

    tilt: float
    value: float
    mean: float
    variance: float

    @property
    def log_delta(self) -> float:
        """Saddle-point estimate of log delta at epsilon = mean."""
        return self.log_delta_at(self.mean)

    @property
    def log_scale(self) -> float:
        """log f, where Pr(sum = mean) is f times Pr(tilted sum = mean)."""
        return self.value - self.tilt * self.mean

    def log_delta_at(self, epsilon: float) -> float:
        """Return the saddle-point estimate of log delta at an epsilon near the mean."""
        spread = math.log(self.tilt) + math.log1p(self.tilt) + math.log(2.0 * math.pi * self.variance) / 2.0
        return self.value - self.tilt * epsilon - spread


class LossSum:
    """The sum of independent losses: for each term (grid, count), `count` losses with the distribution `grid`.

    All grids have the same interval.
    """

    def __init__(self, terms: Sequence[tuple[LossGrid, int]]) -> None:
        self._grids = [grid for grid, _ in terms]
        self._counts = [count for _, count in terms]
        self._losses = [grid.losses for grid in self._grids]
        with np.errstate(divide="ignore"):
            self._logs = [np.log(grid.probabilities) for grid in self._grids]
        self._margin = MARGIN + MARGIN_PER_LOSS * sum(self._counts)
        self._infinite = abs(math.expm1(sum(count * math.log1p(-grid.infinite) for grid, count in terms)))

    def epsilon(self, delta: float) -> float:
        """Return an upper bound on the smallest epsilon >= 0 at which the hockey-stick divergence is at most `delta`.

        Every tilt gives an upper bound. The first tilt comes from a rough estimate; later tilts use the smallest
        epsilon found so far.
        """
        log_delta = math.log(delta)
        budget = delta * (1.0 - self._margin - TAIL) - self._infinite
        at = _crossing(lambda m: m.log_delta, log_delta, lambda m: 1.0, self.moments)
        best, rounding = self._window(at, log_delta, np.float64).epsilon(budget)
        for _ in range(MAX_PASSES):
            if rounding < SMALL_ROUNDING or not math.isfinite(best):
                break
            found, rounding = self._window(self._saddle(best), log_delta, np.longdouble).epsilon(budget)
            best = min(best, found)
        return best

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on the hockey-stick divergence at `epsilon`."""
        if epsilon >= self._bounds()[1]:
            return max(self._infinite, SMALLEST_FLOAT)
        at = self._saddle_or_floor(epsilon)
        log_delta = min(at.log_delta_at(epsilon), 0.0)
        precisions: list[Precision] = [np.float64, *([np.longdouble] * MAX_PASSES)]
        for precision in precisions:
            # Sums below epsilon contribute nothing to delta. If almost all sums are far above epsilon, the rare sums
            # just above epsilon may also be cut off, because `beyond` includes their probability.
            needed = max(epsilon, self._rarely_below(math.log(TAIL) + log_delta))
            within, rounding = self._window(at, log_delta, precision, needed).delta(epsilon)
            beyond = 2.0 * TAIL * math.exp(log_delta)
            if beyond + rounding <= SMALL_ROUNDING * within:
                break
            log_delta = math.log(within)  # if the estimate of delta was far too large, `beyond` was too large as well
        return min(1.0, (within + beyond) * (1.0 + self._margin) + self._infinite)

    def moments(self, tilt: float) -> Moments:
        """Return the log moment generating function, mean and variance of the sum at this tilt."""
        total = np.zeros(3)
        for logs, losses, count in zip(self._logs, self._losses, self._counts, strict=True):
            exponents = logs + tilt * losses
            largest = exponents.max()
            weights = np.exp(exponents - largest)
            mass = weights.sum()
            # Use sums instead of inner products: BLAS threads cost more than they save here.
            mean = (weights * losses).sum() / mass
            variance = max((weights * (losses - mean) ** 2).sum() / mass, self._grids[0].interval ** 2)
            total += count * np.array([largest + math.log(mass), mean, variance])
        return Moments(tilt, *total.tolist())

    def _saddle(self, epsilon: float) -> Moments:
        """Return the moments at the tilt that moves the mean of the sum to about `epsilon`."""
        return _crossing(lambda m: -m.mean, -epsilon, lambda m: 0.3 * math.sqrt(m.variance), self.moments)

    def _saddle_or_floor(self, epsilon: float) -> Moments:
        """Return `_saddle(epsilon)`, or the moments at almost no tilt if no tilt moves the mean down to `epsilon`.

        Almost no tilt means SMALLEST_TILT / (standard deviation of the untilted sum). The standard deviation of the
        tilted sum can be much smaller. Dividing by that one would give a larger tilt, under which the probability mass
        at lower losses could be smaller than the rounding error.
        """
        at = self._saddle(epsilon)
        if at.mean <= epsilon + 0.5 * math.sqrt(at.variance):
            return at
        return self.moments(min(at.tilt, SMALLEST_TILT / math.sqrt(self.moments(0.0).variance)))

    def _rarely_below(self, log_tail: float) -> float:
        """Return a loss that the untilted sum falls below with probability at most e^log_tail."""
        return -self._chernoff(lambda m: (m.value - log_tail) / -m.tilt, self.moments(0.0), -1.0)

    def _bounds(self) -> tuple[float, float]:
        """Return the smallest and the largest finite loss of the sum."""
        ends = np.array([losses[[0, -1]] for losses in self._losses])
        lowest, highest = np.array(self._counts, dtype=np.float64) @ ends
        return float(lowest), float(highest)

    def _window(self, at: Moments, log_delta: float, precision: Precision, needed: float = math.inf) -> _Window:
        """Return the tilted sum on a window of losses that cuts off at most a share TAIL of delta on each side.

        Above the window, this limit holds for the mass of the tilted sum and of the untilted sum. Below the window, it
        holds for the tilted sum only, because the untilted sum is used only at losses of at least `needed`.
        """
        lowest, highest = self._bounds()
        tail = math.log(TAIL) + log_delta
        tilted_tail = math.log(TAIL) + min(0.0, log_delta - at.log_scale)
        beyond = self._chernoff(lambda m: (m.value - tail) / m.tilt, at, 1.0)
        tilted_beyond = self._chernoff(lambda m: (m.value - at.value - tilted_tail) / (m.tilt - at.tilt), at, 1.0)
        below = self._chernoff(lambda m: (m.value - at.value - tilted_tail) / (at.tilt - m.tilt), at, -1.0)
        top, bottom = min(max(beyond, tilted_beyond), highest), max(min(-below, needed), lowest)
        interval = self._grids[0].interval
        if top - bottom > LARGEST_WINDOW * interval:
            raise TooWide((top - bottom) / LARGEST_WINDOW * 1.01)
        first, last = math.floor(bottom / interval), math.ceil(top / interval)
        masses, error = self._transform(at.tilt, first, last, precision)
        return _Window(at, np.arange(first, last + 1, dtype=np.float64) * interval, np.maximum(masses, 0.0), error)

    def _chernoff(self, bound: Callable[[Moments], float], at: Moments, sign: float) -> float:
        """Return the smallest `bound` found at tilts above (`sign` = 1) or below (`sign` = -1) that of `at`.

        The tilts move closer to that of `at` until `bound` no longer decreases.
        """
        step = sign * 6.0 / math.sqrt(at.variance)
        best, found = math.inf, bound(self.moments(at.tilt + step))
        while found < best:
            step /= 1.5
            best, found = found, bound(self.moments(at.tilt + step))
        return best

    def _transform(self, tilt: float, first: int, last: int, precision: Precision) -> tuple[Array, float]:
        """Return the tilted masses at grid indices `first` to `last`, and a bound on the 2-norm of their errors."""
        from scipy.fft import irfft, next_fast_len, rfft

        size = next_fast_len(last - first + 1, real=True)
        folded = [
            _fold(_tilted(logs + tilt * losses), size) for logs, losses in zip(self._logs, self._losses, strict=True)
        ]
        if sum(self._counts) == 1:
            whole, error = folded[0], 0.0
        else:
            spectra = [rfft(masses.astype(precision)) for masses in folded]
            product: Any = math.prod(s**c for s, c in zip(spectra, self._counts, strict=True))
            whole = irfft(product, size).astype(np.float64)
            norm = math.sqrt(np.square(whole).sum())
            error = _rounding(norm, self._counts, size) * float(np.finfo(precision).eps)
        offset = sum(c * grid.start for c, grid in zip(self._counts, self._grids, strict=True)) - first
        return np.roll(whole, offset % size)[: last - first + 1], error


@dataclass(frozen=True)
class _Window:
    """The tilted sum on a window of grid points: moments, losses, masses, and a bound on the 2-norm of their errors."""

    at: Moments
    losses: Array
    masses: Array
    error: float

    def epsilon(self, budget: float) -> tuple[float, float]:
        """Return the smallest epsilon with a divergence of at most `budget`, and the error of that divergence.

        The second result is the part of the divergence that allows for rounding errors, divided by `budget`.

        For an epsilon between two grid points, the divergence is upper - e^epsilon * lower. Here `upper` is the mass of
        all losses above epsilon, and `lower` is the sum of mass x e^-loss over these losses. In the code, epsilon and
        losses are relative to the mean, and masses are in units of the budget.
        """
        if budget <= 0.0:
            return math.inf, 0.0
        gaps, exponents, masses = self._above(math.log(budget))
        weights = np.exp(exponents)
        upper = _sums_to_end(weights * masses)
        lower = _sums_to_end(np.exp(exponents - gaps) * masses)
        rounding = self.error * np.sqrt(_sums_to_end(np.square(weights)))
        rounding += UNIT * len(upper) * upper  # the subtraction below may cancel completely
        growth = np.exp(np.minimum(gaps, LARGEST_EXPONENT))  # capping can only increase the divergence
        enough = upper - growth * lower + rounding <= 1.0
        if not enough.any():
            return max(0.0, float(self.losses[-1])), 1.0  # the budget already allows for the mass above the last loss
        first = int(np.argmax(enough))
        gap, excess = float(gaps[first]), upper[first] + rounding[first] - 1.0
        if first > 0 and lower[first] > 0.0:
            crossing = math.log(excess / lower[first]) if excess > 0.0 else -math.inf
            gap = min(gap, max(crossing, float(gaps[first - 1])))
        return max(0.0, self.at.mean + gap), float(rounding[first])

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return an upper bound on the divergence at `epsilon`, never 0, and the rounding error that it includes."""
        above = self.losses > epsilon
        gaps = self.losses[above] - epsilon
        log_unit = self.at.value - self.at.tilt * epsilon
        weights = np.exp(-self.at.tilt * gaps)
        rounding = self.error * math.sqrt(np.square(weights).sum())
        divergence = (weights * self.masses[above] * -np.expm1(-gaps)).sum() + rounding
        value = math.exp(min(0.0, max(SMALLEST_LOG, log_unit + math.log(max(divergence, 1e-300)))))
        return value, value * rounding / max(divergence, 1e-300)

    def _above(self, log_unit: float) -> tuple[Array, Array, Array]:
        """Return losses minus their mean, logs of the factors that remove the tilt, and tilted masses.

        The factors are in units of exp(log_unit). Losses so low that the factors overflow are omitted. They do not
        affect sums from a higher loss to the end.
        """
        gaps = self.losses - self.at.mean
        exponents = self.at.log_scale - log_unit - self.at.tilt * gaps
        kept = np.maximum(exponents, exponents - gaps) <= LARGEST_EXPONENT
        kept[-1] = True
        largest = np.minimum(LARGEST_EXPONENT, LARGEST_EXPONENT + gaps[kept])
        return gaps[kept], np.minimum(exponents[kept], largest), self.masses[kept]


def _sums_to_end(values: Array) -> Array:
    return np.cumsum(values[::-1])[::-1]


def _crossing(
    value: Callable[[Moments], float],
    target: float,
    tolerance: Callable[[Moments], float],
    moments: Callable[[float], Moments],
) -> Moments:
    """Return the moments at a tilt where the decreasing function `value` exceeds `target` by at most `tolerance`.

    If no tilt in the allowed range satisfies this, return the moments at the end of the range.
    """
    low = high = moments(1.0)
    while value(high) > target and high.tilt < LARGEST_TILT:
        low, high = high, moments(4.0 * high.tilt)
    while value(low) < target and low.tilt * math.sqrt(low.variance) > SMALLEST_TILT:
        low, high = moments(low.tilt / 4.0), low
    while value(low) - value(high) > tolerance(low) and high.tilt > 1.0001 * low.tilt:
        middle = moments(math.sqrt(low.tilt * high.tilt))
        low, high = (middle, high) if value(middle) > target else (low, middle)
    return low


def _tilted(exponents: Array) -> Array:
    weights = np.exp(exponents - exponents.max())
    return weights / weights.sum()


def _fold(values: Array, size: int) -> Array:
    """Sum the values whose indices are equal modulo `size`."""
    rows = -(-len(values) // size)
    return np.pad(values, (0, rows * size - len(values))).reshape(rows, size).sum(axis=0)


def _rounding(norm: float, counts: list[int], size: int) -> float:
    """Return a bound on the rounding error of the inverse transform of a product of powers of spectra.

    The error is measured in the 2-norm, in units of machine epsilon. Each entry F of the spectrum of a distribution has
    an error of at most 2 log2(size) machine epsilons. This error enters the product once for each factor F, multiplied
    by the product of all other factors. That product is at most 2 |whole product| where |F| >= 1/2, and at most
    2^(1 - count) elsewhere. The computation of the powers and the inverse transform at most double the error.

    Args:
        norm: 2-norm of the result, which is also the 2-norm of the product of spectra (Parseval's theorem).
        counts: exponents of the powers; each is the number of losses with the same distribution.
        size: length of the transform.
    """
    factors = sum(count * (2.0 * norm + 2.0 ** (1 - min(count, 1000))) for count in counts)
    return 4.0 * math.log2(size + 1) * (factors + 1.0)
