"""Guarantees of a single mechanism: (epsilon, delta), zero-concentrated and Gaussian differential privacy."""

from __future__ import annotations

import math

from antiphase._accounting.amplified import amplified_delta, amplified_epsilon, fresh_entropy
from antiphase._accounting.budget import check_delta, check_epsilon
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.standard_mechanism import Gaussian
from antiphase._bound import Bound
from antiphase._errors import NotProved
from antiphase._montecarlo import MonteCarlo, check_sampling

SMALLEST_SQUARED, LARGEST_SQUARED = 1e-150, 1e150  # numbers between these can be squared without loss of precision


def epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo = MonteCarlo()) -> Bound:
    """Return the epsilon at which the mechanism is (epsilon, delta)-differentially private.

    **Guarantee**: holds under the mechanism's adjacency. Except for the failure probability of "confident" bounds, the
    result is never below the true epsilon, which is the smallest epsilon that holds.

    - The bound is "exact" for a single Gaussian mechanism with an exact sensitivity, and "upper" for Poisson and
      fixed-size sampling.
    - For Poisson sampling with a rate of 0.001 or more, the bound is within 1e-4 of the true epsilon. At lower rates,
      the accountant uses a coarser grid of privacy losses, and the bound is up to 2 % above the true epsilon.
    - Any delta down to 1e-300 is supported. `BallsInBins` and `PoissonMinSeparation` raise an error for delta below
      1e-200.
    - For `BallsInBins` and `PoissonMinSeparation`, the bound is "confident" if samples certify a smaller epsilon than
      every bound that needs no samples. A "confident" bound can be below the true epsilon with a small probability over
      the entropy drawn in this call. Delta includes that probability, even if you choose the best of 1,000 such bounds.
    - For `BallsInBins` and `PoissonMinSeparation` with `max_batch`, delta also includes the probability that a batch
      overflows. If that probability is too large, zero-out adjacency is accounted for without amplification, and
      add-or-remove raises an error.

    All of this assumes ideal Gaussian noise: real numbers, neither rounded nor truncated. `Run.report` states the
    guarantee for the noise of an actual run.

    Args:
        mechanism: the mechanism that runs.
        delta: delta at which to state epsilon, between 0 and 1, both excluded.
        sampling: Monte Carlo settings for a sampled bound.

    >>> from antiphase import Poisson, SingleParticipation, strategies
    >>> bound = epsilon(Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=1.0), 1e-6)
    >>> round(bound.value, 4), bound.kind
    (4.8866, 'exact')
    >>> round(epsilon(Mechanism(strategies.Identity(1000), Poisson(0.01), noise_std=1.0), 1e-6).value, 2)
    2.12

    Reference: docs/accounting.md lists the theorem for each combination.
    """
    target = check_delta("epsilon", delta)
    if mechanism.reduction.theorem.amplified:
        given = check_sampling("epsilon", sampling)
        return amplified_epsilon(mechanism, target, given, fresh_entropy(given))
    return _proved_epsilon(mechanism, target)


def seeded_epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo = MonteCarlo()) -> Bound:
    """Return the bound of `epsilon`, but with seeds that are hashes of the arguments instead of fresh entropy.

    The same arguments give the same bound. Use this function for plans that were stored without entropy, and in
    searches. The result of a search must be certified with fresh entropy afterwards.
    """
    if mechanism.reduction.theorem.amplified:
        return amplified_epsilon(mechanism, delta, sampling)
    return _proved_epsilon(mechanism, delta)


def _proved_epsilon(mechanism: Mechanism, target: float) -> Bound:
    release = mechanism.reduction.release(mechanism.noise_std)
    return mechanism.reduction.bound(release.epsilon(target), release.method)


