"""Rigorous bounds on exponentials in integer arithmetic.

An interval (low, high) of integers stands for all real numbers from low / 2^bits to high / 2^bits. Every function
rounds outwards, so that the interval contains the true value.
"""

from __future__ import annotations

from fractions import Fraction

GUARD = 32  # number of extra bits in intermediate results
SMALL = 8  # the exponent is halved until it is below 2^-SMALL

Interval = tuple[int, int]


def ceil_divided(a: int, b: int) -> int:
    """Return ceil(a / b) for positive b."""
    return -(-a // b)


def times(a: Interval, b: Interval, bits: int) -> Interval:
    """Return an interval that contains x y for all x in a and y in b. No number in a or b may be negative."""
    return a[0] * b[0] >> bits, ceil_divided(a[1] * b[1], 1 << bits)


def exp_minus(x: Fraction, bits: int) -> Interval:
    """Return integers (low, high) with low <= 2^bits exp(-x) <= high, for x >= 0.

    First, exp(-x / 2^r) is computed from its series, where r is the number of halvings. The partial sums of the series
    are alternately above and below the true value. The result is then squared r times.

    >>> low, high = exp_minus(Fraction(1), 60)
    >>> high - low <= 2, abs(low / 2**60 - 0.36787944117144233) < 1e-15
    (True, True)
    """
    if x < 0:
        raise ValueError("exp_minus needs x >= 0")
    halvings = max((x.numerator // x.denominator).bit_length() + SMALL, 0)
    work = bits + halvings + GUARD
    numerator, denominator = x.numerator, x.denominator << halvings
    low = high = term_low = term_high = 1 << work
    i = 0
    while term_high > 1:  # stop once a term is at most 2^-work
        i += 1
        term_low = term_low * numerator // (denominator * i)
        term_high = ceil_divided(term_high * numerator, denominator * i)
        low, high = (low - term_high, high - term_low) if i % 2 else (low + term_low, high + term_high)
    value = (max(low - 1, 0), high + 1)  # in absolute value, the sum of the omitted terms is at most the first of them
    for _ in range(halvings):
        value = times(value, value, work)
    return value[0] >> (work - bits), ceil_divided(value[1], 1 << (work - bits))
