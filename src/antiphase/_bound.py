"""Privacy numbers that record whether and how they were proved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Literal, get_args

import numpy as np

from antiphase._check import invalid, text
from antiphase._errors import InvalidArgument
from antiphase._record import optional, record

Kind = Literal["exact", "upper", "confident", "estimate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_HEX = re.compile("[0-9a-f]{0,64}")


@record
class Bound:
    """A number with its kind, the method that computed it, and the theorem behind it.

    **Guarantee** of each kind:

    - "exact": the true value, up to floating-point rounding.
    - "upper": never below the true value.
    - "confident": an upper bound from random samples. It can fail with a small probability, which delta includes.
    - "estimate": no guarantee. Plans and reports reject estimates.

    A bound does not convert to a float implicitly: read `.value`.

    Args:
        value: the number.
        kind: "exact", "upper", "confident" or "estimate".
        method: short name of the method, such as "closed-form".
        reference: author, year and theorem.
        entropy: random bits that seeded the samples, as hexadecimal digits. They make the bound reproducible. Empty if
            nothing was sampled, or if the caller passed a seed.

    >>> Bound(2.0, "exact", "closed-form", "Li et al. 2015, Prop. 3").scaled(3.0).value
    6.0
    """

    value: float
    kind: Kind
    method: str
    reference: str
    entropy: str = optional("")

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in KINDS:
            raise InvalidArgument(
                f"The 'kind' parameter of Bound must be one of {', '.join(KINDS)}. Got {self.kind!r} instead.",
                hint="use 'estimate' for a number without a proof",
            )
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float, np.floating)):
            raise invalid("Bound", "value", "a number", self.value, "pass a float")
        try:
            object.__setattr__(self, "value", float(self.value))
        except OverflowError:
            raise invalid("Bound", "value", "a number that fits into a float", self.value, "pass a float") from None
        for name in ("method", "reference"):
            object.__setattr__(self, name, text("Bound", name, getattr(self, name), "pass a short text"))
        if math.isnan(self.value):
            raise InvalidArgument(
                "The 'value' parameter of Bound must be a number. Got NaN instead.",
                hint="check the computation of the value for overflow and division by zero",
            )
        if not isinstance(self.entropy, str) or not _HEX.fullmatch(self.entropy):
            raise InvalidArgument(
                f"The 'entropy' parameter of Bound must be up to 64 hexadecimal digits. Got {self.entropy!r} instead.",
                hint="omit it; the functions antiphase.epsilon and antiphase.delta set it",
            )

    def scaled(self, factor: float) -> Bound:
        """Return a bound with `factor` times this value, for factor >= 0."""
        if not factor >= 0:
            raise InvalidArgument(
                f"The 'factor' parameter of Bound.scaled must be non-negative. Got {factor} instead.",
                hint="a negative factor would turn an upper bound into a lower one",
            )
        return replace(self, value=self.value * factor)


def worst_kind(kinds: Iterable[Kind]) -> Kind:
    """Return the weakest of the given kinds. A number that is computed from several bounds has this kind.

    >>> worst_kind(["exact", "confident", "upper"])
    'confident'
    """
    return max(kinds, key=KINDS.index, default="exact")


def digits_up(value: float, digits: int = 6) -> str:
    """Return `value` as text with `digits` significant digits, like Python's format "g" but rounded up.

    >>> digits_up(1e-5), digits_up(1.0000049e-5), digits_up(1.0), digits_up(0.1)
    ('1e-05', '1.00001e-05', '1', '0.1')
    """
    shortest = Decimal(repr(float(value)))  # repr gives the shortest decimal that identifies the float
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).plus(shortest)):.{digits}g}"


def rounded_up(value: float, decimals: int = 4) -> str:
    """Return `value` as text with `decimals` decimal places, rounded up so that it never understates epsilon or delta.

    If `decimals` is at least 3, a value below 10^(2 - decimals) gets `decimals` significant digits instead. With
    `decimals` decimal places, such a value would lose most of its digits.

    >>> rounded_up(1.00001), rounded_up(0.5), rounded_up(2.00000001, 6), rounded_up(math.inf), rounded_up(1.23456e-6)
    ('1.0001', '0.5000', '2.000001', 'infinity', '1.235e-06')
    """
    if not math.isfinite(value):
        return "infinity"
    if decimals >= 3 and 0.0 < value < 10.0 ** (2 - decimals):
        up = Context(prec=decimals, rounding=ROUND_CEILING).plus(Decimal(value))
        return f"{float(up):.{decimals}g}"
    exact = Context(prec=400, rounding=ROUND_CEILING)  # more digits than any float needs
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), context=exact))
