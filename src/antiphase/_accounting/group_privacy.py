"""Group privacy: guarantees for several examples together, such as all devices of one user."""

from __future__ import annotations

import math
from dataclasses import replace

from antiphase import _check
from antiphase._accounting.budget import check_delta
from antiphase._accounting.guarantee import epsilon
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.poisson import PoissonSampled
from antiphase._accounting.reduction import SMALLEST_MULTIPLIER
from antiphase._accounting.standard_mechanism import Gaussian, StandardMechanism
from antiphase._bound import Bound, worst_kind

MAX_BISECTIONS = 60


def group_epsilon(mechanism: Mechanism, size: int, delta: float) -> Bound:
    """Return the epsilon that protects a group of `size` examples together, such as all devices of one user.

    Without amplification, a group of k examples changes C x by at most k times the sensitivity. The guarantee is then
    the guarantee of a single example with 1 / k of the noise. With Poisson or fixed-size sampling, an (eps, d)
    guarantee for one example gives (k eps, d (e^(k eps) - 1) / (e^eps - 1)) for a group of k. The function uses the
    best eps. For k > 1, `BallsInBins` and `PoissonMinSeparation` are accounted for without amplification.

    **Guarantee**: holds under the mechanism's adjacency, applied to the whole group. Without amplification, the result
    is exact if all members of a group can take part in the same steps. Deterministic participations allow that.

    Args:
        mechanism: the mechanism; its participation describes one example.
        size: number of examples in the group, k.
        delta: delta of the guarantee for the group, between 0 and 1.

    >>> from antiphase import SingleParticipation, strategies
    >>> device = Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=3.0)
    >>> round(group_epsilon(device, 3, 1e-6).value, 4)
    4.8866

    Reference: Dong, Roth and Su 2019, Thm 2.14 (Gaussian); Vadhan 2017, Lemma 2.2.
    """
    k = _check.positive_integer("group_epsilon", "size", size, "use 1 for the guarantee of a single example")
    target = check_delta("group_epsilon", delta)
    if k == 1:
        return epsilon(mechanism, target)
    reduction = mechanism.reduction
    release = reduction.release(mechanism.noise_std)
    if isinstance(release, Gaussian):
        value = release.with_multiplier(max(release.multiplier / k, SMALLEST_MULTIPLIER)).epsilon(target)
        return reduction.bound(value, f"{release.method} for a group of {k}")
    found = reduction.bound(_generic(_for_group(release, k), k, target), f"{release.method}, group privacy for {k}")
    return Bound(
        found.value, worst_kind([found.kind, "upper"]), found.method, f"{found.reference}; Vadhan 2017, Lemma 2.2"
    )


def _for_group(release: StandardMechanism, k: int) -> StandardMechanism:
    """Return the mechanism, with k - 1 more examples if its batches are truncated.

    Group privacy changes one example at a time, and the intermediate data sets may contain up to k - 1 more examples.
    """
    if isinstance(release, PoissonSampled) and release.truncation is not None:
        larger = replace(release.truncation, examples=release.truncation.examples + k - 1)
        return replace(release, truncation=larger)
    return release


def _generic(release: StandardMechanism, k: int, delta: float) -> float:
    """Return the smallest k eps with d(eps) (e^(k eps) - 1) / (e^eps - 1) <= delta, where d(eps) = release.delta(eps).

    The bisection assumes that d decreases faster than the other factor grows. If this is not true, the result may not
    be the smallest, but it is still valid, because every eps that satisfies the inequality gives a valid guarantee.
    """

    def holds(e: float) -> bool:
        found = release.delta(e)
        return found == 0.0 or math.log(found) + log_growth(e, k) <= math.log(delta)

    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2.0 * high
        if high > 1e4:
            return math.inf
    for _ in range(MAX_BISECTIONS):
        middle = (low + high) / 2.0
        if high - low <= 1e-6 * high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return k * high


def log_growth(epsilon: float, k: int) -> float:
    """Return log((e^(k epsilon) - 1) / (e^epsilon - 1)).

    >>> round(log_growth(1e-12, 3), 9) == round(math.log(3), 9)
    True
    """
    return (k - 1) * epsilon + math.log(-math.expm1(-k * epsilon)) - math.log(-math.expm1(-epsilon))
