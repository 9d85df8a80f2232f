"""Sampled guarantees: hashed seeds to search with, fresh entropy to certify with, and the same entropy to load."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest

import antiphase as ap
from antiphase import (
    BallsInBins,
    Budget,
    Mechanism,
    MonteCarlo,
    PoissonMinSeparation,
    calibrate,
    delta,
    epsilon,
    verify,
)
from antiphase._accounting import certificate as module
from antiphase._accounting import certified, drawn_like, restated, seeded_calibration
from antiphase._accounting.guarantee import seeded_epsilon
from antiphase._montecarlo import amplification
from antiphase.strategies import Toeplitz

STRATEGY, BINS, BUDGET = Toeplitz([1.0, 0.8, 0.6], 30), BallsInBins(3, 10), Budget(2.0, 1e-6)
PROBLEM = ap.Problem(steps=30, budget=BUDGET, participation=BINS)
QUICK = MonteCarlo(slack=0.2, samples=1 << 16, workers=1)


@pytest.fixture(scope="module")
def calibrated():
    return calibrate(STRATEGY, BINS, BUDGET, sampling=QUICK)


@pytest.fixture(scope="module")
def planned(calibrated):
    return ap.Plan(PROBLEM, calibrated.mechanism, certified(calibrated.mechanism, calibrated.guarantee, BUDGET), 1.0)


@pytest.mark.parametrize("ask", [lambda m, s: epsilon(m, 1e-3, s), lambda m, s: delta(m, 1.0, s)])
def test_every_call_draws_fresh_entropy_unless_a_seed_is_given(ask):
    mechanism = Mechanism(STRATEGY, BINS, 5.0)
    first, second = (ask(mechanism, QUICK) for _ in range(2))
    assert first.kind == second.kind == "confident"
    assert first.value != second.value
    assert len({first.entropy, second.entropy}) == 2
    assert all(len(bound.entropy) == 64 for bound in (first, second))
    seeded = [ask(mechanism, replace(QUICK, seed=1)) for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert seeded[0].entropy == ""


def test_the_mechanism_is_a_function_of_the_question_and_its_certificate_is_not(calibrated):
    again = calibrate(STRATEGY, BINS, BUDGET, sampling=QUICK)
    assert again.mechanism == calibrated.mechanism
    assert again.guarantee.entropy != calibrated.guarantee.entropy
    assert max(again.guarantee.value, calibrated.guarantee.value) <= BUDGET.epsilon
    assert seeded_calibration(STRATEGY, BINS, BUDGET, sampling=QUICK).guarantee.entropy == ""


@pytest.mark.parametrize(
    ("participation", "family"),
    [
        pytest.param(BallsInBins(2, 4), "banded", marks=pytest.mark.integration),
        (PoissonMinSeparation(3, 0.1), "identity"),
    ],
)
def test_a_plan_is_certified_with_fresh_entropy_outside_its_fingerprint(participation, family, tmp_path):
    problem = ap.Problem(steps=8, budget=Budget(2.0, 1e-2), participation=participation)
    first, second = (ap.plan(problem, families=[family]) for _ in range(2))
    assert first.guarantee.kind == "confident"
    assert first.fingerprint == second.fingerprint
    assert first.guarantee.entropy != second.guarantee.entropy
    assert first.candidates[0].epsilon == first.guarantee.value <= problem.budget.epsilon
    first.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == first


def test_loading_draws_the_same_samples_and_verifying_draws_others(planned, monkeypatch, tmp_path):
    seeds = []
    original = amplification.verify_pair

    def record(pair, epsilon, delta, attempt, seed, sampling):
        seeds.append(seed.entropy)
        return original(pair, epsilon, delta, attempt, seed, sampling)

    monkeypatch.setattr(amplification, "verify_pair", record)
    planned.save(tmp_path / "plan.json")
    for _ in range(2):
        assert ap.Plan.load(tmp_path / "plan.json") == planned
    loaded, before = set(seeds), len(seeds)
    assert len(loaded) == 1
    for _ in range(2):
        with suppress(ap.Refused):  # passing is a matter of chance; the samples drawn are what this test is about
            verify(planned)
    verified = seeds[before:]
    assert len({*verified, *loaded}) == 3


def test_a_better_guarantee_than_the_mechanism_has_is_not_loaded(planned, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "ATTEMPTS", 5)
    path = tmp_path / "plan.json"
    planned.save(path)
    stored = path.read_text()
    for less in (0.98 * planned.guarantee.value, -1.0):
        path.write_text(stored.replace(f'"value": {planned.guarantee.value!r}', f'"value": {less!r}'))
        assert path.read_text() != stored
        with pytest.raises(ap.Corrupted, match="its mechanism gives"):
            ap.Plan.load(path)


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_a_plan_is_verified_for_its_own_claim_only(planned, name):
    with pytest.raises(
        ap.InvalidArgument, match=f"The '{name}' parameter of verify must be omitted for a plan. Got 0.5"
    ):
        verify(planned, **{name: 0.5})


@pytest.mark.parametrize("entropy", ["zz", "0" * 65, 5, None])
def test_entropy_that_is_none_is_not_loaded(planned, tmp_path, entropy):
    path = tmp_path / "plan.json"
    planned.save(path)
    data = json.loads(path.read_text())
    data["plan"]["guarantee"]["entropy"] = entropy
    path.write_text(json.dumps(data))
    with pytest.raises(ap.Corrupted, match="entropy"):
        ap.Plan.load(path)


def test_plans_without_entropy_load_as_before(calibrated, tmp_path):
    """Stored before there was any; a number that needs no samples has none either, and JSON does not mention it."""
    stated = seeded_epsilon(calibrated.mechanism, BUDGET.delta)
    assert "entropy" not in ap.to_json(stated)
    ap.Plan(PROBLEM, calibrated.mechanism, stated, 1.0).save(tmp_path / "plan.json")
    loaded = ap.Plan.load(tmp_path / "plan.json").guarantee
    assert (loaded.value, loaded.kind, loaded.entropy) == (stated.value, "confident", "")
    assert ap.from_json(ap.to_json(stated)) == stated


def test_an_extended_plan_has_entropy_of_its_own(planned, tmp_path):
    longer = planned.extend(40)
    assert longer.guarantee.entropy not in ("", planned.guarantee.entropy)
    longer.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json").guarantee.value == longer.guarantee.value


def test_a_certificate_that_fails_by_chance_is_tried_again_at_half_the_probability(calibrated, monkeypatch):
    """First for the epsilon that was found, then for the budget's; every attempt is counted."""
    tried, original = [], module.verify_claim

    def unlucky(mechanism, at, target, *, attempt, sampling):
        tried.append((attempt, at))
        if len(tried) <= unlucky_times:
            raise ap.Refused("by chance")
        return original(mechanism, at, target, attempt=attempt, sampling=sampling)

    monkeypatch.setattr(module, "verify_claim", unlucky)
    found = replace(calibrated.guarantee, value=0.999 * BUDGET.epsilon)
    unlucky_times = 5
    bound = certified(calibrated.mechanism, found, BUDGET, replace(QUICK, samples=1 << 18))
    assert tried == [(r, found.value if r <= 4 else BUDGET.epsilon) for r in range(1, len(tried) + 1)]
    assert len(tried) >= 6
    assert bound.value == BUDGET.epsilon
    unlucky_times = 100
    with pytest.raises(ap.NotProved, match="did not confirm"):
        certified(calibrated.mechanism, found, BUDGET, QUICK)


def test_too_little_noise_is_never_certified(calibrated, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 6)
    less = replace(calibrated.mechanism, noise_std=0.97 * calibrated.mechanism.noise_std)
    with pytest.raises(ap.NotProved, match="did not confirm"):
        certified(less, calibrated.guarantee, BUDGET, QUICK)


def test_reports_ask_with_the_entropy_of_the_plan(planned, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 5)
    drawn = drawn_like(planned.guarantee)
    stopped = planned.mechanism.first(20)
    assert epsilon(stopped, 1e-6, drawn) == epsilon(stopped, 1e-6, drawn)
    assert drawn != drawn_like(replace(planned.guarantee, entropy="ab"))
    assert restated(planned.mechanism, planned.guarantee, BUDGET.delta) == planned.guarantee
    wrong = replace(planned.guarantee, value=0.5 * planned.guarantee.value)
    assert restated(planned.mechanism, wrong, BUDGET.delta).value > 0.9 * planned.guarantee.value
