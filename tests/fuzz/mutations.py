"""Seeded damage to files: bytes flipped, cut and copied; JSON values removed, exchanged and replaced by absurd ones."""

import copy
import hashlib
import json
import random
import re
from typing import Any

RAW = "raw JSON: "  # marks a string that is written without quotes, for what json.dumps cannot write
HUGE = [10**15, 2**53, 2**63, 10**40, -(10**40), 1e308, -1e308, 5e-324, RAW + "1e400", RAW + "9" * 5000]
NOT_NUMBERS = [RAW + "NaN", RAW + "Infinity", RAW + "-Infinity"]
DEPTH = 50_000
DEEP = [RAW + "[" * DEPTH + "]" * DEPTH, RAW + '{"type":' * DEPTH + "1" + "}" * DEPTH]
TEXTS = ["", "x", "\ud800", "\x1b[31mred\x1b[0m", "\u202eevil", "a\nb", "é" * 300, "\x00"]
OTHERS = [None, True, False, 0, 1, -1, 0.5, -0.0, [], {}, [[]], {"type": "Plan"}, {"type": "PrefixSum"}, {"type": []}]
ARRAYS = [{"float64": "AAAA", "shape": [1]}, {"float64": 1, "shape": "x"}, {"float64": "", "shape": [-1]}]


def damage_bytes(data: bytes, random: random.Random) -> bytes:
    """One or a few bytes, or a stretch of them."""
    if not data:
        return b"\x00"
    start = random.randrange(len(data))
    stop = min(len(data), start + random.choice([1, 2, 16, 200]))
    match random.randrange(6):
        case 0:
            return data[:start] + bytes([data[start] ^ (1 << random.randrange(8))]) + data[start + 1 :]
        case 1:
            return data[:start] + random.randbytes(stop - start) + data[stop:]
        case 2:
            return data[:start]
        case 3:
            return data[:start] + data[stop:]
        case 4:
            return data[:stop] + data[start:]
    return data[:start] + random.choice([b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b" ", b"\n", b"{", b'"']) + data[start:]


def damage_json(data: Any, random: random.Random) -> tuple[Any, bool]:
    """A copy of `data` with one to three values changed, and whether keys are to be written twice."""
    changed = copy.deepcopy(data)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        _change_one(changed, random)
    return changed, random.random() < 0.05


def _change_one(data: Any, random: random.Random) -> None:
    places = list(_places(data))
    if not places:
        return
    holder, key = random.choice(places)
    match random.randrange(9):
        case 0:
            del holder[key]
        case 1:
            other, other_key = random.choice(places)
            holder[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(holder[key])
        case 2:
            holder[key] = random.choice(HUGE + NOT_NUMBERS)
        case 3:
            holder[key] = random.choice(TEXTS)
        case 4:
            holder[key] = random.choice(DEEP) if random.random() < 0.3 else [[[holder[key]]]]
        case 5:
            holder[key] = copy.deepcopy(random.choice(ARRAYS))
        case 6:
            value = holder[key]
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                holder[key] = random.choice([value + 1, value - 1, 1.01 * value, -value, str(value), [value]])
            elif isinstance(value, list):
                holder[key] = random.choice([value[:-1], value + value[-1:], [*value, "x"], {"0": value}])
            else:
                holder[key] = random.choice(["PrefixSum", "Toeplitz", "Plan", "Dense", 7])
        case 7:
            if isinstance(holder, dict):
                holder[random.choice(["", "extra", "type", "float64", "\ud800"])] = holder[key]
            else:
                holder.insert(key, copy.deepcopy(holder[key]))
        case 8:
            holder[key] = copy.deepcopy(random.choice(OTHERS))


def _places(data: Any):
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from _places(data[key])


def written(data: Any, twice: bool = False) -> bytes:
    """The JSON text of damaged data, with its first key given twice if wanted."""
    text = json.dumps(data)
    text = re.sub(rf'"{RAW}((?:[^"\\\\]|\\\\.)*)"', lambda raw: json.loads(f'"{raw[1]}"'), text)
    if twice and isinstance(data, dict) and data:
        text = f"{{{json.dumps(next(iter(data)))}: null, {text[1:]}"
    return text.encode()


def with_fingerprint(data: Any) -> Any:
    """A plan's data with the unkeyed fingerprint that whoever edits it can compute."""
    try:
        parts = [data["plan"][name] for name in ("problem", "mechanism", "root")]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    except (TypeError, KeyError, IndexError, RecursionError):
        return data
    return {**data, "fingerprint": hashlib.sha256(text.encode()).hexdigest()}


def damage_file(data: bytes, random: random.Random) -> bytes:
    """A JSON file with either its bytes or its values damaged."""
    if random.random() < 0.3:
        return damage_bytes(data, random)
    changed, twice = damage_json(json.loads(data), random)
    return written(changed, twice)


def damage_plan(data: bytes, random: random.Random) -> bytes:
    """As `damage_file`, every other time with the fingerprint computed again."""
    if random.random() < 0.5:
        return damage_file(data, random)
    changed, _ = damage_json(json.loads(data), random)
    return written(with_fingerprint(changed) if isinstance(changed, dict) else changed)
