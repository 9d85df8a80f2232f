"""What the end of the noise's distribution costs: an epsilon at a delta that covers it, or a refusal.

Accountants prove (epsilon, delta) for ideal Gaussian noise, which has no end. The draws of a run do.

**On the host.** All draws of a run together are within total variation distance tau of ideal draws that are rounded
(`antiphase._noise.tail`; ln tau is `log_missing_mass`). So is all that is released, for one data set D and for its
neighbour D'. If the mechanism I with ideal draws is (epsilon, delta)-differentially private (proved for real numbers:
what rounding does to it is not accounted for), the run R has, for every event S,

    P(R(D) in S) <= P(I(D) in S) + tau
                 <= e^epsilon P(I(D') in S) + delta + tau
                 <= e^epsilon (P(R(D') in S) + tau) + delta + tau,

and is (epsilon, delta + (1 + e^epsilon) tau)-differentially private, amplified or not. Conversely, what a run states at
delta is the ideal mechanism's epsilon at delta - (1 + e^epsilon) tau. Where this takes up more than half of delta the
guarantee is refused; where it is below the rounding of delta as a floating-point number, nothing changes. ln tau is
about -1430 for 10^12 draws, so only epsilons beyond 700 (for delta = 1e-300) or 1,400 (for 1e-6) are refused.

**On a device** the draws are those of JAX or PyTorch. They end much earlier, and tau times millions of draws would
exceed any delta. Nothing is proved about them: that they are normal is an assumption, which the report states.
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

LARGEST_SHARE = 0.5  # of delta that the tail may take up
MARGIN = 1.0  # how much the epsilon at the smaller delta may grow before more is set aside

# Where the scaled sum of two draws ends. JAX inverts the error function at 1 - 3 / 2^24 (float64: 2^53) at most;
# PyTorch takes the radius sqrt(-2 ln u) with u at least 2^-24 (2^-53), and with cuRAND at least 2^-33 (2^-54).
DEVICE_ENDS = {
    "Threefry of JAX": {"float32": 7.38, "float64": 11.54},
    "PyTorch's generator on cpu": {"float32": 8.15, "float64": 12.12},
    "PyTorch's generator on cuda": {"float32": 9.56, "float64": 12.23},
}


@final
@dataclass(frozen=True)
class Tail:
    """Where a run's draws end.

    Args:
        end: the largest absolute value of a draw, about; None where it is not known.
        log_mass: ln tau, a bound on the distance of all draws from ideal ones; None where nothing is proved.
    """

    end: float | None
    log_mass: float | None

    def smallest_delta(self, epsilon: float) -> float | None:
        """The smallest delta at which this epsilon is not refused, rounded up; None where nothing is proved."""
        return None if self.log_mass is None else self._aside(epsilon) / LARGEST_SHARE

    def check(self, epsilon: float, delta: float) -> None:
        """Refuse a guarantee of the ideal mechanism that the noise does not cover."""
        smallest = self.smallest_delta(epsilon)
        if smallest is not None and delta < smallest:
            covers = "no delta" if smallest >= 1.0 else f"deltas from {smallest:.2g} on"
            raise Refused(
                f"The noise does not cover delta = {delta:g} at epsilon = {epsilon:.6g}: its draws end at "
                f"{self.end:.1f} standard deviations, and at this epsilon a run of this size covers {covers}.",
                hint="plan with a larger delta or a smaller epsilon",
            )

    def covered(self, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
        """The epsilon that a run with this tail has at `delta`.

        Args:
            epsilon_at: of the ideal mechanism, at any delta.
            delta: of the guarantee to state.
        """
        bound = epsilon_at(delta)
        while self.log_mass is not None:
            self.check(bound.value, delta)
            less = delta - self._aside(bound.value)
            if less == delta:
                break
            found = epsilon_at(less)
            if found.value <= bound.value + MARGIN:  # so that what was set aside is enough for it
                return replace(found, kind="upper") if found.kind == "exact" else found
            bound = found
        return bound

    def _aside(self, epsilon: float) -> float:
        """(1 + e^(epsilon + MARGIN)) tau, rounded up."""
        assert self.log_mass is not None
        log = self.log_mass + epsilon + MARGIN + math.log1p(math.exp(-epsilon - MARGIN))
        return math.inf if log > 0.0 else math.nextafter(math.exp(log) * (1.0 + 1e-12), 1.0)


def tail_of(plan: Plan, leaves: Mapping[str, Leaf], dtype: str, source: str = HOST) -> Tail:
    """The tail of the noise of a run.

    Args:
        plan: whose strategy says how many rows of z there are.
        leaves: every entry of theirs has a draw in each row.
        dtype: of the noise.
        source: "host", or what makes the noise on a device, as the ledger names it.
    """
    if source != HOST:
        ends = next((ends for name, ends in DEVICE_ENDS.items() if source.startswith(name)), {})
        return Tail(ends.get(dtype), None)
    entries = sum(math.prod(leaf.global_shape) for leaf in leaves.values())
    return Tail(end_of_tail(dtype), log_missing_mass(plan.mechanism.strategy.rows * entries, dtype))


def tail_words(end: float | None) -> str:
    """The assumption behind a guarantee with noise from a device."""
    limit = "at some point" if end is None else f"at about {end:.1f} standard deviations"
    return (
        f"The guarantee assumes that the draws of this generator are normal. They end {limit}, and what this adds to "
        "delta is not proved."
    )
