"""Frozen dataclasses that compare by value and round-trip through JSON.

Arrays of up to 1,024 numbers are written as readable lists, larger ones as base64 of their little-endian float64 bytes.
Both forms preserve every bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints, overload

import numpy as np

from antiphase._check import immutable, plain, shown
from antiphase._errors import InvalidArgument

T = TypeVar("T")
LARGEST_LIST = 1024  # maximum number of entries of an array that is written as a list
_classes: dict[str, type] = {}  # tag to class
_tags: dict[type, str] = {}
_OPTIONAL = "optional"


@overload
def record(cls: type[T], /) -> type[T]: ...


@overload
def record(*, tag: str) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, eq_default=False)
def record(cls: type[Any] | None = None, /, *, tag: str = "") -> Any:
    """Turn a class into a frozen dataclass that is hashable, compares by value and round-trips through JSON.

    Args:
        cls: the class, if the decorator is used without arguments.
        tag: name of the type in JSON and in fingerprints (hashes of the JSON), by default the name of the class. Files,
            noise keys and sampler seeds depend on the tag, so if you rename a class, pass its old name as the tag.
    """
    if cls is None:
        return lambda renamed: _register(renamed, tag)
    return _register(cls, cls.__name__)


def _register(cls: type[T], tag: str) -> type[T]:
    if tag in _classes:
        raise TypeError(f"the records {_classes[tag].__qualname__} and {cls.__qualname__} have the same tag, {tag!r}")
    check = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        _make_strings_plain(self)
        if check is not None:
            check(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    made = dataclass(frozen=True, eq=False)(cls)
    made.__eq__ = _equal  # type: ignore[method-assign]
    made.__hash__ = _hash  # type: ignore[method-assign]
    made.__setstate__ = _set_state  # type: ignore[attr-defined]
    _classes[tag], _tags[made] = made, tag
    return made


def optional(default: Any) -> Any:
    """Declare a dataclass field with a default. JSON and fingerprints omit the field if it has that default.

    Adding such a field to a record therefore changes neither stored files nor fingerprints.
    """
    return field(default=default, metadata={_OPTIONAL: True})


def tag_of(value: Any) -> str:
    """Return the type name of a record in JSON, which stays the same when its class is renamed."""
    return _tags[type(value)]


def to_json(value: Any) -> Any:
    """Return plain lists, dictionaries, strings and numbers that `from_json` turns back into `value`.

    >>> from antiphase import PrefixSum
    >>> to_json(PrefixSum())
    {'type': 'PrefixSum'}
    """
    if type(value) in _tags:
        data = {f.name: to_json(getattr(value, f.name)) for f in fields(value) if f.init and not _is_left_out(f, value)}
        return {"type": tag_of(value), **data}
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
    """Parse JSON that Antiphase wrote; raise ValueError for JSON that it never writes.

    Besides invalid syntax, this rejects NaN, infinity, numbers too large for a float, duplicate keys, nesting that is
    too deep to parse, and strings that are not valid Unicode.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_without_repeats)
        json.dumps(value, ensure_ascii=False).encode()  # raises for lone surrogates
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    return value


def from_json(data: Any) -> Any:
    """Rebuild the value that `to_json` wrote. Raise if a field has the wrong type or a constructor rejects it."""
    if isinstance(data, list):
        return [from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    if "float64" in data:
        return _array_from_json(data)
    tag = data.get("type")
    if not isinstance(tag, str) or tag not in _classes:
        raise InvalidArgument(
            f"The stored type {shown(tag)} is unknown to this version.",
            hint=f"the known types are {', '.join(sorted(_classes))}",
        )
    arguments = {key: from_json(item) for key, item in data.items() if key != "type"}
    _check_types(tag, arguments)
    try:
        return _classes[tag](**arguments)
    except TypeError as error:
        raise InvalidArgument(
            f"The stored {tag} has unexpected or missing fields: {error}.",
            hint="it was written by a different version or edited by hand; restore it from a copy",
        ) from error


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`; equal values have equal fingerprints."""
    return json_digest(to_json(value))


def json_digest(data: Any) -> str:
    """Return the SHA-256 of JSON data in canonical form: sorted keys, no spaces."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _make_strings_plain(self: Any) -> None:
    """Convert each field that is an instance of a subclass of `str` to a plain `str`."""
    for f in fields(self):
        value = getattr(self, f.name, None)
        if isinstance(value, str) and type(value) is not str:
            object.__setattr__(self, f.name, plain(value))


def _is_left_out(f: Field[Any], value: Any) -> bool:
    return _OPTIONAL in f.metadata and bool(getattr(value, f.name) == f.default)


def _check_types(tag: str, arguments: dict[str, Any]) -> None:
    """Raise unless every stored value has the declared type of its field."""
    hints = _field_types(_classes[tag])
    for name, value in arguments.items():
        if name in hints and not _fits(value, hints[name]):
            raise InvalidArgument(
                f"The field {name!r} of the stored {tag} has the wrong type: {shown(value)}.",
                hint="it was written by a different version or edited by hand; restore it from a copy",
            )


@cache
def _field_types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value read from JSON has the type `hint`. A list is accepted for a tuple or an array."""
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
    """Return whether the items of a tuple have their declared types; (T, ...) means any number of T."""
    kinds = hints[:1] * len(values) if hints[-1] is Ellipsis else hints
    return len(kinds) == len(values) and all(map(_fits, values, kinds))


def _is_numeric(value: Any) -> bool:
    """Return whether nested lists contain only numbers."""
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return _fits(value, float)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the JSON contains {text[:20]}, which is not a finite number")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("the JSON has a duplicate key")
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
            f"A stored array cannot be read: {error}.",
            hint="the file was truncated or edited by hand; restore it from a copy",
        ) from error


def _equal(self: Any, other: Any) -> bool:
    if type(self) is not type(other):
        return NotImplemented
    pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
    return all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b for a, b in pairs
    )


def _set_state(self: Any, state: dict[str, Any]) -> None:
    """Restore the fields from a pickle or a copy, and make their arrays immutable again."""
    names = {f.name for f in fields(self)}
    for name, value in state.items():
        stays = name not in names or not isinstance(value, np.ndarray) or value.size == 0
        object.__setattr__(self, name, value if stays else immutable(value))


def _hash(self: Any) -> int:
    return hash(fingerprint(self))
