"""Frozen data classes that compare by value and round-trip through JSON.

Small arrays are written as lists of numbers, which a person can read; arrays of more than 1,024 numbers
as base64 of their little-endian float64 bytes. Both come back bit for bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

import numpy as np

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


def from_json(data: Any) -> Any:
    """The inverse of `to_json`; every constructor checks its arguments again."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "float64" in data:
        return _array_from_json(data)
    name = data.get("type")
    if name not in _types:
        raise InvalidArgument(
            f"The stored type {name!r} is not one this version knows.",
            hint=f"known types are {', '.join(sorted(_types))}",
        )
    arguments = {key: from_json(item) for key, item in data.items() if key != "type"}
    try:
        return _types[name](**arguments)
    except TypeError as error:
        raise InvalidArgument(
            f"The stored {name} has fields that do not fit: {error}.",
            hint="it was written by another version or edited by hand",
        ) from error


def fingerprint(value: Any) -> str:
    """SHA-256 of the canonical JSON of `value`: equal values, equal fingerprints."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_left_out(f: Field[Any], value: Any) -> bool:
    return _OPTIONAL in f.metadata and bool(getattr(value, f.name) == f.default)


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
