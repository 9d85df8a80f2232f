"""Floating-point operations whose bits do not depend on the platform.

IEEE 754 requires addition, multiplication, division, square root and fused multiply-add to be correctly rounded, so a
fixed sequence of these operations gives the same bits on every machine. Logarithms and sines from a system library can
differ between machines. The noise kernels use only correctly rounded operations. To add a product, they call `fma`
explicitly, so that the result does not depend on whether the compiler fuses multiplication and addition.

    fma(a, b, c)   a b + c with one rounding; all three float32 or all three float64
    bits_of(x)     the bits of a float32 as int32, or of a float64 as int64
    float_of(i)    the float32 with the bits of an int32, or the float64 with the bits of an int64
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

STORAGE = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int32: ir.IntType(32),
    types.int64: ir.IntType(64),
}
TWINS = {types.float32: types.int32, types.float64: types.int64}
TWINS_BACK = {integer: real for real, integer in TWINS.items()}


def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    if a not in TWINS or b != a or c != a:
        return None  # Numba reports that no such operation exists

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), generate


def _reinterpreted(twins: dict[Any, Any]) -> Any:
    def typed(typing_context: Any, x: Any) -> Any:
        if x not in twins:
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], STORAGE[twins[x]])

        return twins[x](x), generate

    return typed


fma: Any = intrinsic(_fused)
bits_of: Any = intrinsic(_reinterpreted(TWINS))
float_of: Any = intrinsic(_reinterpreted(TWINS_BACK))
