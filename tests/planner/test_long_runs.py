"""Above 512 steps, where the dense optimum is found roughly first: still no family by hand beats the plan."""

import pytest

import antiphase as ap

BUDGET = ap.Budget(4.0, 1e-6)


def by_hand(family, participation, steps, **options):
    strategy = ap.optimize(family, steps=steps, participation=participation, **options).strategy
    mechanism = ap.calibrate(strategy, participation, BUDGET).mechanism
    return mechanism.noise_std * ap.error(strategy, ap.PrefixSum()).rms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "participation"),
    [
        (768, ap.FixedEpochs(4, 192)),
        (768, ap.FixedEpochs(12, 64)),
        (768, ap.SingleParticipation()),
        (768, ap.MinSeparation(64)),
        (2304, ap.FixedEpochs(9, 256)),
    ],
)
def test_dense_by_hand_does_not_beat_the_plan(steps, participation):
    asked = ap.Problem(steps=steps, budget=BUDGET, participation=participation, objective="rms")
    found = ap.plan(asked, ["toeplitz", "banded", "dense"])
    assert found.error <= by_hand("dense", participation, steps) * (1.0 + 1e-9)
    assert "dense" in {c.name for c in found.candidates[:2]}  # or as many bands as steps, better by less than 0.01 %


@pytest.mark.integration
@pytest.mark.parametrize(
    ("epsilon", "dense"), [(1.0, set()), (2.0, {"dense, to 1%"}), (4.0, {"dense, to 1%", "dense"})]
)
def test_the_dense_optimum_is_sought_as_far_as_it_may_win(epsilon, dense):
    """Beside Poisson sampling: ruled out by the closed bound, by a rough optimum, not at all."""
    asked = ap.Problem(steps=520, budget=ap.Budget(epsilon, 1e-6), examples=5200, batch_size=100, objective="rms")
    found = ap.plan(asked, ["identity", "dense"], pipelines=["poisson", "fixed-epochs"])
    assert {c.name for c in found.candidates} == {"identity (DP-SGD)", *dense}


@pytest.mark.integration
def test_no_dense_matrix_was_ruled_out_that_wins():
    """Where the closed bound rules the dense optimum out, by hand it is worse than the plan."""
    asked = ap.Problem(steps=520, budget=ap.Budget(1.0, 1e-6), examples=5200, batch_size=100, objective="rms")
    found = ap.plan(asked, ["identity", "dense"], pipelines=["poisson", "fixed-epochs"])
    participation = ap.FixedEpochs(10, 52)
    strategy = ap.optimize("dense", steps=520, participation=participation).strategy
    mechanism = ap.calibrate(strategy, participation, asked.budget).mechanism
    assert mechanism.noise_std * ap.error(strategy, ap.PrefixSum()).rms > 1.1 * found.error


@pytest.mark.slow
def test_more_bands_than_are_quick_are_tried_where_they_may_win():
    """4,096 steps and 64 bands: twice the work that is quick."""
    participation = ap.MinSeparation(64)
    asked = ap.Problem(steps=4096, budget=BUDGET, participation=participation, objective="rms")
    found = ap.plan(asked, ["toeplitz", "banded"])
    assert found.candidates[0].name == "banded (64 bands)"
    assert found.error <= by_hand("banded", participation, 4096, bands=64) * (1.0 + 1e-9)


@pytest.mark.integration
def test_wide_bands_far_from_the_best_are_left_out():
    """By sampling at epsilon 0.5 a few bands win by far over 64 without."""
    budget = ap.Budget(0.5, 1e-6)
    open_problem = ap.Problem(steps=4096, budget=budget, examples=64_000, batch_size=1000, objective="rms")
    found = ap.plan(open_problem, ["toeplitz", "banded"])
    assert not any(c.name == "banded (64 bands)" for c in found.candidates)
    assert any(c.name == "toeplitz (64 bands)" for c in found.candidates)
