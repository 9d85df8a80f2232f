"""Balls-in-bins and random min-separation through the public functions."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting import (
    Budget,
    Mechanism,
    MonteCarlo,
    calibrate,
    compose,
    delta,
    epsilon,
    group_epsilon,
    verify,
    zcdp,
)
from antiphase._accounting import amplified as module
from antiphase._accounting.amplified import overflow_probability
from antiphase.strategies import BLT, Dense, Identity, Toeplitz
from tests.montecarlo.oracle import integrated_delta, modes

CASE = Toeplitz([1.0, 0.8, 0.6], 30), ap.BallsInBins(3, 10)
BUDGET = Budget(2.0, 1e-6)
QUICK, FINE = MonteCarlo(slack=0.2, samples=1 << 16, workers=1, seed=1), MonteCarlo(samples=1 << 17, workers=1, seed=1)


@pytest.fixture(scope="module")
def calibrated():
    return calibrate(*CASE, BUDGET, sampling=QUICK)


@pytest.mark.integration
def test_calibration_and_epsilon_agree(calibrated):
    assert calibrated.guarantee.kind == "confident"
    assert 0.97 * 2.0 < calibrated.guarantee.value <= 2.0
    assert "within delta" in calibrated.guarantee.method
    found = epsilon(calibrated.mechanism, 1e-6, QUICK)
    assert found.kind == "confident"
    assert found.value == pytest.approx(calibrated.guarantee.value, rel=0.03)
    found = delta(calibrated.mechanism, calibrated.guarantee.value, QUICK)
    assert found.kind == "confident"
    assert 0.7e-6 < found.value < 1.05e-6


def test_asking_again_with_a_seed_is_not_another_try(calibrated):
    first = epsilon(calibrated.mechanism, 1e-6, replace(QUICK, seed=4))
    module._known.clear()
    assert epsilon(calibrated.mechanism, 1e-6, replace(QUICK, workers=2, seed=4)) == first
    assert first.entropy == ""
    other = epsilon(calibrated.mechanism, 1e-6, replace(QUICK, seed=5))
    assert other != first
    assert other.value == pytest.approx(first.value, rel=0.03)


def test_amplification_shows(calibrated):
    unamplified = calibrate(CASE[0], CASE[1].worst_case, BUDGET).mechanism.noise_std
    assert calibrated.mechanism.noise_std < 0.75 * unamplified


TWO = Toeplitz([1.0, 0.5], 2), ap.BallsInBins(1, 2)
SHARP = MonteCarlo(slack=0.01, samples=1 << 21, workers=1, seed=1)


def exact_delta(noise: float, at: float) -> float:
    """Of TWO, by a grid."""
    return max(integrated_delta(modes(TWO[0], 2) @ modes(TWO[0], 2).T, noise, at, points=1201))


@pytest.mark.parametrize(("target", "at"), [(1.0, 1e-4), (4.0, 1e-6)])
def test_calibrated_noise_keeps_the_budget_and_one_percent_less_does_not(target, at):
    noise = calibrate(*TWO, Budget(target, at), sampling=SHARP).mechanism.noise_std
    assert exact_delta(noise, target) <= at < exact_delta(0.99 * noise, target)


@pytest.mark.parametrize(("noise", "target"), [(3.5, 1.0), (1.3, 4.0)])
def test_one_percent_of_noise_shows_in_every_public_function(noise, target):
    """delta, epsilon and verify lie between the exact numbers at this noise and at 1 % less.

    So each of them would fail here if it took the noise to be 1 % larger than it is.
    """
    mechanism, truth = Mechanism(*TWO, noise), exact_delta(noise, target)
    assert truth <= delta(mechanism, target, SHARP).value < exact_delta(0.99 * noise, target)
    found = epsilon(mechanism, truth, SHARP)
    assert found.kind == "confident"
    assert exact_delta(noise, found.value) <= truth < exact_delta(0.99 * noise, found.value)
    claim, seeded = (target, truth), replace(SHARP, seed=1)
    assert verify(replace(mechanism, noise_std=1.01 * noise), *claim, sampling=seeded).value == truth
    with pytest.raises(ap.Refused, match="not verified"):
        verify(replace(mechanism, noise_std=0.99 * noise), *claim, sampling=seeded)


def test_three_bins_by_integrals():
    strategy, participation = Toeplitz([1.0, 0.6, 0.3], 3), ap.BallsInBins(1, 3)
    gram = modes(strategy, 3) @ modes(strategy, 3).T
    found = delta(Mechanism(strategy, participation, 1.5), 1.5, FINE)
    truth = max(integrated_delta(gram, 1.5, 1.5, points=161))
    assert truth < found.value < 1.08 * truth


def test_identity_over_epochs_is_one_epoch_with_less_noise():
    for at in (1e-5, 1e-9):
        many = epsilon(Mechanism(Identity(160), ap.BallsInBins(16, 10), 4.0), at)
        one = epsilon(Mechanism(Identity(10), ap.BallsInBins(1, 10), 1.0), at)
        assert many.value == pytest.approx(one.value, rel=1e-9)
        assert many.kind == one.kind == "upper"


def test_negative_entries_count_by_their_absolute_value():
    """App. J: with C = [[1, 0], [-1, 1]] a contribution of the other sign in the second step is worse."""
    signed, plain = (Dense([[1.0, 0.0], [s, 1.0]]) for s in (-1.0, 1.0))
    found, same = (epsilon(Mechanism(c, ap.BallsInBins(1, 2), 1.5), 1e-5, QUICK).value for c in (signed, plain))
    assert found == pytest.approx(same, rel=0.03)
    gram = np.array([[2.0, -1.0], [-1.0, 1.0]])  # without |C|: too small
    assert max(integrated_delta(gram, 1.5, found, points=1001)) < 0.9e-5


def test_adjacencies():
    mechanism = Mechanism(*CASE, 5.0)
    both = [epsilon(replace(mechanism, adjacency=a), 1e-6, QUICK).value for a in ("zero-out", "add-or-remove")]
    assert both[0] == pytest.approx(both[1], rel=0.03)
    with pytest.raises(ap.NotProved, match="replace adjacency"):
        epsilon(replace(mechanism, adjacency="replace"), 1e-6)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_overflow_is_within_delta(adjacency):
    """1,000 examples in 10 bins: 100 a batch with a standard deviation of 9.5."""
    plain = Mechanism(*CASE, 5.0, adjacency, examples=1000)
    roomy = replace(plain, participation=ap.BallsInBins(3, 10, max_batch=170))
    found = epsilon(roomy, 1e-6, QUICK)
    assert found.value == pytest.approx(epsilon(plain, 1e-6, QUICK).value, rel=0.03)
    assert "overflow" in found.method
    charged = overflow_probability(roomy.reduction.setting)
    assert 1e-13 < charged < 1e-10
    found = delta(roomy, 9.0, QUICK)  # so small that zero-out is cheaper without amplification
    assert found.value >= charged if adjacency == "add-or-remove" else "without amplification" in found.method


def test_the_overflow_probability_by_brute_force():
    rng = np.random.default_rng(1)
    mechanism = Mechanism(*CASE, 5.0, examples=101)
    others = rng.multinomial(100, [0.1] * 10, size=200_000)
    for largest in (15, 18):
        setting = replace(mechanism, participation=ap.BallsInBins(3, 10, largest)).reduction.setting
        seen = (others.max(axis=1) >= largest).mean()
        assert seen - 0.003 < overflow_probability(setting) < 1.3 * seen  # a union bound
    waiting = Mechanism(Identity(20), ap.PoissonMinSeparation(4, 0.1, max_batch=25), 5.0, examples=101)
    assert overflow_probability(waiting.reduction.setting) > (rng.binomial(100, 0.1, size=200_000) >= 25).mean()


def test_a_batch_that_often_overflows():
    tight = Mechanism(*CASE, 5.0, examples=1000)
    tight = replace(tight, participation=ap.BallsInBins(3, 10, max_batch=110))
    without = epsilon(Mechanism(CASE[0], ap.FixedEpochs(3, 10), 5.0), 1e-6)
    assert epsilon(tight, 1e-6).value == without.value
    assert "without amplification" in epsilon(tight, 1e-6).method
    found = calibrate(*tight_arguments(tight), BUDGET, examples=1000)
    assert found.guarantee.kind == "upper"
    assert 0.999 * 2.0 <= found.guarantee.value <= 2.0
    for examples in (1000, None):
        with pytest.raises(ap.NotProved, match="overflows with probability"):
            epsilon(replace(tight, adjacency="add-or-remove", examples=examples), 1e-6)
    assert epsilon(replace(tight, examples=None), 1e-6).value == without.value


def tight_arguments(mechanism):
    return mechanism.strategy, mechanism.participation


@pytest.mark.integration
def test_random_min_separation():
    strategy, sampling = Toeplitz([1.0, 0.5], 20), replace(QUICK, samples=1 << 17)
    mechanism = Mechanism(strategy, ap.PoissonMinSeparation(2, 0.05), 1.5)
    found = epsilon(mechanism, 1e-2, sampling)
    without = epsilon(Mechanism(strategy, ap.MinSeparation(2), 1.5), 1e-2)
    assert found.kind == "confident"
    assert found.value < 0.8 * without.value
    small = epsilon(mechanism, 1e-6, sampling)
    few = epsilon(mechanism, 1e-6, replace(sampling, samples=10))  # too few for anything
    without = epsilon(replace(mechanism, participation=ap.MinSeparation(2)), 1e-6)
    assert (small.kind, few.kind) == ("confident", "upper")
    assert "would certify nothing smaller" in few.method
    assert small.value < 0.95 * few.value < 0.8 * without.value


def test_too_many_bands_for_min_separation_count_without_amplification():
    wide = Mechanism(BLT([0.9], [0.2], 20), ap.PoissonMinSeparation(2, 0.05), 5.0)
    assert epsilon(wide, 1e-5).method == "analytic Gaussian, without amplification"


def test_poisson_is_random_min_separation_of_one_step():
    """The same mechanism by privacy losses and by samples."""
    exact = epsilon(Mechanism(Identity(30), ap.Poisson(0.1), 1.0), 0.05).value
    sampled = epsilon(Mechanism(Identity(30), ap.PoissonMinSeparation(1, 0.1), 1.0), 0.05, QUICK)
    assert sampled.kind == "confident"
    assert exact < sampled.value < exact + 0.1


def test_what_else_is_derived_from_a_mechanism():
    mechanism = Mechanism(*CASE, 5.0)
    without = replace(mechanism, participation=ap.FixedEpochs(3, 10))
    assert zcdp(mechanism).value == zcdp(without).value
    assert compose([mechanism] * 2, 1e-6).value == compose([without] * 2, 1e-6).value
    assert group_epsilon(mechanism, 2, 1e-6).value == group_epsilon(without, 2, 1e-6).value
    assert group_epsilon(mechanism, 1, 1e-2).value == pytest.approx(epsilon(mechanism, 1e-2).value, rel=0.01)
    assert epsilon(mechanism.first(20), 1e-6, QUICK).value < epsilon(mechanism, 1e-6, QUICK).value


@dataclass(frozen=True)
class Planned:
    mechanism: Mechanism
    guarantee: ap.Bound
    problem: ap.Problem


def test_verify_a_plan(calibrated):
    problem = ap.Problem(steps=30, budget=BUDGET, participation=CASE[1])
    fresh = replace(FINE, samples=1 << 18, seed=3)
    bound = verify(Planned(calibrated.mechanism, calibrated.guarantee, problem), sampling=fresh)
    assert (bound.value, bound.kind) == (1e-6, "confident")
    less = replace(calibrated.mechanism, noise_std=0.97 * calibrated.mechanism.noise_std)
    with pytest.raises(ap.Refused, match="attempt 3"):
        verify(Planned(less, calibrated.guarantee, problem), sampling=fresh, attempt=2)


def test_verify_a_mechanism_that_needs_no_samples():
    mechanism = Mechanism(Identity(10), ap.Poisson(0.1), 2.0)
    value = delta(mechanism, 1.0).value
    assert verify(mechanism, 1.0, 1.01 * value).kind == "upper"
    with pytest.raises(ap.Refused, match=r"is not verified(.|\n)*hint: add noise"):
        verify(mechanism, 1.0, 0.99 * value)


def test_verify_with_truncated_batches():
    mechanism = Mechanism(Identity(20), ap.BallsInBins(2, 10, max_batch=40), 3.0, examples=100)
    overflow = overflow_probability(mechanism.reduction.setting)
    assert "overflow" in verify(mechanism, 3.0, 1e-3).method
    with pytest.raises(ap.Refused, match="not verified"):
        verify(mechanism, 1e-3, 0.5 * overflow)


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        (verify, "epsilon"),
        (lambda m: verify(m, 1.0), "delta"),
        (lambda m: verify("plan", 1.0, 1e-6), "planned"),
        (lambda m: verify(Planned(m, ap.Bound(1.0, "upper", "", ""), None), 1.0, 1e-6), "epsilon"),
        (lambda m: verify(m, 1.0, 1e-6, sampling=None), "sampling"),
        (lambda m: epsilon(m, 1e-6, 1000), "sampling"),
        (lambda m: delta(m, 1.0, 1000), "sampling"),
        (lambda m: calibrate(m.strategy, m.participation, BUDGET, sampling=1000), "sampling"),
        (lambda m: MonteCarlo(slack=0.0), "slack"),
        (lambda m: MonteCarlo(samples=0), "samples"),
        (lambda m: MonteCarlo(workers=0), "workers"),
        (lambda m: MonteCarlo(seed=-1), "seed"),
    ],
)
def test_bad_arguments(call, parameter):
    with pytest.raises(ap.InvalidArgument, match=f"'{parameter}' parameter"):
        call(Mechanism(*CASE, 5.0))


def test_sampling_round_trips():
    assert ap.from_json(ap.to_json(MonteCarlo(0.1, 1000, 2, 7))) == MonteCarlo(0.1, 1000, 2, 7)


@pytest.mark.parametrize("scale", [1e-4, 7.0, 1e9])
def test_the_modes_are_scaled_like_the_noise(scale):
    sizes = (1.0, scale)
    found = [calibrate(Toeplitz([c, 0.5 * c], 20), ap.BallsInBins(2, 10), BUDGET, sampling=QUICK) for c in sizes]
    assert math.isclose(found[1].mechanism.noise_std / found[0].mechanism.noise_std, scale, rel_tol=0.03)
