"""The planner: never worse than a family by hand, within budget and memory, and honest about what it compared."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._planner.advice import affordable_copies
from antiphase._planner.families import FAMILIES
from antiphase._planner.training import expected_rate

QUICK = ["identity", "tree", "fourier", "stamped", "toeplitz", "banded-inverse"]


def problem(**changes):
    given = {"steps": 60, "budget": ap.Budget(2.0, 1e-6), "participation": ap.FixedEpochs(4, 15), "objective": "rms"}
    return ap.Problem(**{**given, **changes})


@pytest.fixture(scope="module")
def quick_plan():
    return ap.plan(problem(), QUICK)


@pytest.mark.integration
def test_every_family_is_tried_and_the_best_is_chosen():
    found = ap.plan(problem())
    errors = [c.error for c in found.candidates]
    assert errors == sorted(errors)
    assert found.error == errors[0]
    assert {c.family for c in found.candidates} == set(FAMILIES)


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_is_never_worse_than_one_family_by_hand(family):
    alone = ap.plan(problem(), [family])
    assert ap.plan(problem(), {family, "toeplitz", "identity"}).error <= alone.error * (1 + 1e-12)


def test_the_error_is_noise_times_the_error_of_the_strategy(quick_plan):
    found = quick_plan
    size = ap.error(found.mechanism.strategy, ap.PrefixSum()).rms
    assert math.isclose(found.error, found.mechanism.noise_std * size, rel_tol=1e-12)


@given(
    epsilon=st.floats(0.3, 10),
    epochs=st.integers(1, 6),
    per_epoch=st.integers(2, 12),
    memory=st.one_of(st.none(), st.integers(0, 20)),
    objective=st.sampled_from(["rms", "max"]),
)
@settings(max_examples=10, deadline=None)
def test_plans_keep_budget_and_memory(epsilon, epochs, per_epoch, memory, objective):
    asked = problem(
        steps=epochs * per_epoch,
        budget=ap.Budget(epsilon, 1e-6),
        participation=ap.FixedEpochs(epochs, per_epoch),
        memory_copies=memory,
        objective=objective,
    )
    found = ap.plan(asked, QUICK)
    assert ap.epsilon(found.mechanism, 1e-6).value <= epsilon
    assert all(c.epsilon <= epsilon for c in found.candidates)
    assert memory is None or all(c.memory_copies <= memory for c in found.candidates)


def test_an_open_participation_compares_pipelines_and_says_what_each_gains():
    open_problem = problem(participation=None, examples=3000, batch_size=100)
    found = ap.plan(open_problem, ["identity", "toeplitz", "banded"])
    kinds = {type(c.participation).__name__ for c in found.candidates}
    assert kinds == {"Poisson", "CyclicPoisson", "FixedEpochs"}
    assert any("would be best, with" in note for note in found.notes)
    for candidate in found.candidates:
        if isinstance(candidate.participation, ap.CyclicPoisson):
            assert candidate.participation.max_batch is None
            assert candidate.participation.groups == candidate.size
    only = ap.plan(open_problem, ["identity", "toeplitz"], pipelines=["fixed-epochs"])
    assert isinstance(only.mechanism.participation, ap.FixedEpochs)


def test_amplified_rate_gives_the_batch_size():
    found = ap.plan(
        problem(participation=None, examples=3000, batch_size=100), ["toeplitz"], pipelines=["cyclic-poisson"]
    )
    sampling = found.mechanism.participation
    groups = getattr(sampling, "groups", 1)
    assert math.isclose(sampling.rate * 3000 / groups, 100)


@pytest.mark.integration
def test_balls_in_bins_gains_from_its_randomness_and_comes_back_as_it_was(tmp_path):
    bins = ap.BallsInBins(3, 8)
    found = ap.plan(problem(steps=24, participation=bins), ["identity", "toeplitz"])
    fixed = ap.plan(problem(steps=24, participation=bins.worst_case), ["identity", "toeplitz"])
    assert found.mechanism.participation == bins
    assert found.guarantee.kind in ("confident", "upper")
    assert found.guarantee.value <= 2.0
    assert found.error < 0.95 * fixed.error
    assert any(c.variant == "for the bins" for c in found.candidates)
    found.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == found


def test_the_pareto_front_trades_error_for_memory(quick_plan):
    front = quick_plan.pareto
    assert all(a.error <= b.error and a.memory_copies > b.memory_copies for a, b in itertools.pairwise(front))
    assert front[-1].memory_copies == 0


def test_a_given_sampling_is_kept():
    sampling = ap.CyclicPoisson(4, 0.2)
    found = ap.plan(problem(participation=sampling), ["identity", "toeplitz", "banded", "dense"])
    assert found.mechanism.participation == sampling
    assert all(c.family != "dense" for c in found.candidates)


@pytest.mark.parametrize(("delta", "is_large"), [(2e-3, True), (1e-3, False), (1e-5, False)])
def test_a_note_says_that_delta_is_too_large(delta, is_large):
    problem = ap.Problem(steps=20, budget=ap.Budget(2.0, delta), examples=1000, batch_size=50, objective="rms")
    notes = ap.plan(problem, ["identity"]).notes
    assert any("Delta is larger than 1 / examples (0.001)." in note for note in notes) == is_large


def test_notes_say_what_was_gained_and_what_is_ranked():
    found = ap.plan(problem(examples=600, batch_size=40), QUICK)
    plain = next(c for c in found.candidates if c.family == "identity")
    notes = " ".join(found.notes)
    assert f"{100 * (1 - found.error / plain.error):.0f} % less noise than with DP-SGD" in notes
    assert "rms over the steps" in notes
    assert "a largest learning rate near" in notes


def test_the_published_buffers_are_offered_under_a_separation():
    found = ap.plan(problem(steps=500, participation=ap.MinSeparation(350)), ["identity", "blt"])
    assert any(c.variant == "published for separation 400" for c in found.candidates)
    best = min(c.error for c in found.candidates if not c.variant)
    offered = next(c.error for c in found.candidates if c.variant)
    assert best <= offered < 1.5 * best


def test_progress_hears_of_every_trial():
    heard = []
    found = ap.plan(problem(), QUICK, progress=lambda name, share: heard.append((name, share)))
    assert {c.name for c in found.candidates} <= {name for name, _ in heard}
    shares = [share for _, share in heard]
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] <= shares[-1] < 1.0


def test_plans_save_and_load_with_their_candidates(tmp_path):
    found = ap.plan(problem(), QUICK)
    found.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == found


@pytest.mark.parametrize(
    ("bad", "message", "hint"),
    [
        (lambda: ap.plan(problem(), ["magic"]), "Got 'magic'", "omit families to try all"),
        (lambda: ap.plan(problem(), []), "'families' .* at least one name", "omit families to try all"),
        (lambda: ap.plan(problem(participation=None)), "'participation' parameter of Problem", "pass examples="),
        (lambda: ap.plan(problem(), QUICK, pipelines=["shuffle"]), "Got 'shuffle'", "pass a participation"),
        (
            lambda: ap.plan(problem(participation=None, examples=100, batch_size=10), QUICK, pipelines=[]),
            "'pipelines' .* at least one name",
            "omit pipelines",
        ),
        (
            lambda: ap.plan(problem(participation=ap.Poisson(0.1), adjacency="replace")),
            "No theorem covers Poisson",
            "covered for adjacency 'add-or-remove' or 'zero-out'",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_hint(bad, message, hint):
    with pytest.raises(ap.AntiphaseError, match=message) as caught:
        bad()
    assert hint in caught.value.hint


def test_published_memory_examples():
    """McKenna 2024, Examples 3.1 to 3.3: about 64, 128 and 4,096 bands."""
    million, gigabyte = 1 << 20, 1 << 30
    assert affordable_copies(4 * million, gigabyte) == 64
    assert affordable_copies(128 * million, gigabyte, machines=64) == 128
    assert affordable_copies(4 * million, gigabyte, machines=64) == 4096


# ---- the objective of a trained model


def trained(**changed):
    usual = {"examples": 600, "batch_size": 50, "objective": "training", "parameters": 10**6}
    return ap.Problem(60, ap.Budget(4.0, 1e-5), **(usual | changed))


@pytest.fixture(scope="module")
def training_plan():
    return ap.plan(trained(), ["identity", "toeplitz", "blt"])


def test_training_plan_takes_the_least_memory_near_the_least_error(training_plan):
    chosen, others = training_plan.candidates[0], training_plan.candidates[1:]
    least = min(c.error for c in training_plan.candidates)
    assert chosen.error <= 1.01 * least
    assert all(c.error > 1.01 * least for c in others if c.memory_copies < chosen.memory_copies)
    assert [c.error for c in others] == sorted(c.error for c in others)


def test_training_plan_states_the_error_of_its_objective(training_plan):
    mechanism, workload = training_plan.mechanism, training_plan.problem.workload
    rate = expected_rate(training_plan.problem, ["cyclic-poisson", "fixed-epochs"])
    curvatures = ap.Curvatures.log_uniform(1e-3 * rate, 0.3 * rate, 13, 0.25, trajectory=1.0)
    error = mechanism.noise_std * ap.error(mechanism.strategy, workload, curvatures).value
    assert training_plan.error == pytest.approx(error)
    over_steps = mechanism.noise_std * ap.error(mechanism.strategy, workload).rms
    assert training_plan.candidates[0].rms_error == pytest.approx(over_steps)


def test_training_plan_tries_balls_in_bins_and_keeps_its_budget(training_plan):
    assert "BallsInBins" in {c.batches for c in training_plan.candidates}
    assert training_plan.guarantee.value <= 4.0
    assert ap.epsilon(training_plan.mechanism, 1e-5).value <= 4.0 * 1.002


def test_notes_say_what_is_ranked_and_what_memory_costs(training_plan):
    notes = " ".join(training_plan.notes)
    assert "noise left in the model at the end of training" in notes
    if training_plan.candidates[0].error > min(c.error for c in training_plan.candidates):
        assert "memory_tolerance=0" in notes


def test_no_tolerance_takes_the_least_error():
    found = ap.plan(trained(), ["identity", "toeplitz"], pipelines=["fixed-epochs"], memory_tolerance=0.0)
    assert found.error == min(c.error for c in found.candidates)


def test_free_columns_are_tried_only_if_asked_for():
    usual = ap.plan(trained(), pipelines=["fixed-epochs"])
    assert not {"banded", "dense"} & {c.family for c in usual.candidates}
    asked = ap.plan(trained(), ["banded", "identity"], pipelines=["fixed-epochs"])
    assert "banded" in {c.family for c in asked.candidates}
