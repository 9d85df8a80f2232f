"""Guarantees for `BallsInBins` and `PoissonMinSeparation`, whose amplification is computed from random samples.

**Truncated batches.** With `max_batch`, a sampled example can displace another one from the batch, so the presence of
an example changes the contributions of other examples. Consider the example in which two neighbouring data sets differ.
Let T be the event that `max_batch` or more *other* examples are sampled for the same batch. They are sampled
independently of the given example, so T has the same probability for both data sets. If T does not occur, no batch is
truncated, whichever steps the given example is assigned to. The outputs for both data sets then have the same
distributions as without truncation. Since divergences are jointly convex,

    delta(truncated) <= (1 - Pr T) * delta(not truncated) + Pr T.

If Pr T is not small, no amplification is proved for truncated batches. `tests/montecarlo/test_truncation.py` contains a
case in which the delta of a truncated mechanism exceeds the amplified delta, even under zero-out adjacency.

**Lattice noise.** On a lattice, the noise is computed in exact integers (docs/lattice-noise.md). Compare such a
mechanism with the same mechanism in real numbers. Fix the steps in which the example takes part, and the earlier
outputs. The means of the outputs of the two mechanisms then differ by a vector of norm at most eta = K sqrt(d R). Here
d is the number of coordinates, R is the number of rows of C in which rounding can make a difference, and K is a bound
on the difference in one coordinate of one row. If the mechanism in real numbers is (epsilon, delta)-private, theorem 3
of docs/lattice-noise.md shows that the mechanism on the lattice is private with

    epsilon + epsilon',        max(e^epsilon' delta + delta', delta + e^epsilon delta').

Here (epsilon', delta') is a guarantee of one Gaussian mechanism with shift mu = eta / sigma, where sigma is the
standard deviation of the noise. `Coupling` uses epsilon' = mu (40 + mu / 2), for which delta' <= Phi(-40) < e^-800. For
an epsilon of at most 50, both e^epsilon delta' and delta' are then below e^-750, that is, below 10^-12 * delta for
every delta of at least 1e-200. Larger epsilons are accounted for without amplification.

**Randomness.** Every seed is a hash of all arguments, including the caller's seed, and of fresh entropy if any was
drawn. `plan` and `calibrate` search without fresh entropy, so the same problem gives the same mechanism. Their results
are then certified with fresh entropy (`certificate.py`).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
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

COUPLED_TAIL = 40.0  # the 40 in epsilon' = mu (40 + mu / 2); see the module docstring
LARGEST_COUPLED_EPSILON = 50.0
NEGLIGIBLE = 1e-12  # bound on delta' / delta and on e^epsilon delta' / delta
SMALLEST_DELTA = 1e-300
LARGEST_SHARE = 0.5  # largest share of delta that may be spent on overflowing batches
_known: dict[str, Bound] = {}


@dataclass(frozen=True)
class Coupling:
    """How much epsilon and delta of an amplified mechanism increase if it runs on a lattice, not in real numbers.

    Args:
        epsilon: the increase of epsilon (epsilon' in the module docstring). It is 0 without a lattice, and if there is
            nothing to round.
    """

    epsilon: float

    def covers(self, epsilon: float) -> bool:
        """Return True if a guarantee for real numbers can imply `epsilon` on the lattice."""
        return self.epsilon == 0.0 or self.epsilon < epsilon <= LARGEST_COUPLED_EPSILON

    def real_delta(self, delta: float) -> float:
        """Return the delta that must hold for real numbers so that `delta` holds on the lattice."""
        return delta * math.exp(-self.epsilon) * (1.0 - NEGLIGIBLE) if self.epsilon else delta

    def lattice_delta(self, delta: float) -> float:
        """Return a delta that holds on the lattice if `delta` holds for real numbers."""
        return delta * math.exp(self.epsilon) * (1.0 + 4.0 * NEGLIGIBLE) + SMALLEST_DELTA if self.epsilon else delta


def coupling_of(mechanism: Mechanism) -> Coupling:
    """Return the coupling of a mechanism under an amplified participation."""
    if mechanism.lattice is None:
        return Coupling(0.0)
    count = mechanism.participation.worst_case.largest_count(mechanism.strategy.steps)
    mu = mechanism.lattice.rounding(mechanism.strategy, count) / mechanism.noise_std
    return Coupling(mu * (COUPLED_TAIL + mu / 2.0) * (1.0 + 1e-9))


def fresh_entropy(sampling: MonteCarlo) -> str:
    """Return 256 fresh bits as hexadecimal digits, or an empty string if the caller gave a seed."""
    return secrets.token_hex(32) if sampling.seed is None else ""


def amplified_epsilon(mechanism: Mechanism, delta: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return a bound on epsilon at delta. Without entropy, the bound depends only on the arguments and is cached.

    **Guarantee**: as for `_montecarlo.epsilon`, under zero-out and add-or-remove adjacency.
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
    drawn, coupling = seeded(sampling, "epsilon", mechanism, delta, entropy), coupling_of(mechanism)
    real = coupling.real_delta(delta - overflow)
    found = sampled_epsilon(mechanism.strategy, untruncated(mechanism), mechanism.noise_std, real, drawn)
    found = with_overflow(found, found.value + coupling.epsilon, overflow, entropy)
    if mechanism.lattice is None:
        return found
    if not coupling.covers(found.value):
        return _without_amplification(mechanism, delta, overflow)
    if not _has_unamplified(mechanism):
        return found
    return min(found, _unamplified(mechanism, delta), key=lambda bound: bound.value)


def amplified_delta(mechanism: Mechanism, epsilon: float, sampling: MonteCarlo, entropy: str = "") -> Bound:
    """Return a bound on delta at epsilon. The bound is not cached.

    **Guarantee**: as for `amplified_epsilon`.
    """
    overflow = overflow_probability(mechanism.reduction.setting)
    drawn, coupling = seeded(sampling, "delta", mechanism, epsilon, entropy), coupling_of(mechanism)
    real = max(epsilon - coupling.epsilon, 0.0)
    found = sampled_delta(mechanism.strategy, untruncated(mechanism), mechanism.noise_std, real, drawn)
    value = coupling.lattice_delta(found.value) if coupling.covers(epsilon) else 1.0
    found = with_overflow(found, min(1.0, value + overflow), overflow, entropy)
    if (overflow == 0.0 and coupling.epsilon == 0.0) or not _has_unamplified(mechanism):
        return found
    release = mechanism.reduction.release(mechanism.noise_std)
    unamplified = mechanism.reduction.bound(release.delta(epsilon), release.method)
    return min(found, unamplified, key=lambda bound: bound.value)


def amplified_noise(mechanism: Mechanism, budget: Budget, sampling: MonteCarlo) -> Mechanism | None:
    """Return the mechanism with noise calibrated to the budget, or None if overflows would use over half of delta."""
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
    """Return an upper bound on the probability that max_batch or more examples, besides a given one, share a batch.

    In each step, the other examples are sampled independently with probability at most `step_probability()` each. The
    bound is 1 if the number of examples is unknown.
    """
    given: BallsInBins | PoissonMinSeparation = setting.participation
    if given.max_batch is None:
        return 0.0
    if setting.examples is None:
        return 1.0
    # Under add-or-remove adjacency, the given example may be added to the `examples`, which are then all others.
    others = setting.examples - (setting.adjacency != "add-or-remove")
    batches, rate = given.distinct_batches(setting.strategy.steps), given.step_probability()
    return min(1.0, batches * at_least(given.max_batch, others, rate) * (1.0 + 1e-9))


def _without_amplification(mechanism: Mechanism, delta: float, overflow: float) -> Bound:
    if not _has_unamplified(mechanism):
        given = mechanism.participation
        what = "an unknown number of examples" if mechanism.examples is None else f"{mechanism.examples} examples"
        raise NotProved(
            f"With {what}, a batch of {given} overflows with probability up to {overflow:.2g}, too often for "
            f"delta = {delta} under {mechanism.adjacency} adjacency.",
            hint="use a larger max_batch or max_batch=None, or pass examples=...",
        )
    return _unamplified(mechanism, delta)


def _unamplified(mechanism: Mechanism, delta: float) -> Bound:
    release = mechanism.reduction.release(mechanism.noise_std)
    return mechanism.reduction.bound(release.epsilon(delta), release.method)


def _has_unamplified(mechanism: Mechanism) -> bool:
    """Return True if a guarantee without amplification is proved, that is, if no added example can displace another."""
    return mechanism.adjacency == "zero-out" or mechanism.participation.max_batch is None


def with_overflow(bound: Bound, value: float, overflow: float, entropy: str = "") -> Bound:
    """Return a copy of `bound` with a new value, the overflow probability in its method, and the given entropy."""
    method = f"{bound.method}; batches overflow with probability {overflow:.1e}" if overflow else bound.method
    return replace(bound, value=value, method=method, entropy=entropy if bound.kind == "confident" else "")


def untruncated(mechanism: Mechanism) -> BallsInBins | PoissonMinSeparation:
    """Return the mechanism's participation with max_batch=None."""
    given = mechanism.participation
    assert isinstance(given, (BallsInBins, PoissonMinSeparation))
    return replace(given, max_batch=None)


def seeded(sampling: MonteCarlo, name: str, mechanism: Mechanism, at: object, entropy: str) -> MonteCarlo:
    """Return the settings with a hash of all arguments as the seed, so that each computation has its own samples."""
    asked = [name, mechanism, at, replace(sampling, workers=1), *([entropy] if entropy else [])]
    return replace(sampling, seed=int(fingerprint(asked), 16))
