"""Tests whether batches are drawn as the guarantee assumes.

The test uses the steps in which canaries (artificial examples) took part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._measured import StatisticalTest
from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    FixedEpochs,
    FixedSize,
    MinSeparation,
    Participation,
    Poisson,
    PoissonMinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase.audit._release import Flags

RESOLUTION = 16  # `_dispersion` rounds its terms to multiples of 1 / 16
NEGLIGIBLE = 1e-15  # probability of a tail that may be left out of a distribution
ACCURACY = 1e-9  # added to p-values for the rounding errors of convolutions
MOST_SIMULATIONS = 1_000_000
CHUNK = 100_000  # number of counts to simulate at a time

Counts = NDArray[np.int64]


def participation_test(
    mechanism: Mechanism, taking_part: Flags, level: float = 0.01, *, single_run: bool = True, seed: int = 0
) -> StatisticalTest:
    """Test whether the canaries took part as the participation promises. Each part of the test has its own p-value.

    **Guarantee**: if the batches are drawn as claimed, the test raises an alarm with probability at most `level`, for
    any number of steps and canaries.

    | part | detects |
    |---|---|
    | promise | steps that the participation does not allow together, such as two that are too close; no false alarms |
    | rate | examples that are drawn too often or too rarely |
    | batch sizes | sizes that vary too little (shuffled examples) or too much (examples that are drawn together) |
    | counts | numbers of participations per canary that vary too little or too much |
    | bins | canaries that are spread over the bins (sets of steps) too unevenly or too evenly |

    The promise is always tested. `Poisson` and `CyclicPoisson` add the rate, batch sizes and counts, `FixedSize` and
    `PoissonMinSeparation` add the rate, and `BallsInBins` adds the bins. `FixedSize` with one group also adds counts
    and, for a single run, batch sizes. If the participation limits the batch size (`max_batch`), these parts are left
    out, but (cyclic) Poisson sampling is still tested for drawing too often.

    Args:
        mechanism: claimed mechanism.
        taking_part: entry [t, i] is True if the program used canary i in step t, shape (steps, canaries). This includes
            absent canaries. The program uses them like present ones, but they contribute zero or, under replace
            adjacency, the negative vector.
        level: largest probability of a false alarm. The part "bins" cannot depart at levels below 4e-6.
        single_run: whether all canaries were in the same run.
        seed: seed of the simulation for the part "bins".
    """
    given, flags = mechanism.participation, np.asarray(taking_part, np.bool_)
    broken = sum(not is_allowed(given, np.flatnonzero(flags[:, i]).tolist(), len(flags)) for i in range(flags.shape[1]))
    parts = [("promise", 0.0 if broken else 1.0)]
    groups = given.sampling_groups or 1
    if isinstance(given, FixedSize):
        assert mechanism.examples is not None
        parts += _fixed_size(flags, given, mechanism.examples, single_run)
    elif isinstance(given, (Poisson, CyclicPoisson)) and given.max_batch is not None:
        parts.append(("rate", _total(flags, groups, 0.0, given.rate)))  # truncated batches contain fewer examples
    elif isinstance(given, (Poisson, CyclicPoisson)):
        parts += _drawn(flags, given.rate, groups)
    elif isinstance(given, PoissonMinSeparation) and given.max_batch is None:
        parts.append(("rate", _eligible(flags, given)))
    elif isinstance(given, BallsInBins) and given.max_batch is None:
        parts.append(("bins", _bins(flags, given.steps_per_epoch, level, seed)))
    return StatisticalTest("participation", tuple(parts), level, int(flags.size))


def is_allowed(given: Participation, steps: list[int], n: int) -> bool:  # noqa: PLR0911
    """Return whether an example may take part in exactly the given steps, in a run of `n` steps."""
    gaps = [b - a for a, b in pairwise(steps)]
    if isinstance(given, SingleParticipation):
        return len(steps) <= 1
    if isinstance(given, FixedEpochs):
        return all(gap % given.steps_per_epoch == 0 for gap in gaps)
    if isinstance(given, ShuffledEpochs):
        return len({step // given.steps_per_epoch for step in steps}) == len(steps)
    if isinstance(given, MinSeparation):
        return all(gap >= given.separation for gap in gaps) and len(steps) <= given.largest_count(n)
    if isinstance(given, (CyclicPoisson, FixedSize)):
        return all(gap % given.groups == 0 for gap in gaps)
    if isinstance(given, BallsInBins):
        if given.max_batch is not None:
            return all(gap % given.steps_per_epoch == 0 for gap in gaps)
        first = steps[0] if steps else n  # in a run of less than an epoch, some bins have no step
        return first < given.steps_per_epoch and steps == list(range(first, n, given.steps_per_epoch))
    if isinstance(given, PoissonMinSeparation):
        return all(gap >= given.separation for gap in gaps)
    return True  # EveryStep and Poisson allow any steps


def _drawn(flags: Flags, rate: float, groups: int) -> list[tuple[str, float]]:
    """Return the parts of the test for independent draws, as (name, p-value)."""
    from scipy.stats import binom

    of_trials = partial(binom, p=rate)
    tried = np.ones_like(flags) if groups == 1 else _after_first(flags, groups)
    hits = flags & tried
    return [
        ("rate", _binomial(int(hits.sum()), int(tried.sum()), rate)),
        ("batch sizes", _dispersion(hits.sum(axis=1), tried.sum(axis=1), of_trials)),
        ("counts", _dispersion(hits.sum(axis=0), tried.sum(axis=0), of_trials)),
    ]


def _after_first(flags: Flags, groups: int) -> Flags:
    """Return flags for the steps of each canary's group after the first step in which the canary took part.

    This first step reveals the group. Whether the canary joins later steps of its group does not depend on which step
    was the first.
    """
    steps, first = np.arange(len(flags))[:, None], np.where(flags.any(axis=0), flags.argmax(axis=0), len(flags))
    return (steps > first) & ((steps - first) % groups == 0)


def _fixed_size(flags: Flags, given: FixedSize, examples: int, single_run: bool) -> list[tuple[str, float]]:
    """Return the parts of the test for batches of a fixed size, as (name, p-value)."""
    from scipy.stats import hypergeom

    (steps, canaries), groups = flags.shape, given.groups
    low, high = given.batch_size / -(-examples // groups), given.batch_size / (examples // groups)
    parts = [("rate", _total(flags, groups, low, high))]
    if groups == 1:
        parts.append(("counts", _total(_drawn_most(flags), 1, low, high)))
    if groups == 1 and single_run and canaries <= examples:
        drawn_from = partial(hypergeom, examples, N=given.batch_size)
        parts.append(("batch sizes", _dispersion(flags.sum(axis=1), np.full(steps, canaries), drawn_from)))
    return parts


def _drawn_most(flags: Flags) -> Flags:
    """Return, for each step, the flags of the half of the canaries that was drawn most often in earlier steps.

    If steps are independent, this half is drawn with the same probability as any other.
    """
    before: Counts = np.cumsum(flags, axis=0) - flags
    half = np.argsort(-before, axis=1, kind="stable")[:, : flags.shape[1] // 2]
    return np.take_along_axis(flags, half, axis=1)


def _total(flags: Flags, groups: int, low: float, high: float) -> float:
    """Return the p-value of the number of participations, for sampling rates between `low` and `high`.

    Given the groups, the number of canaries in a batch is binomial, or hypergeometric for fixed-size batches. The
    Chernoff bound of the binomial distribution holds for both (Hoeffding 1963, Thm 4). As an upper bound, it also holds
    for truncated batches, which contain fewer canaries. The groups are unknown, but in n steps, each group has
    n // groups steps or one more.
    """
    hits, (steps, canaries) = int(flags.sum()), flags.shape
    most, fewest = -(-steps // groups) * canaries, steps // groups * canaries
    above = most * _divergence(hits / most, high) if hits > most * high else 0.0
    below = fewest * _divergence(hits / fewest, low) if hits < fewest * low else 0.0
    return min(1.0, 2.0 * math.exp(-max(above, below)))


def _divergence(share: float, rate: float) -> float:
    """Return the Kullback-Leibler divergence of two Bernoulli distributions."""
    from scipy.special import rel_entr

    return float(rel_entr(share, rate) + rel_entr(1.0 - share, 1.0 - rate))


def _eligible(flags: Flags, given: PoissonMinSeparation) -> float:
    """Return the two-sided p-value of the number of participations with a minimum separation.

    After a warm start, it is not known which canaries may take part at first. From step `separation` on, a canary may
    take part as soon as its last participation is far enough away.
    """
    n, early = len(flags), flags[: given.separation]
    start, hits = np.zeros(flags.shape[1], np.int64), int(flags.sum())
    if given.warm_start:
        start = given.separation + np.where(early.any(axis=0), early.argmax(axis=0), 0)
        hits -= int(early.any(axis=0).sum())
    total = np.ones(1)
    for left, repeats in zip(*np.unique(np.maximum(n - start, 0), return_counts=True), strict=True):
        total = _convolved(total, _repeated(_participations(int(left), given), int(repeats)))
    return _two_sided(total, hits)


def _participations(steps: int, given: PoissonMinSeparation) -> Array:
    """Return the distribution of the number of participations of a canary that is eligible in the first of the steps.

    It takes part k times or more if at least k of its first steps - (k - 1) (separation - 1) draws succeed: each of the
    first k - 1 participations costs separation - 1 steps without a draw.
    """
    from scipy.stats import binom

    k = np.arange(1, -(-steps // given.separation) + 1)
    at_least = binom.sf(k - 1, steps - (k - 1) * (given.separation - 1), given.rate)
    return -np.diff(np.concatenate([[1.0], at_least, [0.0]]))


def _bins(flags: Flags, bins: int, level: float, seed: int) -> float:
    """Return the two-sided p-value of the chi-squared statistic of the bins.

    The p-value is the rank of the statistic among simulated ones, so it is valid for any number of canaries. The
    simulation ends when the bins can no longer depart at `level`. In a run of less than an epoch, all canaries whose
    bin has no step are counted as one bin.
    """
    counts, canaries = flags[:bins].sum(axis=1), flags.shape[1]
    shares = np.full(len(counts), 1.0 / bins)
    if len(flags) < bins:
        counts = np.append(counts, canaries - counts.sum())
        shares = np.append(shares, 1.0 - len(flags) / bins)

    def statistic(counts: Counts) -> Array:
        return np.asarray(((counts - canaries * shares) ** 2 / shares).sum(axis=-1))

    rng, found = np.random.default_rng(seed), float(statistic(counts))
    drawn = more = fewer = 0
    while drawn < MOST_SIMULATIONS and drawn * level < 40 and min(more, fewer) < 40:
        simulated = statistic(rng.multinomial(canaries, shares, max(1, CHUNK // len(shares))))
        drawn += len(simulated)
        more += int((simulated >= found * (1.0 - ACCURACY)).sum())
        fewer += int((simulated <= found * (1.0 + ACCURACY)).sum())
    return min(1.0, 2.0 * (1 + min(more, fewer)) / (1 + drawn))


def _binomial(hits: int, trials: int, rate: float) -> float:
    from scipy.special import bdtr, bdtrc

    if trials == 0:
        return 1.0
    upper = float(bdtrc(hits - 1, trials, rate)) if hits > 0 else 1.0
    return min(1.0, 2.0 * min(float(bdtr(hits, trials, rate)), upper))


def _dispersion(counts: Counts, trials: Counts, of_trials: Callable[[int], Any]) -> float:
    """Return the two-sided p-value of the spread of independent counts around their claimed means.

    The statistic is the sum of squared deviations, each divided by the claimed variance (or by 1, if that is more).
    These terms are rounded to multiples of 1 / `RESOLUTION`, so that the exact distribution of their sum is a
    convolution on a grid.

    Args:
        counts: observed counts.
        trials: number of trials of each count.
        of_trials: function that returns the claimed distribution (of scipy.stats) for a number of trials.
    """
    found, total = 0, np.ones(1)
    for kind, repeats in zip(*np.unique(trials, return_counts=True), strict=True):
        values, chances = _table(of_trials(int(kind)))
        mean = float(values @ chances)
        scale = RESOLUTION / max(1.0, float((values - mean) ** 2 @ chances))
        terms = np.rint((values - mean) ** 2 * scale).astype(np.int64)
        found += int(np.rint((counts[trials == kind] - mean) ** 2 * scale).sum())
        one = np.bincount(terms, chances).astype(np.float64)
        total = _convolved(total, _repeated(one, int(repeats)))
    return _two_sided(total, found)


def _two_sided(total: Array, found: int) -> float:
    """Return the two-sided p-value of an integer with distribution `total`, perhaps without a negligible upper tail."""
    at_least, at_most = 1.0 - total[:found].sum(), 1.0 - total[found + 1 :].sum()  # both include what was left out
    return min(1.0, 2.0 * max(0.0, float(min(at_least, at_most))) + ACCURACY)


def _table(distribution: Any) -> tuple[Counts, Array]:
    """Return the values of a distribution of scipy.stats and their probabilities, without negligible tails."""
    values = np.arange(distribution.ppf(NEGLIGIBLE), distribution.isf(NEGLIGIBLE) + 1).astype(np.int64)
    return values, distribution.pmf(values)


def _repeated(one: Array, times: int) -> Array:
    """Return the distribution of the sum of `times` independent integers that all have distribution `one`."""
    total = np.ones(1)
    for bit in f"{times:b}":
        total = _convolved(total, total)
        if bit == "1":
            total = _convolved(total, one)
    return total


def _convolved(a: Array, b: Array) -> Array:
    """Return the distribution of the sum of two independent integers, without its negligible upper tail."""
    from scipy.signal import fftconvolve

    total = fftconvolve(a, b)
    tails = np.cumsum(total[::-1])[::-1]
    return np.asarray(total[: np.flatnonzero(tails > NEGLIGIBLE)[-1] + 1])
