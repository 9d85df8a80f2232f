"""Reduction of a mechanism to a standard mechanism with known guarantees, by the theorems of `theorems.py`."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from antiphase import _check
from antiphase._accounting.standard_mechanism import StandardMechanism
from antiphase._accounting.theorems import STREAMS, THEOREMS, Adjacency, Setting, Theorem, check_adjacency
from antiphase._bound import Bound, worst_kind
from antiphase._check import invalid
from antiphase._errors import NotProved
from antiphase._participation import Deterministic, Participation, SingleParticipation
from antiphase.strategies import Strategy

SMALLEST_MULTIPLIER = math.ulp(0.0)  # replaces a multiplier that underflows to zero, which has no inverse
LARGEST_MULTIPLIER = sys.float_info.max  # replaces a multiplier that overflows to infinity


@dataclass(frozen=True)
class Reduction:
    """A mechanism without its noise level, and the theorem that reduces it to a `StandardMechanism`.

    Args:
        theorem: the theorem, a row of `theorems.THEOREMS`.
        setting: the mechanism without its noise level.
        sensitivity: sensitivity that the theorem uses, for contributions of norm at most 1.
        nominal: the sensitivity before it was rounded up. Calibration tries this value first.
    """

    theorem: Theorem
    setting: Setting
    sensitivity: Bound
    nominal: float

    def release(self, noise_std: float) -> StandardMechanism:
        """Return the standard mechanism for noise of standard deviation `noise_std`."""
        multiplier = noise_std / (self.theorem.factor * self.sensitivity.value)
        return self.theorem.release(self.setting, min(max(multiplier, SMALLEST_MULTIPLIER), LARGEST_MULTIPLIER))

    def before_rounding(self) -> Reduction:
        """Return the same reduction, with the sensitivity before it was rounded up."""
        return replace(self, sensitivity=replace(self.sensitivity, value=self.nominal))

    def noise_std(self, multiplier: float) -> float:
        """Return the standard deviation of the noise that gives the standard mechanism this noise multiplier."""
        return multiplier * self.theorem.factor * self.sensitivity.value

    def bound(self, value: float, method: str) -> Bound:
        """Return a value computed from `release`, such as epsilon, as a bound that cites the theorem."""
        kind = worst_kind([self.theorem.kind, self.sensitivity.kind])
        reference = STREAMS if self.theorem.amplified else self.theorem.reference
        return Bound(value, kind, method + self.theorem.remark, reference)


def reduce(setting: Setting) -> Reduction:
    """Return the reduction by the first theorem that covers the setting. Raises `NotProved` if there is none."""
    theorem = _theorem(setting)
    return Reduction(theorem, setting, *_sensitivity(theorem, setting))


def check_setting(
    owner: str, strategy: Any, participation: Any, adjacency: Any, examples: Any
) -> tuple[Strategy, Participation, Adjacency, int | None]:
    """Check the arguments of a mechanism, and return all of them except the owner."""
    if not isinstance(strategy, Strategy):
        raise invalid(owner, "strategy", "a strategy", strategy, "for a matrix use strategies.Dense(matrix)")
    if not isinstance(participation, Participation):
        raise invalid(
            owner, "participation", "a participation", participation, "pass for example FixedEpochs(epochs, steps)"
        )
    adjacency = check_adjacency(owner, adjacency)
    if examples is not None:
        examples = _check.positive_integer(owner, "examples", examples, "pass the number of examples")
    return strategy, participation, adjacency, examples


def _theorem(setting: Setting) -> Theorem:
    known = [t for t in THEOREMS if t.participation is type(setting.participation)]
    truncated = setting.participation.max_batch is not None
    same_batches = [t for t in known if t.max_batch in (None, truncated)]
    rows = [t for t in same_batches if t.adjacency == setting.adjacency]
    if setting.lattice is not None and rows:
        rows = [t for t in rows if t.lattice]
        if not rows:
            raise NotProved(
                f"No theorem covers lattice noise with {setting.participation} under {setting.adjacency} adjacency.",
                hint=f"use {setting.participation.worst_case}, Poisson or CyclicPoisson without max_batch, or noise in "
                "floating point (no lattice)",
            )
    for theorem in rows:
        if _covers(theorem, setting):
            return theorem
    raise _unsupported_strategy(setting, rows[0]) if rows else _not_covered(setting, known, same_batches)


def _covers(theorem: Theorem, setting: Setting) -> bool:
    """Return True if the theorem covers the strategy of the setting."""
    from antiphase._montecarlo import is_separated

    match theorem.strategies:
        case "any":
            return True
        case "lower triangular":
            return setting.strategy.is_causal
        case "bands <= separation":
            return is_separated(setting.strategy, setting.participation.separation)
    found = setting.strategy.diagonals
    return found is not None and found <= _most_bands(setting)


def _most_bands(setting: Setting) -> int:
    worst: Deterministic = setting.participation.worst_case
    return worst.spacing(setting.strategy.steps)


def _unsupported_strategy(setting: Setting, theorem: Theorem) -> NotProved:
    sampling, largest, found = setting.participation, _most_bands(setting), setting.strategy.diagonals
    name = type(setting.strategy).__name__
    if theorem.strategies == "lower triangular":
        return NotProved(
            f"Amplification for {sampling} needs a causal strategy; this {name} is not causal.",
            hint=f"use a lower-triangular strategy, or {sampling.worst_case}, which has no amplification",
        )
    has = "is not lower triangular" if found is None else f"has {found} bands"
    without = f"use {sampling.worst_case}, which has no amplification"
    hint = f"use CyclicPoisson(groups={found}, ...), or a strategy with at most {largest} bands; otherwise {without}"
    return NotProved(
        f"Amplification for {sampling} needs a lower-triangular strategy with at most {largest} bands; "
        f"this {name} {has}.",
        hint=without if found is None else hint,
    )


def _not_covered(setting: Setting, known: list[Theorem], same_batches: list[Theorem]) -> NotProved:
    name = type(setting.participation).__name__
    if not known:
        covered = ", ".join(sorted({t.participation.__name__ for t in THEOREMS}))
        return NotProved(f"No theorem covers {name}.", hint=f"use one of {covered}")
    if same_batches:
        nearest = " or ".join(sorted({repr(t.adjacency) for t in same_batches}))
        hint = f"{name} is covered for adjacency {nearest}"
    else:
        hint = f"{name} is covered without max_batch"
    others = sorted({t.participation.__name__ for t in THEOREMS if t.adjacency == setting.adjacency})
    return NotProved(
        f"No theorem covers {setting.participation} under {setting.adjacency} adjacency.",
        hint=f"{hint}; {setting.adjacency} adjacency is covered for {', '.join(others)}",
    )


def _sensitivity(theorem: Theorem, setting: Setting) -> tuple[Bound, float]:
    from antiphase._sensitivity import measured

    one_column = theorem.sensitivity == "column"
    found, nominal = measured(setting.strategy, SingleParticipation() if one_column else setting.participation)
    if setting.lattice is None:
        return found, nominal
    # Without rounding, an example moves the mean of C x + z by C dx. Rounding to the lattice adds at most K sqrt(d R)
    # grid units (docs/lattice-noise.md).
    count = 1 if one_column else setting.participation.worst_case.largest_count(setting.strategy.steps)
    rounding = setting.lattice.rounding(setting.strategy, count)
    value = math.nextafter(found.value + rounding, math.inf)
    return replace(found, value=value, kind="upper", method=f"{found.method}, with rounding"), nominal + rounding
