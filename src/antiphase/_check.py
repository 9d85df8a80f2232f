"""Argument checks with one wording: what the parameter must be, what was given, what to change."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase._errors import InvalidArgument

Array = NDArray[np.float64]


def refuse(owner: str, name: str, must: str, got: Any, hint: str) -> InvalidArgument:
    """The error for a bad parameter, in the wording used everywhere."""
    return InvalidArgument(f"The {name!r} parameter of {owner} must be {must}. Got {got!r} instead.", hint=hint)


def positive_integer(owner: str, name: str, value: Any, hint: str = "counts start at 1") -> int:
    """`value` as an int >= 1; booleans and fractions are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise refuse(owner, name, "a positive integer", value, hint)
    return int(value)


def real(owner: str, name: str, value: Any, low: float, high: float, hint: str) -> float:
    """`value` as a finite float in the closed interval [low, high]."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or not low <= number <= high:
        raise refuse(owner, name, f"a finite number in [{low}, {high}]", value, hint)
    return number


def array(owner: str, name: str, value: ArrayLike, ndim: int) -> Array:
    """`value` as a read-only, finite, non-empty float64 array of `ndim` dimensions."""
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise refuse(owner, name, "an array of numbers", value, "pass a NumPy array or nested lists") from error
    if result.ndim != ndim or result.size == 0:
        raise refuse(
            owner, name, f"a non-empty array of {ndim} dimension(s)", f"shape {result.shape}", "check its shape"
        )
    if not np.isfinite(result).all():
        raise refuse(owner, name, "finite in every entry", "NaN or infinity", "look for a division by zero upstream")
    result.setflags(write=False)
    return result
