"""The dynamic programs against plain enumeration and plain recursions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase._kernels.patterns import buffered_square, separated_sum


def largest_separated_sum(values, separation, limit):
    """O(n k): the recursion of Alg. 3, one table entry for each start and count."""
    n = len(values)
    table = np.zeros((n + separation + 1, limit + 1))
    for m in range(1, limit + 1):
        for i in range(n - 1, -1, -1):
            table[i, m] = max(values[i] + table[min(i + separation, n), m - 1], table[i + 1, m])
    return table[0, limit]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(1, 12), st.integers(0, 20))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_separated_sum(values, separation, limit):
    values = np.array(values)
    found, proved = separated_sum(values, separation, limit)
    truth = largest_separated_sum(values, separation, limit)
    assert proved
    assert found == pytest.approx(truth, rel=1e-9, abs=1e-12)
    assert found >= truth * (1 - 1e-12)


@pytest.mark.parametrize("make", ["equal", "random", "rising", "spikes", "integers"])
@pytest.mark.parametrize(("separation", "limit"), [(1, 60), (7, 20), (7, 70), (40, 3), (16, 25)])
def test_separated_sum_of_many_values(make, separation, limit):
    rng, n = np.random.default_rng(3), 500
    values = {
        "equal": np.ones(n),
        "random": rng.random(n),
        "rising": np.linspace(0.0, 1.0, n),
        "spikes": (rng.random(n) < 0.1) * rng.random(n),
        "integers": rng.integers(0, 4, n).astype(float),
    }[make]
    found, proved = separated_sum(values, separation, limit)
    assert proved
    assert found == pytest.approx(largest_separated_sum(values, separation, limit), rel=1e-11)


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_few_of_very_many(limit):
    """The price comes close to the values themselves: the answer keeps its digits."""
    found, proved = separated_sum(np.full(200_000, 5.0), 16, limit)
    assert proved
    assert found == pytest.approx(5.0 * limit, rel=2e-10)
    assert found >= 5.0 * limit * (1 - 1e-15)


@pytest.mark.parametrize("separation", [1, 3, 4095, 4096, 4097, 9000])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_buffered_square_across_its_anchors(separation, limit):
    decay, scale, n = np.array([0.9999, 0.5, 0.0]), np.array([0.2, -0.3, 0.4]), 10_000
    c = np.concatenate([[1.5], scale @ decay[:, None] ** np.arange(n - 1)])
    total = np.zeros(n)
    for m in range(limit):
        if m * separation < n:
            total[m * separation :] += c[: n - m * separation]
    found = buffered_square(decay, scale, 1.5, n, separation, limit)
    assert found == pytest.approx(total @ total, rel=1e-12)
