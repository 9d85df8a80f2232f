"""Tests whether batches are drawn as the guarantee assumes.

The test uses the steps in which canaries (artificial examples) took part.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

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
    """Test whether the canaries took part as the participation promises.

    | part | detects |
    |---|---|
    | promise | steps that the participation does not allow together, such as two that are too close; no false alarms |
    | rate | examples that are drawn too often or too rarely |
    | batch sizes | sizes that vary too little (shuffled examples) or too much (examples that are drawn together) |
    | counts | numbers of participations per canary that vary too little or too much |
    | bins | canaries that are spread over the bins (`BallsInBins`) too unevenly or too evenly |

    Args:
        mechanism: claimed mechanism.
        taking_part: entry [t, i] is True if the program used canary i in step t, shape (steps, canaries). This includes
            absent canaries. They are used like present ones, but contribute zero or, under replace adjacency, the
            negative vector.
        level: largest probability of a false alarm.
    """
    given, flags = mechanism.participation, np.asarray(taking_part, np.bool_)
    broken = sum(not is_allowed(given, np.flatnonzero(flags[:, i]).tolist(), len(flags)) for i in range(flags.shape[1]))
    parts = [("promise", 0.0 if broken else 1.0)]
    if isinstance(given, (Poisson, CyclicPoisson)) and given.max_batch is None:
        parts += _drawn(flags, given.rate, given.sampling_groups or 1)
    elif isinstance(given, PoissonMinSeparation) and given.max_batch is None:
        parts += _eligible(flags, given)
    elif isinstance(given, BallsInBins):
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
        whole = bool(steps) and steps == list(range(steps[0], n, given.steps_per_epoch))
        return whole if given.max_batch is None else all(gap % given.steps_per_epoch == 0 for gap in gaps)
    if isinstance(given, PoissonMinSeparation):
        return all(gap >= given.separation for gap in gaps)
    return True  # EveryStep and Poisson allow any steps


def _drawn(flags: Flags, rate: float, groups: int) -> list[tuple[str, float]]:
    """Return the parts of the test for independent draws, as (name, p-value).

    With several groups, only the part "rate" is returned, for the steps after a canary's first step.
    """
    if groups == 1:
        trials = flags
        total = _binomial(int(flags.sum()), flags.size, rate)
    else:
        seen = flags[:, flags.any(axis=0)]
        if seen.shape[1] == 0:
            return []
        group = seen.argmax(axis=0) % groups
        # A canary's first step reveals its group. Whether it joins later steps of the group is independent of this.
        later = np.arange(len(seen))[:, None] > seen.argmax(axis=0)[None, :]
        own = (np.arange(len(seen))[:, None] % groups == group[None, :]) & later
        return [("rate", _binomial(int((seen & own).sum()), int(own.sum()), rate))]
    parts = [("rate", total)]
    parts.append(("batch sizes", _dispersion(trials.sum(axis=1), trials.shape[1], rate)))
    parts.append(("counts", _dispersion(trials.sum(axis=0), trials.shape[0], rate)))
    return parts


def _eligible(flags: Flags, given: PoissonMinSeparation) -> list[tuple[str, float]]:
    last = np.full(flags.shape[1], -given.separation)
    joined = tried = 0
    for t, row in enumerate(flags):
        free = t - last >= given.separation
        if given.warm_start and t < given.separation:
            free &= last >= 0  # eligibility at a warm start is not known
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


def _dispersion(counts: Flags, trials: int, rate: float) -> float:
    """Return the two-sided p-value of the variance of independent binomial counts, by a scaled chi-squared law.

    The statistic is the sum of squared deviations, divided by the claimed variance of a count. Its mean is len(counts),
    and its variance depends on the excess kurtosis of the binomial distribution. A scaled chi-squared law with the same
    mean and variance fits its tails.
    """
    from scipy.special import chdtr, chdtrc

    variance = trials * rate * (1.0 - rate)
    if variance < 0.5 or len(counts) < 3:
        return 1.0
    statistic = float(((counts - trials * rate) ** 2).sum() / variance)
    kurtosis = (1.0 - 6.0 * rate * (1.0 - rate)) / variance
    shrink = 1.0 + kurtosis / 2.0  # variance of the sum is len * (2 + kurtosis)
    freedom = len(counts) / shrink
    found = statistic / shrink
    return min(1.0, 2.0 * float(min(chdtr(freedom, found), chdtrc(freedom, found))))
