"""Guarantees of amplified mechanisms that need Monte Carlo: balls-in-bins and random min-separation.

Truncated batches. A sampled example can displace another one from its batch, so the other contributions differ with and
without it. Let T be the event that some batch contains `max_batch` or more *other* examples. The others are sampled
independently of the example, so T and its probability are the same for both data sets of a neighbouring pair. Outside
of T no example is displaced, wherever the given example lands, and both mechanisms equal those without truncation.
Since divergences are jointly convex,

    delta(truncated) <= (1 - Pr T) delta(not truncated) + Pr T.

Without this argument, or if Pr T is not small, no amplification is proved: `tests/montecarlo/test_truncation.py`
contains a case in which delta of a truncated mechanism exceeds the amplified one, even under zero-out adjacency.

Randomness. Every seed is a hash of all arguments, the caller's seed, and fresh entropy if there is any. Planning and
calibration search without fresh entropy, so that the same problem gives the same mechanism; their results are then
certified with fresh entropy (`certificate.py`).
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from antiphase._accounting.poisson import at_least
from antiphase._bound import Bound
from antiphase._errors import NotProved
from antiphase._montecarlo import MonteCarlo
from antiphase._montecarlo import calibrate as sampled_noise
from antiphase._montecarlo import delta as sampled_delta
from antiphase._montecarlo import epsilon as sampled_epsilon
from antiphase._participation import BallsInBins, PoissonMinSeparation
from antiphase._record import fingerprint

if TYPE_CHECKING:
    from antiphase._accounting.budget import Budget
    from antiphase._accounting.mechanism import Mechanism
    from antiphase._accounting.theorems import Setting

LARGEST_SHARE = 0.5  # largest share of delta that overflowing batches may use
_known: dict[str, Bound] = {}


def fresh_entropy(sampling: MonteCarlo) -> str:
    """Return 256 fresh bits as hexadecimal digits, or an empty string if the caller gave a seed."""
    return secrets.token_hex(32) if sampling.seed is None else ""


def amplified_epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return a bound on epsilon at delta. Without entropy the same arguments give the same bound, which is cached.

    **Guarantee**: that of `_montecarlo.epsilon`, under zero-out and add-or-remove adjacency.
    """
    if entropy:
        return _epsilon(mechanism, delta, sampling, entropy)
    key = fingerprint([mechanism, delta, replace(sampling, workers=1)])
    if key not in _known:
        _known[key] = _epsilon(mechanism, delta, sampling, "")
    return _known[key]


def _epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo, entropy: str) -> Bound:
    overflow = overflow_probability(mechanism.reduction.setting)
    if overflow > LARGEST_SHARE * delta:
        return _without_amplification(mechanism, delta, overflow)
    drawn = seeded(sampling, "epsilon", mechanism, delta, entropy)
    found = sampled_epsilon(mechanism.strategy, untruncated(mechanism), mechanism.noise_std, delta - overflow, drawn)
    return with_overflow(found, found.value, overflow, entropy)


def amplified_delta(mechanism: Mechanism, epsilon: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return a bound on delta at epsilon, with the guarantee of `amplified_epsilon`; not cached."""
    overflow = overflow_probability(mechanism.reduction.setting)
    drawn = seeded(sampling, "delta", mechanism, epsilon, entropy)
    found = sampled_delta(mechanism.strategy, untruncated(mechanism), mechanism.noise_std, epsilon, drawn)
    found = with_overflow(found, min(1.0, found.value + overflow), overflow, entropy)
    if overflow == 0.0 or mechanism.adjacency != "zero-out":
        return found
    release = mechanism.reduction.release(mechanism.noise_std)
    unamplified = mechanism.reduction.bound(release.delta(epsilon), release.method)
    return min(found, unamplified, key=lambda bound: bound.value)


def amplified_noise(mechanism: Mechanism, budget: Budget, sampling: MonteCarlo) -> Mechanism | None:
    """Return the mechanism with the noise for the budget, or None if overflowing batches use too much of delta."""
    overflow = overflow_probability(mechanism.reduction.setting)
    if overflow > LARGEST_SHARE * budget.delta:
        return None

    def settle(noise: float) -> Bound:
        return amplified_epsilon(replace(mechanism, noise_std=noise), budget.delta, sampling)

    noise, _ = sampled_noise(
        mechanism.strategy,
        untruncated(mechanism),
        budget.epsilon,
        budget.delta - overflow,
        seeded(sampling, "calibrate", mechanism, [budget.epsilon, budget.delta], ""),
        settle,
    )
    return replace(mechanism, noise_std=noise)


def overflow_probability(setting: Setting) -> float:
    """Return an upper bound on the probability that some batch has max_batch or more examples besides a given one.

    In each step the other examples are sampled independently, with probability at most `step_probability()`.
    """
    given: BallsInBins | PoissonMinSeparation = setting.participation
    if given.max_batch is None:
        return 0.0
    if setting.examples is None:
        return 1.0
    # Use the larger of two neighbouring data sets.
    others = setting.examples - (setting.adjacency != "add-or-remove")
    batches, rate = given.distinct_batches(setting.strategy.steps), given.step_probability()
    return min(1.0, batches * at_least(given.max_batch, others, rate) * (1.0 + 1e-9))


def _without_amplification(mechanism: Mechanism, delta: float, overflow: float) -> Bound:
    if mechanism.adjacency != "zero-out":
        given = mechanism.participation
        what = "an unknown number of examples" if mechanism.examples is None else f"{mechanism.examples} examples"
        raise NotProved(
            f"With {what}, a batch of {given} overflows with probability {overflow:.2g}, too often for "
            f"delta = {delta} under {mechanism.adjacency} adjacency.",
            hint="use a larger max_batch or max_batch=None, or pass examples=...",
        )
    release = mechanism.reduction.release(mechanism.noise_std)
    return mechanism.reduction.bound(release.epsilon(delta), release.method)


def with_overflow(bound: Bound, value: float, overflow: float, entropy: str = "") -> Bound:
    """Return the bound with this value, the overflow probability in its method, and the entropy of its samples."""
    method = f"{bound.method}; batches overflow with probability {overflow:.1e}" if overflow else bound.method
    return replace(bound, value=value, method=method, entropy=entropy if bound.kind == "confident" else "")


def untruncated(mechanism: Mechanism) -> BallsInBins | PoissonMinSeparation:
    """Return the participation without truncation."""
    given = mechanism.participation
    assert isinstance(given, (BallsInBins, PoissonMinSeparation))
    return replace(given, max_batch=None)


def seeded(sampling: MonteCarlo, name: str, mechanism: Mechanism, at: object, entropy: str) -> MonteCarlo:
    """Return the settings with a seed that hashes all arguments, so that different calls use different samples."""
    asked = [name, mechanism, at, replace(sampling, workers=1), *([entropy] if entropy else [])]
    return replace(sampling, seed=int(fingerprint(asked), 16))
