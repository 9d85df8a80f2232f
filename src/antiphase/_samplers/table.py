"""Discrete distributions as tables of 128-bit cumulative thresholds, computed without hardware floating point.

A random draw u in [0, 2^128) maps to the number of thresholds that are at most u. The error of each probability is at
most 2^-128, for any rate. Probabilities are computed as decimals with 400 digits. They are then converted to masses:
integers in units of 2^-256. In a table, each row is one threshold, as two 64-bit words (high, low).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

# For a rate of 2^-1074, the smallest float64, 1 - rate differs from 1 only from the 324th digit on, so 400 suffice.
PRECISE = Context(prec=400, Emin=-999_999, Emax=999_999)
MEAN_COUNT = 8
LARGEST_BLOCK = 2**40
_UNIT = 2**256
_NEGLIGIBLE = 2**126  # a probability of 2^-130, in units of 2^-256


def block_size(rate: Decimal) -> int:
    """Return the number of coins in a block of `Bernoulli`. On average, about MEAN_COUNT of them show heads."""
    with localcontext(PRECISE):
        return min(LARGEST_BLOCK, int(MEAN_COUNT / rate))


def binomial(trials: int, rate: Decimal) -> NDArray[np.uint64]:
    """Return the table for the number of successes in `trials` trials with probability `rate`, shape (thresholds, 2).

    >>> binomial(2, Decimal("0.5"))[:, 0] / 2.0**64
    array([0.25, 0.75])
    """
    with localcontext(PRECISE):
        return _thresholds(int(mass * _UNIT) for mass in _binomial_masses(trials, rate))


def truncated_geometric(length: int, rate: Decimal) -> NDArray[np.uint64]:
    """Return the table for the number of failures before the first success, given that it is less than `length`.

    >>> truncated_geometric(2, Decimal("0.5"))[:, 0] / 2.0**64
    array([0.66666667])
    """
    with localcontext(PRECISE):
        first, ratio = int(rate / at_least_once(length, rate) * _UNIT), int((1 - rate) * _UNIT)
    return _thresholds(_geometric_masses(length, first, ratio))


def at_least_once(trials: int, rate: Decimal) -> Decimal:
    """Return the probability of at least one success in `trials` trials, 1 - (1 - rate)^trials."""
    with localcontext(PRECISE):
        return 1 - (1 - rate) ** trials


def waiting_rate(separation: int, rate: Decimal) -> Decimal:
    """Return the stationary probability that an example is not eligible under `PoissonMinSeparation`.

    A drawn example becomes eligible again `separation` steps later. Let pi(r) be the stationary probability that an
    example becomes eligible in r steps, where r = 0 means that it is eligible now. The balance equations give
    pi(r) = rate * pi(0) for r = 1, ..., separation - 1. The sum of all pi(r), including pi(0), is 1.
    """
    with localcontext(PRECISE):
        waits = (separation - 1) * rate
        return waits / (1 + waits)


def _binomial_masses(trials: int, rate: Decimal) -> Iterator[Decimal]:
    if rate > Decimal("0.5"):  # count failures instead, so that the recurrence starts with a larger probability
        yield from reversed(list(_binomial_masses(trials, 1 - rate)))
        return
    mass, odds = (1 - rate) ** trials, rate / (1 - rate)
    for k in range(trials + 1):
        yield mass
        mass *= odds * (trials - k) / (k + 1)


def _geometric_masses(length: int, first: int, ratio: int) -> Iterator[int]:
    mass = first
    for _ in range(length):
        yield mass
        mass = mass * ratio // _UNIT


def _thresholds(masses: Iterable[int]) -> NDArray[np.uint64]:
    """Return floor(2^128 * cumulative probability) for the outcomes 0, 1, 2, ..., one row (high, low) each.

    The table ends where the remaining mass is negligible. That mass goes to the outcome after the last threshold.
    """
    rows, total = [], 0
    for mass in masses:
        total += mass
        if total > _UNIT - _NEGLIGIBLE:
            break
        rows.append((total >> 192, (total >> 128) & (2**64 - 1)))
    return np.array(rows, dtype=np.uint64).reshape(len(rows), 2)
