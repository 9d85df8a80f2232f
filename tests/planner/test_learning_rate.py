"""The learning rate that belongs to a plan: units, limits, and the curvatures that it selects."""

import math
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._planner.learning_rate import rate_for_error, rates_to_try, total_reach
from antiphase._planner.training import expected_rate, reference_strategy, with_objective

SCHEDULE = ap.schedules.linear(2000, warmup=0.0, cooldown=0.25, floor=0.05)
ALL = ("poisson", "cyclic-poisson", "fixed-epochs", "balls-in-bins")


def images(epsilon=8.0, **changed):
    """The problem of docs/training.md, whose tuned rates are 0.0625, 0.125, 0.25 to 0.5, 1 and 2."""
    usual = {"examples": 50_000, "batch_size": 500, "workload": ap.Momentum(0.9, SCHEDULE)}
    return ap.Problem(2000, ap.Budget(epsilon, 1e-5), **(usual | changed))


@pytest.mark.parametrize(("epsilon", "tuned"), [(0.5, 0.0625), (1.0, 0.125), (2.0, 0.35), (4.0, 1.0), (8.0, 2.0)])
def test_expected_rates_are_near_the_tuned_ones(epsilon, tuned):
    assert 0.5 <= expected_rate(images(epsilon), ALL) / tuned <= 2.0


def test_reach_is_the_way_of_a_constant_gradient():
    workload = ap.Momentum(0.7, np.linspace(1.0, 0.1, 12))
    assert total_reach(workload, 12) == pytest.approx(workload.apply(np.ones(12))[-1])


def test_the_rate_has_the_units_of_schedule_and_clipping_norm():
    usual = rate_for_error(images(), 100.0)
    assert rate_for_error(images(clip_norm=0.25), 100.0) == pytest.approx(4 * usual)
    absolute = images(workload=ap.Momentum(0.9, 0.01 * SCHEDULE))  # errors are then a hundredth as well
    assert rate_for_error(absolute, 1.0) == pytest.approx(usual)


def test_less_noise_allows_larger_rates():
    assert rate_for_error(images(), 50.0) > 2 * rate_for_error(images(), 100.0)
    assert expected_rate(images(), ["fixed-epochs"]) < expected_rate(images(), ALL)


def test_without_a_batch_size_the_rate_is_unknown():
    asked = ap.Problem(12, ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(3, 4))
    assert expected_rate(asked, ALL) is None
    assert with_objective(asked, ALL).objective.values.max() == pytest.approx(0.3)


def test_a_given_rate_selects_the_curvatures():
    asked = images(learning_rate=0.5, clip_norm=0.2)
    assert with_objective(asked, ALL).objective.values.max() == pytest.approx(0.3 * 0.5 * 0.2)
    assert with_objective(replace(asked, objective="rms"), ALL).objective == "rms"


def test_the_reference_is_the_square_root_of_the_workload():
    root = reference_strategy(ap.Momentum(0.9), 30, 30).multiply(np.eye(30))
    np.testing.assert_allclose(root @ root, ap.Momentum(0.9).matrix(30), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "participation",
    [ap.BallsInBins(4, 15), ap.FixedEpochs(4, 15), ap.MinSeparation(15), ap.CyclicPoisson(4, 0.2), ap.EveryStep()],
)
def test_every_participation_has_an_expected_rate(participation):
    asked = ap.Problem(60, ap.Budget(4.0, 1e-6), batch_size=10, participation=participation)
    assert 0.0 < expected_rate(asked, ALL) < math.inf


def test_the_note_offers_a_grid():
    asked = ap.Problem(60, ap.Budget(4.0, 1e-5), examples=600, batch_size=50)
    plan = ap.plan(asked, ["identity", "toeplitz"], pipelines=["cyclic-poisson"])
    rate = rate_for_error(asked, plan.candidates[0].rms_error)
    low, middle, high = rates_to_try(rate)
    assert low < middle < high
    assert f"try {low:g} or {middle:g} or {high:g}." in plan.notes[-1]
    assert "curvature x learning rate is" in plan.notes[0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, "fast"])
def test_impossible_rates_are_refused(bad):
    with pytest.raises(ap.InvalidArgument, match="learning_rate"):
        images(learning_rate=bad)


def test_the_objective_of_old_files_stays(tmp_path):
    """Every file states its objective, so a new default does not change what an old one means."""
    old = ap.to_json(images(objective="rms"))
    assert old["objective"] == "rms"
    assert "learning_rate" not in old
    assert ap.from_json(old) == images(objective="rms")
    assert images().objective == "training"
