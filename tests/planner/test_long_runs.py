"""Above 512 steps, where the dense optimum is found roughly first: still no family by hand beats the plan."""

import pytest

import antiphase as ap

BUDGET = ap.Budget(4.0, 1e-6)


def by_hand(family, participation, steps, **options):
    strategy = ap.optimize(family, steps=steps, participation=participation, **options).strategy
    mechanism = ap.calibrate(strategy, participation, BUDGET).mechanism
    return mechanism.noise_std * ap.error(strategy, ap.PrefixSum()).rms


@pytest.mark.slow
@pytest.mark.parametrize("participation", [ap.FixedEpochs(4, 192), ap.FixedEpochs(12, 64), ap.SingleParticipation()])
def test_dense_by_hand_does_not_beat_the_plan(participation):
    found = ap.plan(ap.Problem(steps=768, budget=BUDGET, participation=participation), ["toeplitz", "banded", "dense"])
    assert found.error <= by_hand("dense", participation, 768) * (1.0 + 1e-9)
    assert found.candidates[0].name == "dense"


def test_the_dense_optimum_is_not_refined_where_it_cannot_win():
    """Amplified by sampling, a few bands are better by far than anything without."""
    open_problem = ap.Problem(steps=520, budget=ap.Budget(0.5, 1e-6), examples=52_000, batch_size=100)
    found = ap.plan(open_problem, ["identity", "dense"])
    names = [c.name for c in found.candidates]
    assert "dense (to 1%)" in names
    assert "dense" not in names


@pytest.mark.slow
def test_more_bands_than_are_quick_are_tried_where_they_may_win():
    """4,096 steps and 64 bands: twice the work that is quick."""
    participation = ap.MinSeparation(64)
    asked = ap.Problem(steps=4096, budget=BUDGET, participation=participation)
    found = ap.plan(asked, ["toeplitz", "banded"])
    assert found.candidates[0].name == "banded (64 bands)"
    assert found.error <= by_hand("banded", participation, 4096, bands=64) * (1.0 + 1e-9)


def test_wide_bands_far_from_the_best_are_left_out():
    """By sampling at epsilon 0.5 a few bands win by far over 64 without."""
    open_problem = ap.Problem(steps=4096, budget=ap.Budget(0.5, 1e-6), examples=64_000, batch_size=1000)
    found = ap.plan(open_problem, ["toeplitz", "banded"])
    assert not any(c.name == "banded (64 bands)" for c in found.candidates)
    assert any(c.name == "toeplitz (64 bands)" for c in found.candidates)
