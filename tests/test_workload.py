"""Curvature of a workload: its bands against the recursion of SGD, the stability limit, and stored forms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._record import fingerprint


def recursion(A: ap.Momentum, n: int) -> np.ndarray:
    """-theta after every step as a function of the gradients, from m and theta themselves."""
    eta = np.ones(n) if A.learning_rates is None else A.learning_rates
    theta, m, rows = np.zeros(n), np.zeros(n), []
    for t in range(n):
        m = A.beta * m + np.eye(n)[t] + A.curvature * theta
        theta = (1 - eta[t] * A.weight_decay) * theta - eta[t] * m
        rows.append(-theta)
    return np.array(rows)


@given(
    n=st.integers(1, 12),
    beta=st.floats(0, 0.99),
    decay=st.floats(0, 0.8),
    share=st.floats(0, 0.99),
    scheduled=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=100, deadline=None)
def test_momentum_with_curvature_follows_its_recursion(n, beta, decay, share, scheduled, seed):
    rates = np.random.default_rng(seed).random(n) + 0.1 if scheduled else None
    largest = rates.max() if scheduled else 1.0
    wd = decay / largest
    curvature = share * (1 + beta) * (2 - largest * wd) / largest
    A = ap.Momentum(beta, rates, wd, curvature)
    expected = recursion(A, n)
    np.testing.assert_allclose(A.matrix(n), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    constant = A.toeplitz_inverse
    if constant is not None:
        first = np.linalg.inv(expected)[:, 0]
        np.testing.assert_allclose(np.pad(constant, (0, n))[:n], first, atol=1e-9 * np.abs(first).max())


@pytest.mark.parametrize(("beta", "eta", "wd"), [(0.0, 1.0, 0.0), (0.9, 0.5, 0.0), (0.9, 0.5, 0.6), (0.5, 2.0, 0.1)])
def test_curvature_is_refused_where_sgd_diverges(beta, eta, wd):
    """Just below the limit the impulse response dies out; at the limit it does not, and is refused."""
    limit = (1 + beta) * (2 - eta * wd) / eta
    with pytest.raises(ap.InvalidArgument, match="diverges"):
        ap.Momentum(beta, [eta], wd, curvature=limit)
    n = 4000
    below = ap.Momentum(beta, np.full(n, eta), wd, curvature=0.99 * limit)
    at = np.roots(below.toeplitz_inverse + np.pad([0.0, 0.01 * limit], (0, len(below.toeplitz_inverse) - 2)))
    assert np.abs(np.roots(below.toeplitz_inverse)).max() < 1.0
    assert math.isclose(np.abs(at).max(), 1.0, rel_tol=1e-9)


def test_negative_curvature_is_refused():
    with pytest.raises(ap.InvalidArgument, match="curvature"):
        ap.Momentum(0.9, curvature=-0.1)


def test_a_stored_workload_without_curvature_stays_as_it_was():
    flat = ap.Momentum(0.9, [0.1, 0.2], weight_decay=0.1)
    assert ap.to_json(flat) == {"type": "Momentum", "beta": 0.9, "learning_rates": [0.1, 0.2], "weight_decay": 0.1}
    assert ap.from_json(ap.to_json(flat)) == flat
    curved = ap.Momentum(0.9, curvature=0.3)
    assert ap.from_json(ap.to_json(curved)) == curved
    assert fingerprint(curved) != fingerprint(ap.Momentum(0.9))


def test_with_curvature_counts_in_units_of_the_largest_rate():
    assert ap.PrefixSum().with_curvature(0.0) == ap.PrefixSum()
    assert ap.PrefixSum().with_curvature(0.2) == ap.Momentum(0.0, curvature=0.2)
    assert ap.Momentum(0.9, [0.1, 0.4]).with_curvature(0.2).curvature == 0.5
    # Scaling all rates scales A and leaves the directions of equal h alone.
    rates = np.array([0.5, 1.0, 0.25, 0.75])
    one, other = ap.Momentum(0.9, rates), ap.Momentum(0.9, 3.0 * rates)
    np.testing.assert_allclose(other.with_curvature(0.3).matrix(4), 3.0 * one.with_curvature(0.3).matrix(4))


def test_two_curvatures_are_refused():
    with pytest.raises(ap.InvalidArgument, match="not in both"):
        ap.Momentum(0.9, curvature=0.1).with_curvature(0.2)
