"""Amplified mechanisms whose pair of distributions is sampled: balls-in-bins and random min-separation.

Truncated batches. An example that is drawn can push another one out of its batch, so with and without it the other
contributions differ. Let T be the event that some batch holds `max_batch` or more *other* examples. The others draw on
their own, so T and its probability are the same for both data sets of a neighbouring pair; outside of T nothing is
pushed out wherever the example falls, and the two mechanisms are those without truncation. Divergences are jointly
convex, hence

    delta(truncated) <= (1 - Pr T) delta(not truncated) + Pr T.

Without this, or where Pr T is not small, no amplification is proved: `tests/montecarlo/test_truncation.py` has a case
in which delta of a truncated mechanism exceeds the amplified one, under zero-out adjacency too.

Randomness. Every seed is a hash of the whole question, of the seed that the caller gave, and of fresh entropy where
there is any. Planning and calibration search without fresh entropy, so that the same problem gives the same mechanism;
what they find is certified afterwards, with fresh entropy (`certificate.py`).
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

LARGEST_SHARE = 0.5  # of delta that overflowing batches may take
_known: dict[str, Bound] = {}


def fresh_entropy(sampling: MonteCarlo) -> str:
    """Return 256 fresh bits as hexadecimal digits, or an empty string if the caller gave a seed."""
    return secrets.token_hex(32) if sampling.seed is None else ""


def amplified_epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return epsilon at delta. Without entropy the same arguments give the same bound, which is cached.

    **Guarantee**: as `_montecarlo.epsilon`, under zero-out and add-or-remove adjacency.
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
    found = sampled_epsilon(mechanism.strategy, whole(mechanism), mechanism.noise_std, delta - overflow, drawn)
    return described(found, found.value, overflow, entropy)


def amplified_delta(mechanism: Mechanism, epsilon: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return delta at epsilon, as `amplified_epsilon` does epsilon."""
    overflow = overflow_probability(mechanism.reduction.setting)
    drawn = seeded(sampling, "delta", mechanism, epsilon, entropy)
    found = sampled_delta(mechanism.strategy, whole(mechanism), mechanism.noise_std, epsilon, drawn)
    found = described(found, min(1.0, found.value + overflow), overflow, entropy)
    if overflow == 0.0 or mechanism.adjacency != "zero-out":
        return found
    release = mechanism.reduction.release(mechanism.noise_std)
    unamplified = mechanism.reduction.bound(release.delta(epsilon), release.method)
    return min(found, unamplified, key=lambda bound: bound.value)


def amplified_noise(mechanism: Mechanism, budget: Budget, sampling: MonteCarlo) -> Mechanism | None:
    """Return the mechanism with the noise for the budget; None if overflowing batches use up too much of delta."""
    overflow = overflow_probability(mechanism.reduction.setting)
    if overflow > LARGEST_SHARE * budget.delta:
        return None

    def settle(noise: float) -> Bound:
        return amplified_epsilon(replace(mechanism, noise_std=noise), budget.delta, sampling)

    noise, _ = sampled_noise(
        mechanism.strategy,
        whole(mechanism),
        budget.epsilon,
        budget.delta - overflow,
        seeded(sampling, "calibrate", mechanism, [budget.epsilon, budget.delta], ""),
        settle,
    )
    return replace(mechanism, noise_std=noise)


def overflow_probability(setting: Setting) -> float:
    """Return an upper bound on the probability that some batch has max_batch or more examples besides a given one.

    Each step draws each other example independently, with probability at most `step_probability()`.
    """
    given: BallsInBins | PoissonMinSeparation = setting.participation
    if given.max_batch is None:
        return 0.0
    if setting.examples is None:
        return 1.0
    # Of two neighbouring data sets the larger one counts.
    others = setting.examples - (setting.adjacency != "add-or-remove")
    batches, rate = given.distinct_batches(setting.strategy.steps), given.step_probability()
    return min(1.0, batches * at_least(given.max_batch, others, rate) * (1.0 + 1e-9))


def _without_amplification(mechanism: Mechanism, delta: float, overflow: float) -> Bound:
    if mechanism.adjacency != "zero-out":
        given = mechanism.participation
        what = "an unknown number of examples" if mechanism.examples is None else f"{mechanism.examples} examples"
        raise NotProved(
            f"With {what} a batch of {given} overflows with probability {overflow:.2g}, too often for "
            f"delta = {delta} under {mechanism.adjacency} adjacency.",
            hint="use a larger max_batch, pass examples=..., or leave max_batch=None",
        )
    release = mechanism.reduction.release(mechanism.noise_std)
    return mechanism.reduction.bound(release.epsilon(delta), release.method)


def described(bound: Bound, value: float, overflow: float, entropy: str = "") -> Bound:
    """Add to a bound the overflow probability, which its value includes, and the entropy of its samples."""
    method = f"{bound.method}; batches overflow with probability {overflow:.1e}" if overflow else bound.method
    return replace(bound, value=value, method=method, entropy=entropy if bound.kind == "confident" else "")


def whole(mechanism: Mechanism) -> BallsInBins | PoissonMinSeparation:
    """Return the participation without truncation."""
    given = mechanism.participation
    assert isinstance(given, (BallsInBins, PoissonMinSeparation))
    return replace(given, max_batch=None)


def seeded(sampling: MonteCarlo, name: str, mechanism: Mechanism, at: object, entropy: str) -> MonteCarlo:
    """Set a seed that hashes all arguments and any given seed, so that other questions draw other samples."""
    asked = [name, mechanism, at, replace(sampling, workers=1), *([entropy] if entropy else [])]
    return replace(sampling, seed=int(fingerprint(asked), 16))
