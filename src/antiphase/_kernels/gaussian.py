"""Gaussian noise from random words, with the same bits on every machine.

From one uniform u and one angle a, the Box-Muller method computes the pair of normals r cos(a), r sin(a) with
r = sqrt(-2 ln u). Unlike rejection sampling, this takes a fixed number of random words. Words come in tiles, each of
which gives TILE normals:

    float32: PAIRS words of 32 bits, the high parts of u; PAIRS low parts; PAIRS angles        (96 words)
    float64: PAIRS words of 64 bits for u; PAIRS angles                                        (64 words)

Pair p gives entries p and PAIRS + p of its tile. The angle lies in [-pi/4, pi/4). One bit changes the sign of the
cosine and another bit swaps sine and cosine. Together, the angle and these two bits cover the whole circle.

The number u has 63 bits in float32 and 53 in float64. With these words alone, the largest radius is therefore 9.42 in
float32 and 8.57 in float64. Each value of u stands for an interval, called a cell. The kernels report whether a pair is
in the smallest cell, [0, 2^-63) in float32 or (0, 2^-53] in float64. The caller then divides the cell further with
extra words and computes such pairs again with `tail_pair_32` or `tail_pair_64` (see `antiphase._noise.tail`).

The other cells are not divided. In them, u is the midpoint of the cell in float32 and its upper end in float64. This
rounds the radius by up to 2^-63 / (u r) or 2^-53 / (u r), which is negligible unless u is tiny. In float64, this error
is 2e-7 at 6.8 standard deviations and 0.08 at 8.5, where the smallest cell begins. In float32, it is 6e-5 at 8.5 and
0.08 at 9.3 standard deviations.

Logarithm, sine and cosine are computed by polynomials, using only operations that IEEE 754 requires to be correctly
rounded. The absolute error of a normal for a given u is below 2e-6 in float32 and 1e-14 in float64, mostly from
rounding the result.

Reference: Box and Muller 1958.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from antiphase._kernels.compiled import compiled
from antiphase._kernels.ieee import bits_of, float_of, fma

TILE = 64
PAIRS = TILE // 2
WORDS_32 = 3 * PAIRS
WORDS_64 = 2 * PAIRS
BITS_64 = 53  # bits of u in float64

F = np.float32
I = np.int32  # noqa: E741  (Numba widens int32 arithmetic to int64 unless each result is cast back)
Q = np.int64

ONE_32, HALF_32, ZERO_32 = F(1.0), F(0.5), F(0.0)
LN2_32, LN2_64 = F(math.log(2.0)), math.log(2.0)
ROOT_HALF_32, ROOT_HALF_64 = I(0x3F3504F3), Q(0x3FE6A09E << 32)  # sqrt(1/2); mantissas are in [sqrt(1/2), sqrt(2))
TO_ROOT_32, TO_ROOT_64 = I(0x3F800000 - 0x3F3504F3), Q((0x3FF00000 - 0x3FE6A09E) << 32)
MANTISSA_32, MANTISSA_64 = I(0x007FFFFF), Q(0x000FFFFFFFFFFFFF)
SIGN_31 = I(0x7FFFFFFF)
MAGIC = Q(0x4330000000000000)  # the bits of 2^52; OR with an integer below 2^52 gives the bits of 2^52 + integer
MAGIC_EXPONENT = 2.0**52 + 1023.0
MAGIC_ANGLE = 2.0**52 + 2.0**51 - 0.5
ANGLE_32, ANGLE_64 = F(math.pi / 4 / 2.0**30), math.pi / 4 / 2.0**51
BELOW_ROOT_32 = F(1.0 - math.sqrt(0.5))

# Minimax polynomials. The relative error of each function is below 6e-9 in float32 and below 4e-18 in float64.
# ln(1 + f) = f - f^2/2 + f^3 L(f);  ln((1 + s) / (1 - s)) = 2 s + s^3 H(s^2)
L0, L1, L2, L3 = F(0.333333317085), F(-0.250008210631), F(0.200012271037), F(-0.166233565346)
L4, L5, L6, L7 = F(0.142017516241), F(-0.131601835154), F(0.127616210989), F(-0.07634547292)
H0, H1, H2, H3 = 0.66666666666667261551, 0.39999999999458677824, 0.28571428733997536614, 0.22222199338602587783
H4, H5, H6 = 0.18183528139646932318, 0.1531490614244193254, 0.1478794703567959914
# sin x = x + x^3 S(x^2);  cos x = 1 - x^2/2 + x^4 C(x^2)
S0_32, S1_32, S2_32 = F(-0.16666654949562751832), F(0.0083321784184523406769), F(-0.00019517328459868562279)
C0_32, C1_32, C2_32 = F(0.041666646891607776969), F(-0.0013887368544827919041), F(0.000024438553546974040924)
S0, S1, S2 = -0.16666666666666632141, 0.0083333333333224382365, -0.00019841269829825909052
S3, S4, S5 = 2.7557313697881867709e-6, -2.5050759019206338457e-8, 1.5896846988226202225e-10
C0, C1, C2 = 0.041666666666666600377, -0.0013888888888874257528, 0.000024801587289556222809
C3, C4, C5 = -2.7557314371777527322e-7, 2.087572571799655875e-9, -1.1359766403188577688e-11


@njit(inline="always", error_model="numpy")
def _minus_log_32(high: int, low: int) -> float:
    """Return -ln u for u = (W + 1/2) / 2^63, where W is the 63-bit integer in the words `high` and `low`.

    The relative error is small near both u = 0 and u = 1. For u in the upper half, where the sign bit of `high` is set,
    v = 1 - u is converted to floating point instead of u, and -ln(1 - v) is returned.
    """
    flip = I(high >> I(31))
    top = I(I(high ^ flip) & SIGN_31)
    rest = I(np.uint32(I(low ^ flip)) >> np.uint32(1))
    v = fma(F(top), F(2.0**-32), (F(rest) + HALF_32) * F(2.0**-63))
    shifted = I(bits_of(v) + TO_ROOT_32)
    exponent = F(I(I(shifted >> I(23)) - I(127)))
    f = float_of(I(I(shifted & MANTISSA_32) + ROOT_HALF_32)) - ONE_32
    small = v < BELOW_ROOT_32
    upper = high < I(0)
    f = (-v if small else fma(F(-2.0), v, ONE_32)) if upper else f
    exponent = (ZERO_32 if small else -ONE_32) if upper else exponent
    w = f * f
    low_half = fma(w, fma(f, L3, L2), fma(f, L1, L0))
    high_half = fma(w, fma(f, L7, L6), fma(f, L5, L4))
    return -fma(exponent, LN2_32, fma(w * f, fma(w * w, high_half, low_half), fma(w, -HALF_32, f)))


@njit(inline="always", error_model="numpy")
def _turned_32(r: Any, low: int, angle: int) -> tuple[float, float]:
    """Return the two float32 normals for radius r.

    Bit 0 of `low` changes the sign of the cosine, and bit 0 of `angle` swaps sine and cosine.
    """
    x = (F(I(angle >> I(1))) + HALF_32) * ANGLE_32
    w = x * x
    sine = fma(x * w, fma(w, fma(w, S2_32, S1_32), S0_32), x)
    cosine = fma(w * w, fma(w, fma(w, C2_32, C1_32), C0_32), fma(w, -HALF_32, ONE_32))
    a = r * float_of(I(bits_of(cosine) | I(low << I(31))))
    b = r * sine
    swap = I(angle << I(31)) < I(0)
    return (b if swap else a), (a if swap else b)


@njit(inline="always", error_model="numpy")
def _uniform_64(word: int) -> float:
    """Return u = (k + 1) / 2^53, where k is the integer in the highest 53 bits of the word."""
    high = float_of(Q(Q(word >> np.uint64(12)) | MAGIC)) - 2.0**52
    return (high + (1.0 if Q(word << np.uint64(52)) < Q(0) else 0.5)) * 2.0**-52


@njit(inline="always", error_model="numpy")
def _minus_log_64(u: float) -> float:
    """Return -ln u for u in (0, 1] that is not subnormal."""
    shifted = Q(bits_of(u) + TO_ROOT_64)
    exponent = float_of(Q(Q(shifted >> Q(52)) | MAGIC)) - MAGIC_EXPONENT
    f = float_of(Q(Q(shifted & MANTISSA_64) + ROOT_HALF_64)) - 1.0
    s = f / (2.0 + f)
    w = s * s
    q = w * w
    low_half, high_half = fma(q, fma(w, H3, H2), fma(w, H1, H0)), fma(q, H6, fma(w, H5, H4))
    return -fma(exponent, LN2_64, fma(w * s, fma(q * q, high_half, low_half), s + s))


@njit(inline="always", error_model="numpy")
def _turned_64(r: float, word: int, angle: int) -> tuple[float, float]:
    """Return the two float64 normals for radius r.

    Bit 0 of `word` changes the sign of the cosine, and bit 1 of `word` swaps sine and cosine.
    """
    x = (float_of(Q(Q(angle >> np.uint64(12)) | MAGIC)) - MAGIC_ANGLE) * ANGLE_64
    w = x * x
    q = w * w
    sine = fma(x * w, fma(q, fma(q, fma(w, S5, S4), fma(w, S3, S2)), fma(w, S1, S0)), x)
    cosine = fma(q, fma(q, fma(q, fma(w, C5, C4), fma(w, C3, C2)), fma(w, C1, C0)), fma(w, -0.5, 1.0))
    a = r * float_of(Q(bits_of(cosine) | Q(word << np.uint64(63))))
    b = r * sine
    swap = Q(word << np.uint64(62)) < Q(0)
    return (b if swap else a), (a if swap else b)


@compiled(nogil=True, error_model="numpy")
def normals_32(words: NDArray[np.int32], out: NDArray[np.float32]) -> bool:
    """Fill each complete tile of `out` from WORDS_32 words; return whether any pair is in the smallest cell of u."""
    smallest = I(0)  # negative once a pair is in the smallest cell: (x - 1) & ~x is negative only for x = 0
    for tile in range(out.shape[0] // TILE):
        given, made = tile * WORDS_32, tile * TILE
        for p in range(PAIRS):
            high, low, angle = words[given + p], words[given + PAIRS + p], words[given + 2 * PAIRS + p]
            cell = I(high | I(low & I(-2)))
            smallest = I(smallest | I(I(cell - I(1)) & I(~cell)))
            a, b = _turned_32(F(math.sqrt(F(2.0) * _minus_log_32(high, low))), low, angle)
            out[made + p] = a
            out[made + PAIRS + p] = b
    return bool(smallest < I(0))


@compiled(nogil=True, error_model="numpy")
def normals_64(words: NDArray[np.uint64], out: NDArray[np.float64]) -> bool:
    """Fill each complete tile of `out` from WORDS_64 words; return whether any pair is in the smallest cell of u."""
    smallest = Q(0)  # negative once a pair is in the smallest cell: k - 1 is negative only for k = 0
    for tile in range(out.shape[0] // TILE):
        given, made = tile * WORDS_64, tile * TILE
        for p in range(PAIRS):
            word, angle = words[given + p], words[given + PAIRS + p]
            smallest = Q(smallest | Q(Q(word >> np.uint64(64 - BITS_64)) - Q(1)))
            a, b = _turned_64(math.sqrt(2.0 * _minus_log_64(_uniform_64(word))), word, angle)
            out[made + p] = a
            out[made + PAIRS + p] = b
    return bool(smallest < Q(0))


@compiled(nogil=True, error_model="numpy")
def tail_pair_32(v: float, halvings: float, low: int, angle: int) -> tuple[float, float]:
    """Return the two float32 normals for u = v / 2^halvings, where `low` and `angle` are the words of the pair."""
    return _turned_32(F(math.sqrt(2.0 * fma(halvings, LN2_64, _minus_log_64(v)))), low, angle)


@compiled(nogil=True, error_model="numpy")
def tail_pair_64(v: float, halvings: float, word: int, angle: int) -> tuple[float, float]:
    """Return the two float64 normals for u = v / 2^halvings, where `word` and `angle` are the words of the pair."""
    return _turned_64(math.sqrt(2.0 * fma(halvings, LN2_64, _minus_log_64(v))), word, angle)
