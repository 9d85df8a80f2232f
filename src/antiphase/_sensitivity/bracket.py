"""The result of a method: proved lower and upper bounds on the squared sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from antiphase._bound import Kind
from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._participation import Deterministic
from antiphase.strategies import Gram, Indices, Strategy

CLOSED = 1e-9  # relative gap below which the bounds agree up to rounding


@dataclass(frozen=True)
class Bracket:
    """lower <= sens^2 <= upper; the upper bound is the one that is reported.

    The lower bound is the value of an allowed pattern and allowed contributions, or 0 if none is known.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper * (1.0 + CLOSED):
            raise AntiphaseError(
                f"Two proved bounds contradict each other: {self.lower} <= sens^2 <= {self.upper}.",
                hint="this is a bug in the library or an overflow in the strategy; please report it",
            )

    @property
    def kind(self) -> Kind:
        """Exact if the two bounds agree, else upper."""
        return "exact" if self.upper - self.lower <= CLOSED * self.upper else "upper"


def exactly(value: float) -> Bracket:
    """Return the bracket of a squared sensitivity that a theorem states exactly."""
    return Bracket(value, value)


@dataclass(frozen=True)
class Case:
    """One strategy under one participation, with cached quantities that the methods share."""

    strategy: Strategy
    participation: Deterministic

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.strategy.steps

    @cached_property
    def count(self) -> int:
        """Largest number of participations, k."""
        return self.participation.largest_count(self.steps)

    @cached_property
    def gram(self) -> Gram:
        """The Gram matrix X = C^T C."""
        return self.strategy.gram()

    @cached_property
    def period(self) -> int:
        """The distance between participations if the participation fixes it, at most n; else 1."""
        return min(self.participation.exact_spacing, self.steps)

    @cached_property
    def class_sums(self) -> tuple[Indices, Array, Array]:
        """Sums of X over the residue classes modulo the period."""
        return self.gram.class_sums(self.period)
