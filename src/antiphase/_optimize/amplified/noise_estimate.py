"""Monte Carlo estimates of the noise that a budget requires under balls-in-bins, and of the gradient of this noise.

The estimates only guide the search. The noise of the result is calibrated separately. `weighted_gram` defines the modes
and their Gram matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._accounting import Budget
from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._montecarlo import BinsPair, Slopes, bins_pair, delta_slopes, randomness

LOG_NOISE_TOLERANCE = 2e-4
MAX_LOG_NOISE_STEP = 0.5
SMALL_LOG_NOISE_STEP = 0.03
MAX_NEWTON_STEPS = 30


@dataclass(frozen=True)
class NoiseEstimate:
    """The estimated noise for one Gram matrix G of the modes, with its gradient.

    Args:
        log_noise: logarithm of the noise_std at which the estimated delta equals the budget's delta.
        weights: the gradient, as a matrix H with <H, G> = 1 and d(log noise_std) = <H, dG> / 2.
    """

    log_noise: float
    weights: Array


class NoiseEstimator:
    """Estimates log noise_std and its gradient for any Gram matrix of modes, with common random numbers.

    Args:
        budget: the privacy budget, (epsilon, delta).
        samples: number of samples per estimate. With 2^11 samples, noise_std has a relative error of a few parts in a
            thousand. The error is nearly the same for similar strategies.
        seed: seed of the samples.
    """

    def __init__(self, budget: Budget, samples: int, seed: int) -> None:
        self._budget, self._samples, self._seed = budget, samples, randomness(seed)
        self._adding = False

    def __call__(self, gram: Array, guess: float | None = None) -> NoiseEstimate:
        """Return the estimate for a Gram matrix, by Newton's method on log delta.

        Args:
            gram: the Gram matrix of the modes, G.
            guess: initial guess of log noise_std. If None, the iteration starts from the noise without amplification,
                and the call determines which direction, adding or removing an example, requires more noise. A call
                with a guess uses the direction of the previous call.

        Raises `NotProved` if the noise has no effect on the estimated delta. This happens for tiny budgets.
        """
        from antiphase._accounting import shift

        epsilon, goal = self._budget.epsilon, math.log(self._budget.delta)
        at = guess
        if at is None:
            at = 0.5 * math.log(float(np.diag(gram).max())) - math.log(shift(epsilon, self._budget.delta))
        pair, alpha, last = bins_pair(gram, 1.0), 0, 0.0
        for _ in range(MAX_NEWTON_STEPS):
            found = self._slopes(pair.at(math.exp(at)), epsilon, alpha)
            if found.by_log_noise == 0.0:
                raise NotProved(
                    f"Sampling cannot estimate the noise for epsilon = {epsilon:g} and delta = {self._budget.delta:g}: "
                    "more noise does not change the estimated delta.",
                    hint="use a larger epsilon, or batches other than BallsInBins",
                )
            step = (goal - found.log_delta) / found.by_log_noise
            # Near the solution, alpha (see `delta_slopes`) is kept, so that the estimates do not jump.
            alpha = found.alpha if abs(step) <= SMALL_LOG_NOISE_STEP else 0
            # If this step undoes more than half of the last step, the estimated delta jumps across the budget's delta
            # somewhere between the last two points.
            is_jump = step * last < 0.0 and abs(step) > 0.5 * abs(last)
            at += max(-MAX_LOG_NOISE_STEP, min(MAX_LOG_NOISE_STEP, 0.5 * step if is_jump else step))
            if abs(step) <= LOG_NOISE_TOLERANCE or (is_jump and abs(step) <= SMALL_LOG_NOISE_STEP):
                break
            last = step
        if guess is None:  # the worse direction is the same for similar strategies, so it is determined only once
            self._adding = not self._adding
            other = self._slopes(pair.at(math.exp(at)), epsilon)
            if other.log_delta > goal:
                return self(gram, at)
            self._adding = not self._adding
        return NoiseEstimate(at, found.by_gram / float((found.by_gram * gram).sum()))

    def _slopes(self, pair: BinsPair, epsilon: float, alpha: int = 0) -> Slopes:
        return delta_slopes(pair, epsilon, self._samples, self._seed, adding=self._adding, alpha=alpha)
