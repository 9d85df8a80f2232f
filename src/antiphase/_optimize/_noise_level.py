"""The noise that a budget needs under balls-in-bins, as a function of the modes: an estimate to descend by."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._accounting import Budget
from antiphase._check import Array
from antiphase._montecarlo._bins import BinsPair, bins_pair
from antiphase._montecarlo._samples import randomness
from antiphase._montecarlo._slopes import Slopes, slopes

CLOSE = 2e-4  # of the noise
LONGEST_STEP = 0.5  # in log noise
MOST_STEPS = 30


@dataclass(frozen=True)
class Level:
    """The noise at one Gram matrix G.

    Args:
        log_noise: at which the estimate of delta is the budget's.
        weights: H with <H, G> = 1, such that d log noise = <H, dG> / 2.
    """

    log_noise: float
    weights: Array


class NoiseLevel:
    """log noise and its gradient for any Gram matrix of modes, with common random numbers.

    Args:
        budget: (epsilon, delta).
        samples: of each estimate; 2^11 give the noise to a few parts in a thousand, the same for similar strategies.
        seed: of the samples.
    """

    def __init__(self, budget: Budget, samples: int, seed: int) -> None:
        self._budget, self._samples, self._seed = budget, samples, randomness(seed)
        self._adding = False

    def __call__(self, gram: Array, guess: float | None = None) -> Level:
        """Newton's method on log delta, from a guess at log noise or from the noise without amplification.

        Without a guess the larger of both directions is found, with one it is that of the last time.
        """
        from antiphase._accounting._gaussian import shift

        epsilon, goal = self._budget.epsilon, math.log(self._budget.delta)
        at = guess
        if at is None:
            at = 0.5 * math.log(float(np.diag(gram).max())) - math.log(shift(epsilon, self._budget.delta))
        pair = bins_pair(gram, 1.0)
        for _ in range(MOST_STEPS):
            found = self._slopes(pair.at(math.exp(at)), epsilon)
            step = (goal - found.log_delta) / found.by_log_noise
            at += max(-LONGEST_STEP, min(LONGEST_STEP, step))
            if abs(step) <= CLOSE:
                break
        if guess is None:  # which direction is the larger does not change between similar strategies
            self._adding = not self._adding
            other = self._slopes(pair.at(math.exp(at)), epsilon)
            if other.log_delta > goal:
                return self(gram, at)
            self._adding = not self._adding
        return Level(at, found.by_gram / float((found.by_gram * gram).sum()))

    def _slopes(self, pair: BinsPair, epsilon: float) -> Slopes:
        return slopes(pair, epsilon, self._samples, self._seed, adding=self._adding)
