"""Brackets: proved lower and upper bounds on the squared sensitivity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from antiphase._bound import Kind
from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._participation import Deterministic
from antiphase.strategies import Gram, Indices, Strategy

CLOSED = 1e-9  # largest relative gap at which the lower and the upper bound agree up to rounding


@dataclass(frozen=True)
class Bracket:
    """Proved bounds lower <= sens^2 <= upper. The upper bound is reported.

    One example can make contributions that reach the lower bound. The lower bound is 0 if no better one is known.
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
        """The kind of the reported bound: "exact" if the two bounds agree up to rounding, otherwise "upper"."""
        return "exact" if self.upper - self.lower <= CLOSED * self.upper else "upper"


def exactly(value: float) -> Bracket:
    """Return a bracket with lower = upper = value."""
    return Bracket(value, value)


@dataclass(frozen=True)
class Case:
    """A strategy and a participation, with cached quantities that several methods use."""

    strategy: Strategy
    participation: Deterministic

    @property
    def steps(self) -> int:
        """Number of steps, n."""
        return self.strategy.steps

    @cached_property
    def count(self) -> int:
        """Largest number of participations of one example, k."""
        return self.participation.largest_count(self.steps)

    @cached_property
    def gram(self) -> Gram:
        """The Gram matrix X = C^T C."""
        return self.strategy.gram()

    @cached_property
    def period(self) -> int:
        """The number of steps between participations for epochs in a fixed order, at most n; otherwise 1."""
        return min(self.participation.exact_spacing, self.steps)

    @cached_property
    def class_sums(self) -> tuple[Indices, Array, Array]:
        """Residues, and the sums of |X| and of X over the pattern of each residue; see `Gram.class_sums`.

        The pattern of residue r consists of the steps r, r + period, r + 2 period, and so on.
        """
        return self.gram.class_sums(self.period)
