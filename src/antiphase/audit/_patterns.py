"""Random patterns of canaries. A pattern says in which steps a canary (artificial example) takes part.

Patterns are drawn directly from the definition of each participation, not with the samplers that draw training batches.
"""

from __future__ import annotations

import numpy as np

from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._participation import BallsInBins, CyclicPoisson, FixedSize, Poisson, PoissonMinSeparation


def random_patterns(mechanism: Mechanism, count: int, rng: np.random.Generator) -> Array:
    """Draw `count` patterns of a random participation. Entry [t, i] is 1 if canary i takes part in step t, else 0.

    If the participation splits the examples into groups that take turns, every canary is in group 0, which has the most
    steps.
    """
    given, n = mechanism.participation, mechanism.strategy.steps
    if isinstance(given, BallsInBins):
        b = given.steps_per_epoch
        return (np.arange(n)[:, None] % b == rng.integers(0, b, count)[None, :]).astype(np.float64)
    if isinstance(given, PoissonMinSeparation):
        return _separated(given, n, count, rng)
    assert isinstance(given, (Poisson, CyclicPoisson, FixedSize))
    if isinstance(given, FixedSize):
        assert mechanism.examples is not None
        rate = given.batch_size / (mechanism.examples // given.groups)
    else:
        rate = given.rate
    own = np.arange(n) % (given.sampling_groups or 1) == 0
    return (own[:, None] & (rng.random((n, count)) < rate)).astype(np.float64)


def _separated(given: PoissonMinSeparation, n: int, count: int, rng: np.random.Generator) -> Array:
    b, q = given.separation, given.rate
    # `eligible` is the next step in which each canary may be drawn. A warm start begins in the stationary distribution:
    # a canary is eligible at once, or took part in one of the separation - 1 steps before step 0.
    if given.warm_start:
        weights = np.array([1.0, *[q] * (b - 1)])
        eligible = rng.choice(b, size=count, p=weights / weights.sum())
    else:
        eligible = np.zeros(count, dtype=np.int64)
    out = np.zeros((n, count))
    for t in range(n):
        joins = (eligible <= t) & (rng.random(count) < q)
        out[t, joins] = 1.0
        eligible[joins] = t + b
    return out
