"""Integer operations with 128-bit intermediate results, which Numba has no type for.

A 128-bit integer is represented by a pair (high, low) of an int64 and a uint64: its value is 2^64 high + low.

    multiply_unsigned(a, b)            (high, low) of the product of two uint64; `high` is also a uint64
    multiply_add(high, low, a, b)      (high, low) + a b for two int64
    rounded_shift(high, low, shift)    floor((high, low) / 2^shift + 1/2) as an int64, modulo 2^64, for 0 < shift < 127
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDE = ir.IntType(128)
WORD = ir.IntType(64)
UNSIGNED_PAIR: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
SIGNED_PAIR: Any = types.Tuple((types.int64, types.uint64))  # type: ignore[no-untyped-call]


def _split(context: Any, builder: Any, pair: Any, value: Any) -> Any:
    high = builder.trunc(builder.lshr(value, WIDE(64)), WORD)
    return context.make_tuple(builder, pair, [high, builder.trunc(value, WORD)])


def _joined(builder: Any, high: Any, low: Any) -> Any:
    return builder.or_(builder.shl(builder.zext(high, WIDE), WIDE(64)), builder.zext(low, WIDE))


def _multiply_unsigned(typing_context: Any, a: Any, b: Any) -> Any:
    if a != types.uint64 or b != types.uint64:
        return None  # Numba reports that no such operation exists

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, right = (builder.zext(given, WIDE) for given in arguments)
        return _split(context, builder, UNSIGNED_PAIR, builder.mul(left, right))

    return UNSIGNED_PAIR(a, b), generate


def _multiply_add(typing_context: Any, high: Any, low: Any, a: Any, b: Any) -> Any:
    if (high, low, a, b) != (types.int64, types.uint64, types.int64, types.int64):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before = _joined(builder, arguments[0], arguments[1])
        left, right = (builder.sext(given, WIDE) for given in arguments[2:])
        return _split(context, builder, SIGNED_PAIR, builder.add(before, builder.mul(left, right)))

    return SIGNED_PAIR(high, low, a, b), generate


def _rounded_shift(typing_context: Any, high: Any, low: Any, shift: Any) -> Any:
    if (high, low) != (types.int64, types.uint64) or not isinstance(shift, (types.Integer, types.IntegerLiteral)):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places = builder.zext(context.cast(builder, arguments[2], shift, types.int64), WIDE)
        half = builder.shl(WIDE(1), builder.sub(places, WIDE(1)))
        value = builder.add(_joined(builder, arguments[0], arguments[1]), half)
        return builder.trunc(builder.ashr(value, places), WORD)

    return types.int64(high, low, shift), generate


multiply_unsigned: Any = intrinsic(_multiply_unsigned)
multiply_add: Any = intrinsic(_multiply_add)
rounded_shift: Any = intrinsic(_rounded_shift)
