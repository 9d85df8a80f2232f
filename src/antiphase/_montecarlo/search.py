"""Searches for the epsilon, or for the noise, at which delta has a given value.

`upper_epsilon` and `upper_noise` use a proved bound on delta. `estimated_epsilon` and `estimated_noise` use estimates
of delta from samples, with the same seed throughout a search (common random numbers), so that the estimates are a
smooth function of epsilon or of the noise. What such a search finds is not proved. It is verified afterwards with a
confidence limit on delta, from fresh samples. Every confidence limit is at least `Pair.least`, even if the estimate is
0. To allow for this, the search adds `Pair.least` to each estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from antiphase._errors import NotProved
from antiphase._montecarlo.estimator import Draws, Estimator, log_bound, log_weights
from antiphase._montecarlo.pair import Pair
from antiphase._montecarlo.samples import child, draws
from antiphase._montecarlo.settings import MonteCarlo

LARGEST = 1e6  # search up to this factor above the starting point
LARGEST_LOG = 700.0
SEARCH_FRACTION = 4  # a search starts with `Pair.pilot` / SEARCH_FRACTION samples, and ends with `Pair.pilot` samples
TOLERANCE, ROUGH = 1e-4, 1e-2


def upper_epsilon(pair: Pair, delta: float) -> float:
    """Return roughly the smallest epsilon at which the proved bound on delta is at most `delta`.

    Searches with the fast, loose version of the bound first (`fine=False`). If `pair.tight`, so that the slow version
    is accurate, a second search uses it to reduce the result.
    """
    found = _least(lambda e: pair.upper(e, fine=False).value <= delta, 1.0)
    if pair.tight and found > 0.0:
        found = _tightened(lambda e: pair.upper(e).value <= delta, found)
    return found


def upper_noise(pair: Pair, epsilon: float, delta: float) -> float:
    """Return roughly the smallest noise level at which the proved bound on delta at `epsilon` is at most `delta`."""
    least = pair.noise_std / LARGEST

    def holds(noise: float) -> bool:
        return noise > least and pair.at(noise).upper(epsilon, fine=False).value <= delta

    found = _least(holds, pair.noise_std, TOLERANCE if pair.tight else ROUGH)
    if found <= 2.0 * least:
        raise NotProved(
            f"delta = {delta} needs no noise at all: an example takes part with probability at most delta.",
            hint="use a delta far below 1 / number of examples",
        )
    if pair.tight:
        found = _tightened(lambda s: pair.at(s).upper(epsilon).value <= delta, found)
    return found


def estimated_epsilon(
    pair: Pair, delta: float, log_inverse: float, seed: np.random.SeedSequence, sampling: MonteCarlo
) -> float:
    """Return the epsilon at which the estimate, plus `pair.least`, equals `delta`.

    The best estimators depend on epsilon. They are chosen again for each epsilon that is found, until epsilon hardly
    changes.

    Args:
        pair: the dominating pair, with the noise of the mechanism.
        delta: target for the estimate of delta.
        log_inverse: log(1 / p), where p is the failure probability of the confidence limit that is computed afterwards.
        seed: seed of the samples.
        sampling: Monte Carlo settings.
    """
    epsilon = highest = upper_epsilon(pair, delta)
    samples, many = _samples(pair, sampling)
    for rounds in range(5):
        curve = _Curve(pair.estimators(epsilon), samples, child(seed, rounds), sampling.workers)
        excess = partial(_excess, curve, pair, delta=delta, log_inverse=log_inverse, sampling=sampling)
        last, epsilon = epsilon, _root(excess, 0.0, highest)
        near = abs(epsilon - last) <= 0.02 * last
        if near and samples == many:
            break
        samples = many if near else samples
    return epsilon


def estimated_noise(
    pair: Pair,
    epsilon: float,
    delta: float,
    log_inverse: float,
    highest: float,
    seed: np.random.SeedSequence,
    sampling: MonteCarlo,
) -> float:
    """Return the noise at which the estimate of delta at `epsilon`, plus `pair.least`, equals `delta`.

    The result is not much above `highest`, the noise that the proved bound needs. The noise of `pair` itself is not
    used. For `log_inverse`, `seed` and `sampling`, see `estimated_epsilon`.
    """
    few, many = _samples(pair, sampling)

    def excess(log_noise: float, samples: int = few, part: int = 0) -> float:
        there = pair.at(math.exp(log_noise))
        curve = _Curve(there.estimators(epsilon), samples, child(seed, part), sampling.workers)
        return _excess(curve, there, epsilon, delta, log_inverse, sampling)

    high = math.log(highest)
    low = high - 0.25
    while excess(low) <= 0.0 and highest < LARGEST * math.exp(low):
        low, high = low - 2.0 * (high - low), low
    found = _root(excess, low, high)
    slope = min((excess(found + 0.01) - excess(found)) / 0.01, -0.1)
    correction = excess(found, many, 1) / slope
    return math.exp(found - max(-0.05, min(0.05, correction)))


def _samples(pair: Pair, sampling: MonteCarlo) -> tuple[int, int]:
    """Return the number of samples at the start of a search, and at its end."""
    most = sampling.samples or pair.samples
    return min(pair.pilot // SEARCH_FRACTION, most), min(pair.pilot, most)


class _Curve:
    """Estimates of delta for any epsilon from one set of samples."""

    def __init__(
        self, estimators: tuple[Estimator, Estimator], samples: int, seed: np.random.SeedSequence, workers: int
    ) -> None:
        self._estimators, self._samples, self._seed, self._workers = estimators, samples, seed, workers
        self._draws: dict[int, Draws] = {}

    def log_delta(self, epsilon: float) -> float:
        """Return the logarithm of the larger of two estimates of delta, for removal and for addition of an example.

        Each estimate is a mean of bounded weights. If the bound on the weights for addition is at most the estimate for
        removal, the estimate for addition cannot be larger, so it is not computed.
        """
        removal = self._log_mean(0, epsilon)
        if log_bound(self._estimators[1], epsilon) <= removal:
            return removal
        return max(removal, self._log_mean(1, epsilon))

    def _log_mean(self, direction: int, epsilon: float) -> float:
        from scipy.special import logsumexp

        estimator = self._estimators[direction]
        if direction not in self._draws:
            self._draws[direction] = draws(estimator, self._samples, child(self._seed, direction), self._workers)
        logs = log_weights(estimator, self._draws[direction], epsilon)
        return max(-LARGEST_LOG, float(logsumexp(logs)) - math.log(self._samples))


def _excess(curve: _Curve, pair: Pair, epsilon: float, delta: float, log_inverse: float, sampling: MonteCarlo) -> float:
    """Return log((estimate of delta + `pair.least`) / delta)."""
    least = pair.least(epsilon, sampling.samples or pair.samples, log_inverse)
    return math.log(math.exp(curve.log_delta(epsilon)) + least) - math.log(delta)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point in [low, high] where a decreasing function crosses 0, or the end nearer to the crossing."""
    from scipy.optimize import brentq

    if function(low) <= 0.0:
        return low
    if function(high) >= 0.0:
        return high
    return float(brentq(function, low, high, xtol=TOLERANCE * max(1e-3, min(1.0, abs(high))), rtol=1e-6))


def _least(holds: Callable[[float], bool], start: float, tolerance: float = TOLERANCE) -> float:
    """Return roughly the smallest number that satisfies `holds`, a condition that is true above some point."""
    if holds(0.0):
        return 0.0
    low = high = start
    while not holds(high):
        low, high = high, 2.0 * high
        if high > LARGEST * start:
            raise NotProved(
                f"The proved bound on delta is too large for every epsilon or noise_std that was tried, up to {high}.",
                hint="use a larger epsilon or delta",
            )
    while low > 0.0 and holds(low):
        low, high = low / 2.0, low
    while high - low > tolerance * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _tightened(holds: Callable[[float], bool], start: float) -> float:
    """Return a number slightly below `start` that satisfies `holds`, or `start` if none is found."""
    low, high = start * (1.0 - 20.0 * TOLERANCE), start
    if holds(low):
        return low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