def epsilon_after(
    mechanism: Mechanism,
    steps: int,
    delta: float,
    whole: Bound | None = None,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """Return the epsilon of the first `steps` steps.

    It is the epsilon of `mechanism.first(steps)` or of the full run, whichever is smaller.

    Let t = `steps`. The guarantee of the full run of n steps also covers its first t steps, because the first t outputs
    are a function of all n outputs. Stopping early does not change the joint distribution of the first t outputs,
    because a run samples its batches as for n steps, and each gradient depends only on earlier steps. This also holds
    if the outputs decide when to stop.

    **Guarantee**: never above the epsilon of the full run. `Mechanism.first` states how t may be chosen. If both
    epsilons come from samples, taking the smaller one is a choice between two bounds. Delta allows for a choice among
    1,000 bounds (see `epsilon`).

    Args:
        mechanism: the full run as planned.
        steps: number of steps released, at least 1.
        delta: delta at which to state epsilon, between 0 and 1.
        whole: the bound epsilon(mechanism, delta), if already known.
        sampling: Monte Carlo settings for a sampled bound.
    """
    part = mechanism.first(steps)
    full = epsilon(mechanism, delta, sampling) if whole is None else whole
    return min(full, full if part is mechanism else epsilon(part, delta, sampling), key=lambda bound: bound.value)


def delta(mechanism: Mechanism, epsilon: float, sampling: MonteCarlo = MonteCarlo()) -> Bound:
    """Return the delta at which the mechanism is (epsilon, delta)-differentially private.

    **Guarantee**: as for `epsilon`.

    Args:
        mechanism: the mechanism that runs.
        epsilon: epsilon at which to state delta, greater than 0.
        sampling: Monte Carlo settings for a sampled bound.

    >>> from antiphase import SingleParticipation, strategies
    >>> round(delta(Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=1.0), 1.0).value, 6)
    0.126937
    """
    target = check_epsilon("delta", epsilon)
    if mechanism.reduction.theorem.amplified:
        given = check_sampling("delta", sampling)
        return amplified_delta(mechanism, target, given, fresh_entropy(given))
    release = mechanism.reduction.release(mechanism.noise_std)
    return mechanism.reduction.bound(release.delta(target), release.method)


def zcdp(mechanism: Mechanism) -> Bound:
    """Return the rho of zero-concentrated differential privacy (zCDP), without amplification.

    It is 1 / (2 m^2), where m is the noise multiplier.

    Args:
        mechanism: the mechanism that runs.

    Reference: Bun and Steinke 2016, Prop. 1.6.

    >>> from antiphase import SingleParticipation, strategies
    >>> zcdp(Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=2.0)).value
    0.125
    """
    multiplier = _gaussian(mechanism, "zcdp").multiplier
    rho = 0.5 / multiplier**2 if SMALLEST_SQUARED < multiplier < LARGEST_SQUARED else _extreme_rho(1.0 / multiplier)
    return mechanism.reduction.bound(rho, "rho of a Gaussian")


def _extreme_rho(mu: float) -> float:
    """Return mu^2 / 2, rounded up: infinity if it overflows, and the smallest positive float if it underflows."""
    return math.nextafter(mu * (mu / 2.0) * (1.0 + 1e-14), math.inf)


def gdp(mechanism: Mechanism) -> Bound:
    """Return the mu of Gaussian differential privacy (GDP), without amplification.

    It is 1 / m, where m is the noise multiplier.

    Args:
        mechanism: the mechanism that runs.

    Reference: Dong, Roth and Su 2019, Thm 2.7.

    >>> from antiphase import SingleParticipation, strategies
    >>> gdp(Mechanism(strategies.Identity(10), SingleParticipation(), noise_std=2.0)).value
    0.5
    """
    return mechanism.reduction.bound(1.0 / _gaussian(mechanism, "gdp").multiplier, "mu of a Gaussian")


def _gaussian(mechanism: Mechanism, name: str) -> Gaussian:
    release = mechanism.reduction.release(mechanism.noise_std)
    if not isinstance(release, Gaussian):
        raise NotProved(
            f"{name} needs a single Gaussian mechanism; {mechanism.participation} is amplified by sampling.",
            hint=f"use epsilon or delta, or {mechanism.participation.worst_case}, which has no amplification",
        )
    return release
