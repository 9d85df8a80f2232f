"""Accounts for the bounded range of random draws: the epsilon that a run has at a given delta, or a refusal.

Accountants prove (epsilon, delta) for ideal Gaussian noise, which is unbounded. The draws of a run are bounded.

**On the host.** All draws of a run together are within total variation distance tau of rounded ideal draws
(`antiphase._noise.tail`; ln tau is `log_missing_mass`). So is everything released, for a data set D and for its
neighbour D'. If the mechanism I with ideal draws is (epsilon, delta)-differentially private (proved for real numbers;
rounding is not accounted for), the run R satisfies, for every event S,

    P(R(D) in S) <= P(I(D) in S) + tau
                 <= e^epsilon P(I(D') in S) + delta + tau
                 <= e^epsilon (P(R(D') in S) + tau) + delta + tau,

so it is (epsilon, delta + (1 + e^epsilon) tau)-differentially private, with or without amplification. Conversely, a run
states at delta the ideal mechanism's epsilon at delta - (1 + e^epsilon) tau. If the second term is more than half of
delta, the guarantee is refused. If it is too small to change delta as a floating-point number, nothing changes. ln tau
is about -1430 for 10^12 draws, so only epsilons beyond 700 (for delta = 1e-300) or 1,400 (for 1e-6) are refused.

**On a device** the draws are those of JAX or PyTorch. Their bounds are much smaller, and tau for millions of draws
would exceed any delta. Nothing is proved about them: the report states the assumption that they are normal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

from antiphase._bound import Bound
from antiphase._errors import Refused
from antiphase._noise import Leaf, end_of_tail, log_missing_mass
from antiphase._plan import Plan
from antiphase._run.history import HOST

LARGEST_SHARE = 0.5  # largest fraction of delta that the tail may use
MARGIN = 1.0  # how much epsilon may grow at the smaller delta before more of delta is reserved

# Bounds on the scaled sum of two draws. JAX inverts the error function at 1 - 3 / 2^24 (float64: 2^53) at most;
# PyTorch takes the radius sqrt(-2 ln u) with u at least 2^-24 (2^-53), and with cuRAND at least 2^-33 (2^-54).
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
        end: approximate largest absolute value of a draw; None if unknown.
        log_mass: ln tau, where tau bounds the distance of all draws from ideal ones; None if nothing is proved.
    """

    end: float | None
    log_mass: float | None

    def smallest_delta(self, epsilon: float) -> float | None:
        """The smallest delta at which this epsilon is not refused, rounded up; None if nothing is proved."""
        return None if self.log_mass is None else self._reserved(epsilon) / LARGEST_SHARE

    def check(self, epsilon: float, delta: float) -> None:
        """Raise if delta is too small for this epsilon, given the range of the draws."""
        smallest = self.smallest_delta(epsilon)
        if smallest is not None and delta < smallest:
            covers = "no delta" if smallest >= 1.0 else f"deltas from {smallest:.2g}"
            raise Refused(
                f"The noise does not cover delta = {delta:g} at epsilon = {epsilon:.6g}: its draws are bounded by "
                f"{self.end:.1f} standard deviations, and at this epsilon a run of this size covers {covers}.",
                hint="plan with a larger delta or a smaller epsilon",
            )

    def covered(self, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
        """The epsilon that a run with this tail has at `delta`.

        Args:
            epsilon_at: epsilon of the ideal mechanism as a function of delta.
            delta: delta of the guarantee.
        """
        bound = epsilon_at(delta)
        while self.log_mass is not None:
            self.check(bound.value, delta)
            less = delta - self._reserved(bound.value)
            if less == delta:
                break
            found = epsilon_at(less)
            if found.value <= bound.value + MARGIN:  # so the part of delta that was reserved is enough
                return replace(found, kind="upper") if found.kind == "exact" else found
            bound = found
        return bound

    def _reserved(self, epsilon: float) -> float:
        """(1 + e^(epsilon + MARGIN)) tau, rounded up."""
        assert self.log_mass is not None
        log = self.log_mass + epsilon + MARGIN + math.log1p(math.exp(-epsilon - MARGIN))
        return math.inf if log > 0.0 else math.nextafter(math.exp(log) * (1.0 + 1e-12), 1.0)


def tail_of(plan: Plan, leaves: Mapping[str, Leaf], dtype: str, source: str = HOST) -> Tail:
    """The tail of the noise of a run.

    Args:
        plan: plan, whose strategy determines the number of rows of z.
        leaves: leaves; every entry has one draw in each row.
        dtype: dtype of the noise.
        source: "host", or what makes the noise on a device, as in the ledger.
    """
    if source != HOST:
        ends = next((ends for name, ends in DEVICE_ENDS.items() if source.startswith(name)), {})
        return Tail(ends.get(dtype), None)
    entries = sum(math.prod(leaf.global_shape) for leaf in leaves.values())
    return Tail(end_of_tail(dtype), log_missing_mass(plan.mechanism.strategy.rows * entries, dtype))


def tail_words(end: float | None) -> str:
    """State the assumption behind a guarantee with noise from a device."""
    limit = "bounded" if end is None else f"bounded by about {end:.1f} standard deviations"
    return (
        f"The guarantee assumes that the draws of this generator are normal. They are {limit}, and what this adds to "
        "delta is not proved."
    )
