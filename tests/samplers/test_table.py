"""The 128-bit tables against exact fractions, and the formulas of random min-separation against the chain."""

from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from scipy import stats

from antiphase._samplers.table import (
    LARGEST_BLOCK,
    at_least_once,
    binomial,
    block_size,
    truncated_geometric,
    waiting_rate,
)

UNIT = 2**128
SMALLEST = 5e-324
RATES = [1.0, 1 - 2**-53, 0.9, 0.5, 1 / 3, 0.01, 2**-30]


def integers(table):
    return [int(high) << 64 | int(low) for high, low in table]


def masses(table, values):
    """The probability of each value 0, ..., values - 1, as the draws see it."""
    edges = [0, *integers(table), *[UNIT] * (values - len(table))]
    return [Fraction(b - a, UNIT) for a, b in pairwise(edges[: values + 1])]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("trials", [1, 8, 30])
def test_binomial_is_exact_to_two_units(rate, trials):
    q = Fraction(rate)
    exact = [comb(trials, k) * q**k * (1 - q) ** (trials - k) for k in range(trials + 1)]
    for mass, truth in zip(masses(binomial(trials, Decimal(rate)), trials + 1), exact, strict=True):
        assert abs(mass - truth) <= Fraction(2, UNIT)


def test_a_large_binomial_agrees_with_scipy_and_keeps_its_tail():
    trials, rate = 2**33, 2.0**-30
    found = [float(mass) for mass in masses(binomial(trials, Decimal(rate)), 60)]
    np.testing.assert_allclose(found[:40], stats.binom.pmf(range(40), trials, rate), rtol=1e-6)
    # Down to 2^-128 nothing is lost: the chance of 50 where 8 are expected is about 1e-24.
    np.testing.assert_allclose(found[50], stats.poisson.pmf(50, 8.0), rtol=1e-6)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_truncated_geometric_is_exact_to_two_units(rate, length):
    q = 1 - Fraction(rate)
    exact = [Fraction(rate) * q**k / (1 - q**length) for k in range(length)]
    for mass, truth in zip(masses(truncated_geometric(length, Decimal(rate)), length), exact, strict=True):
        assert abs(mass - truth) <= Fraction(2, UNIT)


def test_tables_at_the_smallest_rate_are_sound():
    rate = Decimal(SMALLEST)
    assert len(binomial(LARGEST_BLOCK, rate)) == 0  # a success has no chance that 128 bits can show
    np.testing.assert_allclose([float(m) for m in masses(truncated_geometric(4, rate), 4)], 0.25)
    assert float(at_least_once(1000, rate) / rate) == pytest.approx(1000)


def test_tables_ascend_so_that_a_search_is_right():
    for table in [binomial(800, Decimal("0.01")), truncated_geometric(500, Decimal("0.01"))]:
        assert integers(table) == sorted(integers(table))
        assert bisect_right(integers(table), UNIT - 1) == len(table)


@pytest.mark.parametrize(("rate", "size"), [(1.0, 8), (0.9, 8), (0.5, 16), (0.001, 7999), (SMALLEST, LARGEST_BLOCK)])
def test_blocks_hold_about_eight(rate, size):
    assert block_size(Decimal(rate)) == size


@pytest.mark.parametrize(("separation", "rate"), [(1, 0.3), (2, 0.5), (5, 0.1), (5, 1.0), (40, 0.01)])
def test_waiting_rate_is_that_of_the_stationary_chain(separation, rate):
    chain = np.eye(separation, k=-1)  # remaining wait w goes to w - 1
    chain[0, 0] += 1 - rate
    chain[0, separation - 1] += rate
    values, vectors = np.linalg.eig(chain.T)
    stationary = vectors[:, np.argmin(abs(values - 1))].real
    stationary /= stationary.sum()
    assert float(waiting_rate(separation, Decimal(rate))) == pytest.approx(1 - stationary[0])
    np.testing.assert_allclose(stationary[1:], rate * stationary[0])


@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-12])
def test_at_least_once(rate):
    exact = 1 - (1 - Fraction(rate)) ** 30
    assert abs(Fraction(at_least_once(30, Decimal(rate))) - exact) < Fraction(1, 10**100)
