"""Low estimates of the epsilon of a mechanism's dominating pair (`pair.py`), for audits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from antiphase._montecarlo.amplification import LARGEST_EPSILON, Amplified, dominating_pair
from antiphase._montecarlo.plain_sampling import Mean, weighted_mean
from antiphase._montecarlo.samples import child, randomness
from antiphase.strategies import Strategy

STANDARD_ERRORS = 4.0
SAMPLES = 1 << 14
HALVINGS = 14


@lru_cache(maxsize=64)
def epsilon_from_below(
    strategy: Strategy, participation: Amplified, noise_std: float, delta: float, samples: int = SAMPLES
) -> float:
    """Return the largest epsilon found at which the estimate of delta is at least four standard errors above `delta`.

    This function is for audits, so its result must not be above the true epsilon. (Guarantees use `epsilon`, whose
    result must not be below the true epsilon.)

    Args:
        strategy: strategy matrix, C.
        participation: random participation; `max_batch` is ignored.
        noise_std: standard deviation of the noise z in C x + z.
        delta: delta at which to estimate epsilon, between 0 and 1.
        samples: number of samples at each epsilon that is tried, for each of removal and addition.
    """
    pair = dominating_pair(strategy, replace(participation, max_batch=None), noise_std)
    seed = randomness(0, 9)

    def is_above(epsilon: float, attempt: int) -> bool:
        for i, estimator in enumerate(pair.estimators(epsilon)):
            found: Mean = weighted_mean(estimator, epsilon, samples, child(seed, 2 * attempt + i), 1)
            if found.value - STANDARD_ERRORS * found.error >= delta:
                return True
        return False

    low, high, attempt = 0.0, 1.0, 0
    while high < LARGEST_EPSILON and is_above(high, attempt):
        low, high, attempt = high, 2.0 * high, attempt + 1
    for _ in range(HALVINGS):
        middle, attempt = (low + high) / 2.0, attempt + 1
        low, high = (middle, high) if is_above(middle, attempt) else (low, middle)
    return low
