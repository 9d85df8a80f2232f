"""Frozen data classes that compare by value and round-trip through JSON.

Small arrays are written as lists of numbers, which a person can read; arrays of more than 1,024 numbers
as base64 of their little-endian float64 bytes. Both come back bit for bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import types
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np

from antiphase._check import shown
from antiphase._errors import InvalidArgument

T = TypeVar("T")
LARGEST_LIST = 1024
_types: dict[str, type] = {}
_OPTIONAL = "optional"


@dataclass_transform(frozen_default=True, eq_default=False)
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass with equality by value, a hash, and a name that `from_json` knows."""
    made = dataclass(frozen=True, eq=False)(cls)
    made.__eq__ = _equal  # type: ignore[method-assign]
    made.__hash__ = _hash  # type: ignore[method-assign]
    if made.__name__ in _types:
        raise TypeError(f"two records are named {made.__name__}")
    _types[made.__name__] = made
    return made


def optional(default: Any) -> Any:
    """A field that JSON leaves out while it has its default, so that older files and fingerprints stay as they are."""
    return field(default=default, metadata={_OPTIONAL: True})


def to_json(value: Any) -> Any:
    """Plain lists, dictionaries, strings and numbers that `from_json` turns back into `value`.

    >>> from antiphase import PrefixSum
    >>> to_json(PrefixSum())
    {'type': 'PrefixSum'}
    """
    if type(value).__name__ in _types:
        data = {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.init and not _is_left_out(f, value)}
        return {"type": type(value).__name__, **data}
    if isinstance(value, np.ndarray):
        return _array_to_json(value)
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text that Antiphase wrote; raises ValueError for anything that it would not write.

    Refused besides bad syntax: NaN, infinity and numbers too large for a float, keys given twice, nesting too deep to
    read, and strings that are not Unicode text.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repeats)
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def from_json(data: Any) -> Any:
    """The inverse of `to_json`; the type of every field is checked, and constructors check their arguments again."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "float64" in data:
        return _array_from_json(data)
    name = data.get("type")
    if not isinstance(name, str) or name not in _types:
        raise InvalidArgument(
            f"The stored type {shown(name)} is not one this version knows.",
            hint=f"known types are {', '.join(sorted(_types))}",
        )
    arguments = {key: from_json(item) for key, item in data.items() if key != "type"}
    _check_types(_types[name], arguments)
    try:
        return _types[name](**arguments)
    except TypeError as error:
        raise InvalidArgument(
            f"The stored {name} has fields that do not fit: {error}.",
            hint="it was written by another version or edited by hand",
        ) from error


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`: equal values, equal fingerprints."""
    return json_digest(to_json(value))


def json_digest(data: Any) -> str:
    """SHA-256 of JSON data in canonical form: sorted keys, no blanks."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_left_out(f: Field[Any], value: Any) -> bool:
    return _OPTIONAL in f.metadata and bool(getattr(value, f.name) == f.default)


def _check_types(cls: type, arguments: dict[str, Any]) -> None:
    """Refuse stored values that are not of the types that the fields of the record are declared with."""
    hints = _field_types(cls)
    for name, value in arguments.items():
        if name in hints and not _fits(value, hints[name]):
            raise InvalidArgument(
                f"The stored {cls.__name__} has {shown(value)} in its field {name!r}, which is of another type.",
                hint="it was written by another version or edited by hand",
            )


@cache
def _field_types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value read from JSON is one of a type; a list stands for tuples and arrays."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if origin is tuple:
        return isinstance(value, (list, tuple)) and _all_fit(value, parts)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) or (isinstance(value, list) and _is_numeric(value))
    kinds = {float: (int, float), int: (int,)}.get(hint, (hint,))
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))


def _all_fit(values: Sequence[Any], hints: tuple[Any, ...]) -> bool:
    """Whether the items of a tuple are of their types; (T, ...) means any number of T."""
    kinds = hints[:1] * len(values) if hints[-1] is Ellipsis else hints
    return len(kinds) == len(values) and all(map(_fits, values, kinds))


def _is_numeric(value: Any) -> bool:
    """Whether nested lists hold numbers alone."""
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return _fits(value, float)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:20]}, which is not a finite number")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("it gives a key twice")
    return data


def _array_to_json(value: np.ndarray[Any, Any]) -> Any:
    if value.size <= LARGEST_LIST:
        return value.tolist()
    data = np.ascontiguousarray(value, dtype="<f8").tobytes()
    return {"float64": base64.b64encode(data).decode(), "shape": list(value.shape)}


def _array_from_json(data: dict[str, Any]) -> np.ndarray[Any, Any]:
    try:
        flat = np.frombuffer(base64.b64decode(data["float64"], validate=True), dtype="<f8")
        return flat.reshape(data["shape"]).astype(np.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"A stored array cannot be read: {error}.", hint="the file was cut short or edited by hand"
        ) from error


def _equal(self: Any, other: Any) -> bool:
    if type(self) is not type(other):
        return NotImplemented
    pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b for a, b in pairs
    )


def _hash(self: Any) -> int:
    return hash(fingerprint(self))
