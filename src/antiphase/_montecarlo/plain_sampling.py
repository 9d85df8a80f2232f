"""Plain Monte Carlo, without importance sampling: samples come from a dominating pair itself (see `pair.py`).

The weight of a sample is (1 - e^(epsilon - loss))_+, where loss is its privacy loss. The mean weight is delta. An
estimate needs about 1 / delta samples, and a proof many more.

Reference: Choquette-Choo et al. 2025 (near-exact amplification), Thm. 2.2 and App. E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from antiphase._bound import Bound
from antiphase._errors import AntiphaseError, Refused
from antiphase._montecarlo.estimator import Draws, Estimator, allowance, log_weights
from antiphase._montecarlo.pair import Pair
from antiphase._montecarlo.samples import child, collect
from antiphase._montecarlo.verification import SHARE, log_inverse_share

_THEOREMS = "Wang et al. 2023, Thm. 9; Choquette-Choo et al. 2025 (near-exact amplification), Thm. 2.2"


@dataclass(frozen=True)
class Mean:
    """The mean of the weights for the removal or the addition of an example, rounded up.

    Args:
        value: the mean. If it is 0, no sample had a positive weight, and the mean says nothing about delta.
        error: standard error of the mean.
        hits: number of samples with a positive weight.
    """

    value: float
    error: float
    hits: int


def bernstein_failure(delta: float, tau: float, samples: int) -> float:
    """Return a bound on the probability that the mean weight is at most `delta` although the true delta is tau * delta.

    Args:
        delta: threshold for the mean of the weights.
        tau: true delta / threshold, at least 1.
        samples: number of weights.

    >>> bernstein_failure(8e-6, 1.25, 10**8) < 7.2e-9
    True
    """
    return math.exp(-_bernstein_exponent(delta, tau, samples))


def plain_means(
    pair: Pair, epsilon: float, samples: int, seed: np.random.SeedSequence, workers: int
) -> tuple[Mean, Mean]:
    """Return the mean weights for removal and addition. Memory use does not grow with the number of samples."""
    removal, addition = (
        weighted_mean(estimator, epsilon, samples, child(seed, i), workers)
        for i, estimator in enumerate(pair.outward.plain())
    )
    return removal, addition


def plain_delta(pair: Pair, epsilon: float, samples: int, seed: np.random.SeedSequence, workers: int) -> Bound:
    """Return an estimate of delta, which is the larger of the estimates for removal and addition.

    Raises `AntiphaseError` if no sample has a positive weight, because delta is never 0.
    """
    worst = max(plain_means(pair, epsilon, samples, seed, workers), key=lambda mean: mean.value)
    if worst.hits == 0:
        raise AntiphaseError(
            f"None of {samples} samples has a privacy loss above epsilon = {epsilon}, so delta cannot be estimated.",
            hint="use more samples, or a certified bound, which needs few samples for any delta",
        )
    return Bound(worst.value, "estimate", f"plain sampling, {samples:,} samples, {worst.hits:,} hits", pair.reference)


def verify_plain(
    pair: Pair,
    epsilon: float,
    delta: float,
    tau: float,
    samples: int,
    attempt: int,
    seed: np.random.SeedSequence,
    workers: int,
) -> Bound:
    """Verify the claim (epsilon, delta) with plain samples, or raise `Refused`.

    The claim passes if the mean weights for removal and addition are both at most (delta - p) / tau. Here p is the
    failure probability that delta includes. Attempt r may wrongly pass with probability p / 2^r / 2 for removal, and
    with as much for addition (see `verification.py`). If the true delta for removal exceeds delta - p, the mean weight
    for removal still passes with probability at most `bernstein_failure`. The same holds for addition. `Refused` is
    raised if `bernstein_failure` is larger than p / 2^r / 2.
    """
    threshold = delta * (1.0 - SHARE) / tau
    needs, has = log_inverse_share(delta, attempt), _bernstein_exponent(threshold, tau, samples)
    if has < needs:
        needed = math.ceil(samples * needs / has) if has > 0.0 else math.inf
        raise Refused(
            f"{samples} samples are too few to verify delta = {delta} with tau = {tau}: the failure probability is "
            f"{math.exp(-has):.2g}, but this attempt may spend only {math.exp(-needs):.2g}.",
            hint=f"use {needed:,} samples, a larger tau, or method='certified'",
        )
    worst = max(plain_means(pair, epsilon, samples, seed, workers), key=lambda mean: mean.value)
    if worst.value <= threshold:
        method = f"plain sampling, {samples:,} samples, failure probability {SHARE * delta:.1e} within delta"
        return Bound(delta, "confident", method, f"{pair.reference}; {_THEOREMS}")
    raise Refused(
        f"({epsilon}, {delta})-differential privacy is not verified: the estimate of delta is {worst.value:.4g} "
        f"+- {worst.error:.2g} and must be at most {threshold:.4g}.",
        hint=f"add noise; the next verification is attempt {attempt + 1}",
    )


def _bernstein_exponent(delta: float, tau: float, samples: int) -> float:
    """Return -log of `bernstein_failure`."""
    return samples * (tau - 1.0) ** 2 * delta / (8.0 * tau / 3.0 - 2.0 / 3.0)


def weighted_mean(
    estimator: Estimator, epsilon: float, samples: int, seed: np.random.SeedSequence, workers: int
) -> Mean:
    """Return the mean weight of an estimator's samples: an unbiased estimate of delta, increased to cover rounding."""
    pieces = collect(estimator, samples, seed, partial(_moments, estimator, epsilon), workers)
    hits, total, squares = (math.fsum(column) for column in zip(*pieces, strict=True))
    mean = total / samples
    variance = max(squares / samples - mean**2, 0.0)
    rounded = mean * math.exp(allowance(estimator)) + estimator.bias if hits else 0.0
    return Mean(rounded, math.sqrt(variance / samples), int(hits))


def _moments(estimator: Estimator, epsilon: float, draws: Draws) -> tuple[float, float, float]:
    weights = np.exp(log_weights(estimator, draws, epsilon - estimator.loss_error))
    return float(np.count_nonzero(weights)), float(weights.sum()), float((weights**2).sum())
