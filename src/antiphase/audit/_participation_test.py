"""Tests whether batches are drawn as the guarantee assumes.

The test uses the steps in which canaries (artificial examples) took part.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from antiphase._accounting import Mechanism
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


def participation_test(mechanism: Mechanism, taking_part: Flags, level: float = 0.01) -> StatisticalTest:
    """Test whether the canaries took part as the participation promises. Each part of the test has its own p-value.

    | part | detects |
    |---|---|
    | promise | steps that the participation does not allow together, such as two that are too close; no false alarms |
    | rate | examples that are drawn too often or too rarely |
    | batch sizes | sizes that vary too little (shuffled examples) or too much (examples that are drawn together) |
    | counts | numbers of participations per canary that vary too little or too much |
    | bins | canaries that are spread over the bins (sets of steps) too unevenly or too evenly |

    The promise is always tested. `Poisson` and `CyclicPoisson` add the rate, batch sizes and counts, `FixedSize` and
    `PoissonMinSeparation` add the rate, and `BallsInBins` adds the bins. If the participation limits the batch size
    (`max_batch`), these parts are left out, but (cyclic) Poisson sampling is still tested for drawing too often.

    Args:
        mechanism: claimed mechanism.
        taking_part: entry [t, i] is True if the program used canary i in step t, shape (steps, canaries). This includes
            absent canaries. The program uses them like present ones, but they contribute zero or, under replace
            adjacency, the negative vector.
        level: largest probability of a false alarm.
    """
    given, flags = mechanism.participation, np.asarray(taking_part, np.bool_)
    broken = sum(not is_allowed(given, np.flatnonzero(flags[:, i]).tolist(), len(flags)) for i in range(flags.shape[1]))
    parts = [("promise", 0.0 if broken else 1.0)]
    groups = given.sampling_groups or 1
    if isinstance(given, FixedSize):
        assert mechanism.examples is not None
        members = mechanism.examples // groups, -(-mechanism.examples // groups)
        parts.append(("rate", _total(flags, groups, given.batch_size / members[1], given.batch_size / members[0])))
    elif isinstance(given, (Poisson, CyclicPoisson)) and given.max_batch is not None:
        parts.append(("rate", _total(flags, groups, 0.0, given.rate)))  # truncated batches contain fewer examples
    elif isinstance(given, (Poisson, CyclicPoisson)):
        parts += _drawn(flags, given.rate, groups)
    elif isinstance(given, PoissonMinSeparation) and given.max_batch is None:
        parts += _eligible(flags, given)
    elif isinstance(given, BallsInBins) and given.max_batch is None:
        parts += _bins(flags, given)
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
    tried = np.ones_like(flags) if groups == 1 else _after_first(flags, groups)
    hits = flags & tried
    return [
        ("rate", _binomial(int(hits.sum()), int(tried.sum()), rate)),
        ("batch sizes", _dispersion(hits.sum(axis=1), tried.sum(axis=1), rate)),
        ("counts", _dispersion(hits.sum(axis=0), tried.sum(axis=0), rate)),
    ]


def _after_first(flags: Flags, groups: int) -> Flags:
    """Return flags for the steps of each canary's group after the first step in which the canary took part.

    This first step reveals the group. Whether the canary joins later steps of its group does not depend on which step
    was the first.
    """
    steps, first = np.arange(len(flags))[:, None], np.where(flags.any(axis=0), flags.argmax(axis=0), len(flags))
    return (steps > first) & ((steps - first) % groups == 0)


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


def _eligible(flags: Flags, given: PoissonMinSeparation) -> list[tuple[str, float]]:
    last = np.full(flags.shape[1], -given.separation)
    joined = tried = 0
    for t, row in enumerate(flags):
        free = t - last >= given.separation
        if given.warm_start and t < given.separation:
            free &= last >= 0  # after a warm start, it is not known which canaries may take part at first
        joined += int((row & free).sum())
        tried += int(free.sum())
        last[row] = t
    return [("rate", _binomial(joined, tried, given.rate))]


def _bins(flags: Flags, given: BallsInBins) -> list[tuple[str, float]]:
    from scipy.special import chdtr, chdtrc

    b = min(given.steps_per_epoch, len(flags))
    first = flags[:b].sum(axis=0)
    if not (first == 1).all():
        return [("bins", 0.0)] if len(flags) >= given.steps_per_epoch else []
    counts = np.bincount(flags[:b].argmax(axis=0), minlength=b)
    expected = flags.shape[1] / b
    if expected < 2.0 or b < 2:
        return []
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return [("bins", min(1.0, 2.0 * float(min(chdtr(b - 1, statistic), chdtrc(b - 1, statistic)))))]


def _binomial(hits: int, trials: int, rate: float) -> float:
    from scipy.special import bdtr, bdtrc

    if trials == 0:
        return 1.0
    upper = float(bdtrc(hits - 1, trials, rate)) if hits > 0 else 1.0
    return min(1.0, 2.0 * min(float(bdtr(hits, trials, rate)), upper))


def _dispersion(counts: NDArray[np.int64], trials: NDArray[np.int64], rate: float) -> float:
    """Return the two-sided p-value of the spread of independent binomial counts around their claimed means.

    The statistic is the sum of squared deviations, each divided by the claimed variance of the count. The mean of the
    statistic is the number of counts, and its variance depends on the excess kurtosis of the binomial distribution. A
    scaled chi-squared distribution with this mean and variance approximates the tails of the statistic. Counts with a
    small variance are left out.
    """
    from scipy.special import chdtr, chdtrc

    variance = trials * rate * (1.0 - rate)
    used = variance >= 0.5
    if used.sum() < 3:
        return 1.0
    statistic = float(((counts - trials * rate)[used] ** 2 / variance[used]).sum())
    kurtosis = float(((1.0 - 6.0 * rate * (1.0 - rate)) / variance[used]).mean())
    shrink = 1.0 + kurtosis / 2.0  # variance of the sum is len * (2 + kurtosis)
    freedom = int(used.sum()) / shrink
    found = statistic / shrink
    return min(1.0, 2.0 * float(min(chdtr(freedom, found), chdtrc(freedom, found))))
