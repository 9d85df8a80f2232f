"""Argument checks. Their errors say what a parameter must be, what was passed, and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase._errors import InvalidArgument

Array = NDArray[np.float64]
T = TypeVar("T", bound=str)
LARGEST_COUNT = 1 << 53  # a float cannot represent every larger integer
LONGEST_SHOWN = 200  # most characters of an invalid value in an error message


def invalid(owner: str, name: str, must: str, got: Any, hint: str) -> InvalidArgument:
    """Return the error for an invalid parameter, for the caller to raise."""
    return InvalidArgument(f"The {name!r} parameter of {owner} must be {must}. Got {shown(got)} instead.", hint=hint)


def shown(value: Any) -> str:
    """Return `repr(value)`, with the middle left out if it is long.

    Of arrays and bytes, which may be noise, gradients or keys, only type and size are shown: errors end up in logs.

    >>> shown(0.5), len(shown("x" * 10_000)), shown(10**5000)
    ('0.5', 205, 'an integer of 16610 bits')
    >>> shown([np.zeros(3)]), shown(np.zeros(3)), shown(b"key")
    ('a list of 1 with arrays or bytes', 'a ndarray of shape (3,) and dtype float64', '3 bytes')
    """
    described = _without_contents(value)
    if described is not None:
        return described
    try:
        text = repr(value)
    except ValueError:  # Python does not convert integers of more than 4,300 digits to text
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be shown"
    if len(text) <= LONGEST_SHOWN:
        return text
    return f"{text[: LONGEST_SHOWN // 2]} ... {text[-LONGEST_SHOWN // 2 :]}"


def _without_contents(value: Any, depth: int = 4) -> str | None:
    """Describe an array, bytes, or what holds them up to `depth` levels down; None for anything else."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        items = value.values() if isinstance(value, dict) else value
        if depth and any(_without_contents(item, depth - 1) is not None for item in items):
            return f"a {type(value).__name__} of {len(value)} with arrays or bytes"
        return None
    if isinstance(value, (type, np.generic)) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return None
    return f"a {type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"


def positive_integer(owner: str, name: str, value: Any, hint: str = "counts start at 1") -> int:
    """Return `value` as an int from 1 to 2^53; booleans and fractions raise."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise invalid(owner, name, "a positive integer", value, hint)
    if value > LARGEST_COUNT:
        raise invalid(owner, name, "at most 2^53", value, "check for a typo; larger counts are not supported")
    return int(value)


def text(owner: str, name: str, value: Any, hint: str) -> str:
    """Return `value`, and check that it is a string without lone surrogates, which cannot be written to a file."""
    if not isinstance(value, str):
        raise invalid(owner, name, "a string", value, hint)
    value = plain(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(
            owner, name, "text that can be encoded in UTF-8", value, "remove the lone surrogates, such as '\\ud800'"
        ) from None
    return value


def plain(value: str) -> str:
    """Return the characters of a string as a `str`; a subclass may encode, compare and print as it likes."""
    return str.__str__(value)


def one_of(owner: str, name: str, value: Any, allowed: Sequence[T], hint: str) -> T:
    """Return the one of the `allowed` strings that `value` equals, as a plain `str`."""
    given = plain(value) if isinstance(value, str) else None
    for known in allowed:
        if known == given:
            return known
    names = [repr(known) for known in allowed]
    raise invalid(owner, name, f"{', '.join(names[:-1])} or {names[-1]}", value, hint)


def real(owner: str, name: str, value: Any, low: float, high: float, hint: str) -> float:
    """Return `value` as a finite float in the closed interval [low, high]."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, (bool, str, bytes)) or not math.isfinite(number) or not low <= number <= high:
        raise invalid(owner, name, f"a finite number in [{low}, {high}]", value, hint)
    return number


def array(owner: str, name: str, value: ArrayLike, ndim: int) -> Array:
    """Return `value` as an immutable, finite, non-empty float64 array of `ndim` dimensions."""
    try:
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(owner, name, "an array of numbers", value, "pass a NumPy array or nested lists") from error
    if result.ndim != ndim or result.size == 0:
        raise invalid(
            owner, name, f"a non-empty array of {ndim} dimension(s)", f"shape {result.shape}", "check its shape"
        )
    result = immutable(result)
    if not np.isfinite(result).all():
        raise invalid(
            owner, name, "finite in every entry", "NaN or infinity", "check its computation for a division by zero"
        )
    return result


def immutable(value: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array of numbers that stays read-only.

    A flag can be lifted by whoever owns the memory. This memory belongs to a `bytes` object, which nobody can write to.

    >>> immutable(np.ones(3)).setflags(write=True)
    Traceback (most recent call last):
    ValueError: cannot set WRITEABLE flag to True of this array
    """
    if not (value.flags.c_contiguous or value.flags.f_contiguous):
        value = np.array(value)  # in the order of memory that is closest to that of the view
    order: Literal["C", "F"] = "C" if value.flags.c_contiguous else "F"
    return np.frombuffer(value.tobytes(order), value.dtype).reshape(value.shape, order=order)
