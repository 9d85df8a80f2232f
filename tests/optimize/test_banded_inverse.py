"""Optimised strategies with a banded inverse: gradients, brute force, and bands for which the optimum is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._kernels.linear_algebra import shifted_gram
from antiphase._loss import loss
from antiphase._optimize import optimize
from antiphase._optimize.banded_inverse import _errors, _function, _majorant
from antiphase._optimize.participation_limits import worst_case_limits
from antiphase.strategies import BandedInverse
from tests.catalog import every_workload
from tests.optimize.gradients import check_gradient, dense_error, worst_pattern

SINGLE = ap.SingleParticipation()
OBJECTIVES = ("rms", "max")
WORKLOADS = [name for name, _ in every_workload(3)]


def best(steps, bands, participation=SINGLE, **options):
    return optimize("banded-inverse", steps=steps, participation=participation, bands=bands, **options)


def near_root(rng, bands, steps):
    d = BandedInverse.square_root(bands, steps).coefficients * (1 + 0.2 * rng.normal(size=bands))
    d[0] = 1.0
    return d


@given(
    n=st.integers(1, 10),
    bands=st.integers(1, 6),
    separation=st.integers(1, 10),
    workload=st.sampled_from(WORKLOADS),
    objective=st.sampled_from(OBJECTIVES),
    bounded=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_gradient_equals_differences(n, bands, separation, workload, objective, bounded, seed):
    bands, A = min(bands, n), dict(every_workload(n))[workload]
    allowed = worst_case_limits("test", ap.MinSeparation(separation), n)
    d = near_root(np.random.default_rng(seed), bands, n)
    for error in _errors(A, objective, n, bands)[:2]:
        check_gradient(_function(n, allowed, error, bounded), d, rtol=2e-6)


@given(
    n=st.integers(1, 9),
    bands=st.integers(1, 4),
    workload=st.sampled_from(WORKLOADS),
    objective=st.sampled_from(OBJECTIVES),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_error_equals_dense_algebra(n, bands, workload, objective, seed):
    bands, A = min(bands, n), dict(every_workload(n))[workload]
    d = near_root(np.random.default_rng(seed), bands, n)
    expected = dense_error(BandedInverse(d, n).encoder(), A.matrix(n), objective)
    found = math.exp(_errors(A, objective, n, bands)[-1](d)[0])
    assert found == pytest.approx(expected, rel=1e-3 if objective == "max" else 1e-9)


@given(n=st.integers(1, 10), size=st.integers(1, 10), workload=st.sampled_from(WORKLOADS), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_shifted_gram_equals_dense_algebra(n, size, workload, seed):
    size, A = min(size, n), dict(every_workload(n))[workload]
    weights = np.random.default_rng(seed).random(n)
    T = A.matrix(n)
    H = T.T @ (weights[:, None] * T)
    expected = [[sum(H[j + r, j + s] for j in range(n - max(r, s))) for s in range(size)] for r in range(size)]
    np.testing.assert_allclose(shifted_gram(A.inverse_bands(n), weights, size), expected, rtol=1e-9, atol=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_majorant_is_the_smallest(values):
    c = np.array(values)
    m, source = _majorant(c)
    assert m.tolist() == [max(abs(x) for x in values[i:]) for i in range(len(values))]
    assert (np.abs(c)[source] == m).all()
    assert (source >= np.arange(len(c))).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_two_bands_against_a_line_search(objective):
    """C[i, j] = decay^(i - j): one number to choose."""
    from scipy.optimize import minimize_scalar

    n = 200

    def value(decay):
        C = BandedInverse([1.0, -decay], n)
        return loss(C, ap.PrefixSum(), SINGLE, objective)

    expected = minimize_scalar(value, bounds=(0.5, 0.999), method="bounded", options={"xatol": 1e-10})
    found = best(n, 2, objective=objective)
    assert found.loss == pytest.approx(expected.fun, rel=1e-10)
    assert -found.strategy.coefficients[1] == pytest.approx(expected.x, abs=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_all_bands_are_the_full_toeplitz_family(objective):
    found = best(40, 40, objective=objective)
    full = optimize("toeplitz", steps=40, participation=SINGLE, bands=40, objective=objective)
    assert found.loss == pytest.approx(full.loss, rel=1e-8)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_more_bands_help_and_the_closed_form_is_beaten(workload):
    n, A = 64, dict(every_workload(64))[workload]
    losses = [best(n, bands, workload=A).loss for bands in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)
    base = A if A.toeplitz_inverse is not None else ap.PrefixSum()
    assert losses[-1] <= loss(BandedInverse.square_root(8, n, base), A, SINGLE) * (1 + 1e-12)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bands", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "participation", [ap.MinSeparation(3), ap.MinSeparation(4, 2), ap.FixedEpochs(4, 3), ap.EveryStep()]
)
def test_loss_is_proved_and_never_below_brute_force(participation, bands, objective):
    """The worst pattern with all contributions alike is a lower bound on the sensitivity for any signs of C."""
    n, A = 12, ap.PrefixSum()
    found = best(n, bands, participation, objective=objective)
    C = found.strategy.encoder()
    bound = ap.sensitivity(found.strategy, participation)
    assert bound.value >= worst_pattern(C, participation) * (1 - 1e-12)
    if bound.kind == "exact" and C.min() >= 0:
        assert bound.value == pytest.approx(worst_pattern(C, participation), rel=1e-9)
    assert found.loss == pytest.approx(bound.value * dense_error(C, A.matrix(n), objective), rel=1e-9)
    assert found.loss <= loss(BandedInverse.square_root(bands, n), A, participation, objective) * (1 + 1e-12)


def test_every_step_gives_the_identity():
    """Where an example takes part in every step, correlated noise does not pay."""
    assert best(32, 2, ap.EveryStep()).loss == pytest.approx(
        loss(BandedInverse([1.0], 32), ap.PrefixSum(), ap.EveryStep())
    )


def test_an_unproved_optimum_gives_way_to_a_proved_one():
    """Momentum 0.9, 512 steps, 32 apart, 8 bands: the best for the earliest pattern alone is not non-increasing."""
    participation, A = ap.MinSeparation(32), ap.Momentum(0.9)
    found = best(512, 8, participation, workload=A)
    assert found.loss < 0.995 * loss(BandedInverse.square_root(8, 512, A), A, participation)
    assert found.loss < best(512, 4, participation, workload=A).loss
    assert ap.sensitivity(found.strategy, participation).kind in {"exact", "upper"}


def test_the_same_on_every_run_and_limits():
    first, second = best(300, 6), best(300, 6)
    assert np.array_equal(first.strategy.coefficients, second.strategy.coefficients)
    told = []
    stopped = best(300, 6, max_iterations=3, progress=lambda i, value: told.append((i, value)))
    assert [i for i, _ in told] == [1, 2, 3]
    assert not stopped.converged
    assert first.loss < stopped.loss <= loss(BandedInverse.square_root(6, 300), ap.PrefixSum(), SINGLE)
    assert not best(300, 6, time_limit=0.0).converged


def test_many_steps():
    """A million steps: the two-band optimum has 1 - decay near sqrt(2 / n)."""
    found = best(10**6, 2)
    assert 1.0 + found.strategy.coefficients[1] == pytest.approx(math.sqrt(2e-6), rel=0.01)


def test_shuffled_epochs_are_refused():
    with pytest.raises(ap.NotProved, match="ShuffledEpochs"):
        best(8, 2, ap.ShuffledEpochs(2, 4))
