"""Corrects the epsilon of a run for the bounded range of its random draws.

Accountants prove (epsilon, delta) for ideal Gaussian noise, which is unbounded. The draws of a run are bounded.

**On the host.** Let tau bound the total variation distance between the joint distribution of all draws of a run and
that of rounded ideal draws (`antiphase._noise.tail` proves tau; `log_missing_mass` is ln tau). Everything released is
computed from the data and the draws, so the same bound holds for the distribution of everything released, both for a
data set D and for its neighbour D'. Suppose that the mechanism I with ideal draws is (epsilon, delta)-differentially
private. (This is proved for real numbers; rounding is not accounted for.) Then the run R satisfies, for every event S,

    P(R(D) in S) <= P(I(D) in S) + tau
                 <= e^epsilon P(I(D') in S) + delta + tau
                 <= e^epsilon (P(R(D') in S) + tau) + delta + tau,

so R is (epsilon, delta + (1 + e^epsilon) tau)-differentially private, with or without amplification. Therefore, the
epsilon of a run at delta is the ideal mechanism's epsilon at delta - (1 + e^epsilon) tau. If the term (1 + e^epsilon)
tau exceeds half of delta, `Tail.check` raises `Refused`. If the term is too small to change delta in floating point,
epsilon does not change. For 10^12 draws, ln tau is about -1430. `Refused` is then raised only for an epsilon beyond 700
(at delta = 1e-300) or 1,400 (at delta = 1e-6).

**On a lattice**, the draws are exact, but a run stops if a number does not fit into 62 bits. Here tau is a bound on the
probability of such a stop (see `antiphase._lattice.range`), and the inequality above holds.

**On a device**, JAX or PyTorch generates the draws. Their range is much smaller, so tau for millions of draws would
exceed any delta. Nothing is proved about these draws, so the report states the assumption that they are normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from antiphase._bound import Bound, digits_up
from antiphase._errors import Refused
from antiphase._lattice import END_OF_TAIL, log_overflow
from antiphase._noise import Leaf, end_of_tail, log_missing_mass
from antiphase._plan import Plan
from antiphase._run.history import HOST

LARGEST_SHARE = 0.5  # largest fraction of delta that may be reserved for the bounded range
MARGIN = 1.0  # reserve enough of delta for epsilon + MARGIN, because epsilon is larger at the delta that is left

# Bounds on draws, in standard deviations. On a device, each draw is the scaled sum of two normal random numbers. JAX
# inverts the error function at 1 - 3 / 2^24 at most (float64: 2^53 instead of 2^24). PyTorch uses the radius
# sqrt(-2 ln u), where u is at least 2^-24 (float64: 2^-53) on the CPU and at least 2^-33 (float64: 2^-54) with cuRAND.
DEVICE_ENDS = {
    "Threefry of JAX": {"float32": 7.38, "float64": 11.54},
    "PyTorch's generator on cpu": {"float32": 8.15, "float64": 12.12},
    "PyTorch's generator on cuda": {"float32": 9.56, "float64": 12.23},
}


@final
@dataclass(frozen=True)
class Tail:
    """The bounded range of a run's draws.

    Args:
        end: approximate largest absolute value of a draw, in standard deviations; None if unknown.
        log_mass: ln tau, where tau bounds the total variation distance of all draws from ideal draws; None if no bound
            is proved.
    """

    end: float | None
    log_mass: float | None

    def smallest_delta(self, epsilon: float) -> float | None:
        """Return the smallest delta at which `check` accepts this epsilon, rounded up; None if no bound is proved."""
        return None if self.log_mass is None else self._reserved(epsilon) / LARGEST_SHARE

    def check(self, epsilon: float, delta: float) -> None:
        """Raise `Refused` if delta is too small for this epsilon, given the range of the draws."""
        smallest = self.smallest_delta(epsilon)
        if smallest is not None and delta < smallest:
            limit = (
                "no delta is large enough" if smallest >= 1.0 else f"delta must be at least {digits_up(smallest, 2)}"
            )
            raise Refused(
                f"A delta of {delta:g} is too small to state epsilon = {epsilon:.6g}: the random draws are bounded by "
                f"{self.end:.1f} standard deviations, and the correction for this bound would need more than half of "
                f"delta. For a run of this size and this epsilon, {limit}.",
                hint="plan with a larger delta or a smaller epsilon",
            )

    def ideal_delta(self, epsilon: float, delta: float) -> float:
        """Return the delta at which `epsilon` must hold with ideal draws, so that it holds at `delta` for the run."""
        return delta if self.log_mass is None else delta - self._reserved(epsilon)

    def covered(self, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
        """Return the epsilon at `delta` of a run whose draws have this bounded range.

        Args:
            epsilon_at: function of delta that returns the epsilon of the ideal mechanism.
            delta: delta of the guarantee.
        """
        bound = epsilon_at(delta)
        while self.log_mass is not None:
            self.check(bound.value, delta)
            less = delta - self._reserved(bound.value)
            if less == delta:
                break
            found = epsilon_at(less)
            if found.value <= bound.value + MARGIN:  # then the reserved part of delta is large enough
                return replace(found, kind="upper") if found.kind == "exact" else found
            bound = found
        return bound

    def _reserved(self, epsilon: float) -> float:
        """Return the part of delta to reserve, (1 + e^(epsilon + MARGIN)) tau, rounded up."""
        assert self.log_mass is not None
        log = self.log_mass + epsilon + MARGIN + math.log1p(math.exp(-epsilon - MARGIN))
        return math.inf if log > 0.0 else math.nextafter(math.exp(log) * (1.0 + 1e-12), 1.0)


def tail_of(plan: Plan, leaves: Mapping[str, Leaf], dtype: str, source: str = HOST) -> Tail:
    """Return the bounded range of the random draws of a run.

    Args:
        plan: plan, whose strategy determines the number of random draws per parameter entry.
        leaves: names and shapes of the parameters.
        dtype: dtype of the noise.
        source: "host", or the description of a device, as in the ledger.
    """
    if source != HOST:
        ends = next((ends for name, ends in DEVICE_ENDS.items() if source.startswith(name)), {})
        return Tail(ends.get(dtype), None)
    entries = sum(math.prod(leaf.global_shape) for leaf in leaves.values())
    if plan.mechanism.lattice is not None:
        return Tail(END_OF_TAIL, log_overflow(plan.mechanism.strategy, entries))
    return Tail(end_of_tail(dtype), log_missing_mass(plan.mechanism.strategy.rows * entries, dtype))


def tail_words(end: float | None) -> str:
    """Return the remark that states the assumption behind a guarantee with noise from a device."""
    limit = "bounded" if end is None else f"bounded by about {end:.1f} standard deviations"
    return (
        f"The guarantee assumes that the draws of this generator are normal. They are {limit}, and it is not proved "
        "how much this adds to delta."
    )
