"""Monte Carlo estimates of log noise_std, and of its gradient with respect to the Gram matrix of the modes.

Here noise_std is the standard deviation of the noise that a privacy budget requires under balls-in-bins sampling. It
depends on the strategy only through G, the Gram matrix of the modes. A mode is the sum of the columns of |C| for the
steps of one bin, where |C| holds the absolute values of the strategy matrix C (see `weighted_gram`). The estimates only
guide the search for a strategy. The noise_std of the returned strategy is calibrated separately, with a proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._accounting import Budget
from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._montecarlo import BinsPair, Slopes, bins_pair, delta_slopes, randomness

LOG_NOISE_TOLERANCE = 2e-4  # Newton's method stops if a step changes log noise_std by at most this
MAX_LOG_NOISE_STEP = 0.5  # largest change of log noise_std in one step
SMALL_LOG_NOISE_STEP = 0.03  # a step up to this size counts as near the solution
MAX_NEWTON_STEPS = 30


@dataclass(frozen=True)
class NoiseEstimate:
    """The estimated noise_std for one Gram matrix G of the modes, with its gradient.

    Args:
        log_noise: logarithm of the noise_std at which the estimated delta equals the budget's delta.
        weights: a matrix H that gives the gradient: d(log noise_std) = <H, dG> / 2, where <H, G> is the sum of the
            products H_ij G_ij. It is scaled such that <H, G> = 1.
    """

    log_noise: float
    weights: Array


class NoiseEstimator:
    """Estimates log noise_std and its gradient for any Gram matrix of modes.

    All calls use the same random numbers, so the errors of the estimates are nearly the same for similar strategies.

    Args:
        budget: the privacy budget, (epsilon, delta).
        samples: number of Monte Carlo samples per estimate. With 2^11 samples, the relative error of noise_std is a few
            parts in a thousand.
        seed: seed of the samples.
    """

    def __init__(self, budget: Budget, samples: int, seed: int) -> None:
        self._budget, self._samples, self._seed = budget, samples, randomness(seed)
        self._adding = False

    def __call__(self, gram: Array, guess: float | None = None) -> NoiseEstimate:
        """Return the estimate for a Gram matrix, by Newton's method on log delta.

        Args:
            gram: the Gram matrix of the modes, G.
            guess: initial guess of log noise_std. If None, Newton's method starts from the noise_std without
                amplification. The call then also determines whether adding or removing an example requires more noise,
                and later calls with a guess estimate the noise_std for this case only.

        Raises `NotProved` if noise_std has no effect on the estimated delta. This happens for tiny budgets.
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
                    f"Monte Carlo sampling cannot estimate the noise for epsilon = {epsilon:g} and "
                    f"delta = {self._budget.delta:g}: more noise does not change the estimated delta.",
                    hint="use a larger epsilon, or batches other than BallsInBins",
                )
            step = (goal - found.log_delta) / found.by_log_noise
            # Samples are reweighted by a power alpha of the likelihood ratio (see `delta_slopes`); 0 chooses the best
            # power. Near the solution, alpha stays the same, because the estimates can jump if it changes.
            alpha = found.alpha if abs(step) <= SMALL_LOG_NOISE_STEP else 0
            # If this step undoes more than half of the last step, the estimated delta is not continuous: it jumps
            # across the budget's delta between the last two points.
            is_jump = step * last < 0.0 and abs(step) > 0.5 * abs(last)
            at += max(-MAX_LOG_NOISE_STEP, min(MAX_LOG_NOISE_STEP, 0.5 * step if is_jump else step))
            if abs(step) <= LOG_NOISE_TOLERANCE or (is_jump and abs(step) <= SMALL_LOG_NOISE_STEP):
                break
            last = step
        if guess is None:  # whether adding or removing needs more noise is the same for similar strategies
            self._adding = not self._adding
            other = self._slopes(pair.at(math.exp(at)), epsilon)
            if other.log_delta > goal:
                return self(gram, at)
            self._adding = not self._adding
        return NoiseEstimate(at, found.by_gram / float((found.by_gram * gram).sum()))

    def _slopes(self, pair: BinsPair, epsilon: float, alpha: int = 0) -> Slopes:
        return delta_slopes(pair, epsilon, self._samples, self._seed, adding=self._adding, alpha=alpha)
