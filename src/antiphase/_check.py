"""Argument checks. Each error says what the parameter must be, what was passed, and what to change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase._errors import InvalidArgument

Array = NDArray[np.float64]
T = TypeVar("T", bound=str)
LARGEST_COUNT = 1 << 53  # float64 represents every integer up to this one exactly
LONGEST_SHOWN = 200  # maximum number of characters of an invalid value in an error message


def invalid(owner: str, name: str, must: str, got: Any, hint: str) -> InvalidArgument:
    """Return an `InvalidArgument` error for the caller to raise.

    Args:
        owner: name of the function or class that has the parameter.
        name: name of the parameter.
        must: what the parameter must be, as in "The 'x' parameter of f must be ...".
        got: the value that was passed.
        hint: what to change.
    """
    return InvalidArgument(f"The {name!r} parameter of {owner} must be {must}. Got {shown(got)} instead.", hint=hint)


def shown(value: Any) -> str:
    """Return `repr(value)` for an error message, with the middle omitted if it is long.

    Arrays and bytes are described by type and size only. Error messages end up in logs, and the contents may be noise,
    gradients or keys.

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
    """Return a description of `value` if it is an array or bytes, or a container that holds one; otherwise None.

    Containers are searched up to `depth` levels deep.
    """
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
    """Return `value` as an int from 1 to 2^53; raise for anything else, such as booleans and floats."""
    number = integer(value)
    if number is None or number < 1:
        fraction = isinstance(value, (float, np.floating)) and not float(value).is_integer()
        raise invalid(owner, name, "a positive integer", value, "round it to a whole number" if fraction else hint)
    if number > LARGEST_COUNT:
        raise invalid(owner, name, "at most 2^53", value, "check for a typo; larger counts are not supported")
    return number


def integer(value: Any) -> int | None:
    """Return an integer as a plain int, and None for anything else, such as booleans, floats and durations.

    An instance of a subclass of int is converted too, because a subclass may override comparison and conversion.
    """
    # NumPy derives timedelta64 from its integers.
    if isinstance(value, (bool, np.timedelta64)) or not isinstance(value, (int, np.integer)):
        return None
    return int.__index__(value) if isinstance(value, int) else int(value)


def boolean(owner: str, name: str, value: Any, hint: str) -> bool:
    """Return `value` as a plain bool; raise for anything else, such as 1 or "False"."""
    if not isinstance(value, (bool, np.bool_)):
        raise invalid(owner, name, "True or False", value, hint)
    return bool(value)


def text(owner: str, name: str, value: Any, hint: str) -> str:
    """Return `value` as a plain `str`; raise unless it is a string that can be encoded in UTF-8."""
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
    """Return a string as a plain `str`, because a subclass of `str` may encode, compare or print differently."""
    return str.__str__(value)


def one_of(owner: str, name: str, value: Any, allowed: Sequence[T], hint: str) -> T:
    """Return `value` as a plain `str`; raise unless it equals one of the `allowed` strings."""
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
    """Return `value` as an immutable float64 array; raise unless it is finite, non-empty and has `ndim` dimensions."""
    try:
        if np.iscomplexobj(value):  # NumPy would drop the imaginary parts with only a warning
            raise TypeError
        result = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(owner, name, "an array of real numbers", value, "pass a NumPy array or nested lists") from error
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
    """Return an immutable copy of an array.

    The memory of the copy belongs to a `bytes` object, so NumPy refuses to make the copy writeable again. (If an array
    owns its memory, its read-only flag can be reset.)

    >>> immutable(np.ones(3)).setflags(write=True)
    Traceback (most recent call last):
    ValueError: cannot set WRITEABLE flag to True of this array
    """
    if not (value.flags.c_contiguous or value.flags.f_contiguous):
        value = np.array(value)  # make a contiguous copy, in the memory order closest to that of the view
    order: Literal["C", "F"] = "C" if value.flags.c_contiguous else "F"
    return np.frombuffer(value.tobytes(order), value.dtype).reshape(value.shape, order=order)
