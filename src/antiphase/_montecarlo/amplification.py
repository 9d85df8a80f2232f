"""Amplified guarantees for `BallsInBins` and `PoissonMinSeparation`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

from antiphase import _check
from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._errors import NotProved, enough_memory
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.guarantee import pair_delta, pair_epsilon, pair_noise
from antiphase._montecarlo.min_separation import separated_pair
from antiphase._montecarlo.modes import bins_gram
from antiphase._montecarlo.pair import Pair
from antiphase._montecarlo.plain_sampling import plain_delta, verify_plain
from antiphase._montecarlo.samples import child, randomness
from antiphase._montecarlo.settings import MonteCarlo
from antiphase._montecarlo.verification import verify_pair
from antiphase._participation import BallsInBins, Participation, PoissonMinSeparation
from antiphase._sensitivity import column_norms, sensitivity
from antiphase.strategies import Strategy

Amplified = BallsInBins | PoissonMinSeparation
DELTA, EPSILON, CALIBRATE, VERIFY, ESTIMATE = range(5)  # separate seed branches, so that no two functions share samples
MAX_ATTEMPTS = 10**6
LARGEST_EPSILON = 1e4
SMALLEST_NOISE, LARGEST_NOISE = 1e-140, 1e140  # the squares of numbers outside this range overflow or lose precision


def dominating_pair(strategy: Strategy, participation: Amplified, noise_std: float) -> Pair:
    """Return the pair of distributions that dominates the mechanism, under zero-out and add-or-remove adjacency.

    The delta of the mechanism is at most the delta of this pair, at every epsilon.

    Raises `NotProved` if batches are truncated (`max_batch`). A sampled example may then displace another example, even
    if its own contribution is zero, so neither of the two distributions is pure noise. Truncation is handled by
    `_accounting/amplified.py`, which knows the number of examples.

    Args:
        strategy: strategy matrix, C.
        participation: random participation of one example.
        noise_std: standard deviation of the noise z in C x + z.
    """
    if participation.max_batch is not None:
        raise NotProved(
            f"Amplification is not proved for {type(participation).__name__} with max_batch: a sampled example can "
            "displace another one from its batch.",
            hint="use antiphase.epsilon with Mechanism(..., examples=...), or use max_batch=None",
        )
    noise = _positive("noise_std", noise_std)
    hint = f"use fewer steps, or {participation.worst_case}, which has no amplification"
    with enough_memory(f"account for {participation} over {strategy.steps:,} steps", hint=hint):
        return _PAIRS[type(participation)](strategy, participation, noise)


def delta(
    strategy: Strategy,
    participation: Amplified,
    noise_std: float,
    epsilon: float,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """Return the delta at which the mechanism is (epsilon, delta)-differentially private.

    **Guarantee**: holds under zero-out and add-or-remove adjacency. An "upper" bound is proved. A "confident" bound is
    the sum of a confidence limit and the probability that this limit fails, over the randomness of this call. That
    probability is a thousandth of the estimated delta. The result is never 0.

    Args:
        strategy: strategy matrix, C. The accounting uses the absolute values of its entries.
        participation: `BallsInBins` with a causal C, or `PoissonMinSeparation` with at most `separation` bands in C.
        noise_std: standard deviation of the noise z in C x + z.
        epsilon: epsilon at which to state delta, non-negative.
        sampling: Monte Carlo settings. Without a seed, fresh entropy is drawn.

    >>> from antiphase import BallsInBins, strategies
    >>> bound = delta(strategies.Identity(16), BallsInBins(1, 16), 1.0, epsilon=1.7884)
    >>> round(bound.value * 1e5, 2), bound.kind
    (1.0, 'upper')
    """
    pair = dominating_pair(strategy, participation, noise_std)
    return pair_delta(pair, _epsilon("delta", epsilon), randomness(sampling.seed, DELTA), sampling)


def epsilon(
    strategy: Strategy,
    participation: Amplified,
    noise_std: float,
    delta: float,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """Return the epsilon at which the mechanism is (epsilon, delta)-differentially private. Arguments as for `delta`.

    **Guarantee**: as for `verify` with the claim (epsilon, delta), where epsilon is the returned value.
    """
    pair = dominating_pair(strategy, participation, noise_std)
    return pair_epsilon(pair, _probability("epsilon", delta), randomness(sampling.seed, EPSILON), sampling)


def calibrate(
    strategy: Strategy,
    participation: Amplified,
    epsilon: float,
    delta: float,
    sampling: MonteCarlo = MonteCarlo(),
    settle: Callable[[float], Bound] | None = None,
) -> tuple[float, Bound]:
    """Return roughly the smallest noise_std that satisfies (epsilon, delta), and epsilon at that noise as a bound.

    The search starts from the noise at which a bound that needs no samples meets the budget. It then looks for less
    noise with estimates of delta, which use the same random numbers at every noise level. By default, the result is
    verified with fresh random numbers.

    **Guarantee**: the returned bound on epsilon is the result of `settle` at the returned noise, and it has the
    guarantee that `settle` gives.

    Args:
        strategy: strategy matrix, C.
        participation: as for `delta`.
        epsilon: epsilon of the budget.
        delta: delta of the budget.
        sampling: Monte Carlo settings.
        settle: function that returns a bound on epsilon at a noise level; by default, the bound of `epsilon`.
    """
    target, at = _epsilon("calibrate", epsilon), _probability("calibrate", delta)
    scale = float(column_norms(strategy).max())
    pair, seed = dominating_pair(strategy, participation, scale), randomness(sampling.seed, CALIBRATE)
    tries = itertools.count(1)

    def verified(noise: float) -> Bound:
        return pair_epsilon(pair.at(noise), at, child(seed, next(tries)), sampling)

    return pair_noise(pair, target, at, child(seed, 0), sampling, settle or verified)


def verify(
    strategy: Strategy,
    participation: Amplified,
    noise_std: float,
    epsilon: float,
    delta: float,
    *,
    method: Literal["certified", "plain"] = "certified",
    tau: float = 1.25,
    attempt: int = 1,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """Verify a claim, fixed in advance, with fresh samples. Return delta as a bound, or raise `Refused`.

    **Guarantee**: a program that releases the mechanism's output only if this function returns is (epsilon,
    delta)-differentially private. Delta includes the failure probability, which is a thousandth of delta for all
    attempts together. No part of the claim may depend on the samples of this call.

    Args:
        strategy: strategy matrix, C.
        participation: as for `delta`.
        noise_std: standard deviation of the noise z in C x + z.
        epsilon: epsilon of the claim.
        delta: delta of the claim.
        method: "certified" for importance-weighted samples, or "plain" for unweighted samples with Bernstein's
            inequality.
        tau: for "plain", the factor by which the estimate must be below delta.
        attempt: 1 for the first verification that could lead to this release, 2 for the second, and so on. Attempt r
            spends a fraction 2^-r of the failure probability.
        sampling: Monte Carlo settings; "plain" always draws all samples.

    Reference: Wang et al. 2023, Thm. 9; Choquette-Choo et al. 2025 (near-exact amplification), Alg. 1, Thms. 2.1, 2.2.
    """
    claim = _epsilon("verify", epsilon), _probability("verify", delta)
    attempt = _check.positive_integer("verify", "attempt", attempt, "count attempts from 1")
    if attempt > MAX_ATTEMPTS:
        raise invalid(
            "verify", "attempt", f"at most {MAX_ATTEMPTS}", attempt, "no failure probability is left; add noise"
        )
    pair, fresh = dominating_pair(strategy, participation, noise_std), randomness(sampling.seed, VERIFY, attempt)
    if method == "certified":
        return verify_pair(pair, *claim, attempt, fresh, sampling)
    if method == "plain":
        factor = _check.real("verify", "tau", tau, 1.0, 1e6, "use a factor such as 1.25")
        return verify_plain(pair, *claim, factor, sampling.samples or pair.samples, attempt, fresh, sampling.workers)
    raise invalid("verify", "method", "'certified' or 'plain'", method, "use 'certified', which needs fewer samples")


def estimate(
    strategy: Strategy,
    participation: Amplified,
    noise_std: float,
    epsilon: float,
    *,
    samples: int = 1 << 20,
    seed: int | None = None,
    workers: int = -1,
) -> Bound:
    """Return an estimate of delta from plain sampling. It is not a proved bound.

    The result is the larger of the estimates for removal and addition. Raises `AntiphaseError` if no sample has a
    privacy loss above epsilon.

    Args:
        strategy: strategy matrix, C.
        participation: random participation of one example.
        noise_std: standard deviation of the noise z in C x + z.
        epsilon: epsilon at which to estimate delta, non-negative.
        samples: number of samples for each of removal and addition.
        seed: seed of the samples; None draws fresh entropy.
        workers: joblib's n_jobs; -1 for all cores.
    """
    pair = dominating_pair(strategy, participation, noise_std)
    return plain_delta(pair, _epsilon("estimate", epsilon), samples, randomness(seed, ESTIMATE), workers)


def _bins_pair(strategy: Strategy, participation: BallsInBins, noise_std: float) -> Pair:
    try:
        # If C has negative entries, sens(C) can be smaller than the norms of the modes. (The mode of a bin is the sum
        # of the columns of |C| at the steps of the bin.)
        unamplified = sensitivity(strategy, participation.worst_case).value
    except NotProved:
        unamplified = math.inf
    return bins_pair(bins_gram(strategy, participation), noise_std, unamplified)


def _separated_pair(strategy: Strategy, participation: PoissonMinSeparation, noise_std: float) -> Pair:
    return separated_pair(strategy, participation, noise_std, sensitivity(strategy, participation.worst_case).value)


# Theorems cover each of these pairs (`_accounting/theorems.py`).
_PAIRS: dict[type[Participation], Callable[[Strategy, Any, float], Pair]] = {
    BallsInBins: _bins_pair,
    PoissonMinSeparation: _separated_pair,
}


def _positive(name: str, value: float) -> float:
    hint = "privacy needs noise; if noise_std is out of range, multiply C and noise_std by the same number"
    return _check.real("dominating_pair", name, value, SMALLEST_NOISE, LARGEST_NOISE, hint)


def _epsilon(owner: str, value: float) -> float:
    return _check.real(owner, "epsilon", value, 0.0, LARGEST_EPSILON, "pass a number of at least 0")


def _probability(owner: str, value: float) -> float:
    return _check.real(owner, "delta", value, 1e-200, 1.0 - 1e-16, "pass a small probability such as 1e-6")
