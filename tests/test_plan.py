"""Plans: saved and loaded without change, refused when edited; problems refused when they contradict themselves."""

import hashlib
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._record import to_json
from antiphase._report.what_if import more_steps, smaller_separation
from antiphase._run import read_run
from tests.run.plans import STRATEGIES, plan_for

BUDGET = ap.Budget(2.0, 1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_comes_back_as_it_was(tmp_path, name):
    plan = plan_for(STRATEGIES[name])
    plan.save(tmp_path / "plan.json")
    again = ap.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.fingerprint == plan.fingerprint
    assert again.guarantee == ap.epsilon(again.mechanism, again.problem.budget.delta)


def test_the_file_is_readable_json(tmp_path):
    plan_for(STRATEGIES["toeplitz"]).save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["plan"]["mechanism"]["strategy"]["coefficients"] == [1.0, 0.5, 0.25]


EDITS = {
    "less noise": (lambda d: d["plan"]["mechanism"].update(noise_std=2.9), "does not match its fingerprint"),
    "another participation": (
        lambda d: d["plan"]["mechanism"]["participation"].update(separation=5),
        "contradicts itself",
    ),
    "another delta": (lambda d: d["plan"]["problem"]["budget"].update(delta=1e-5), "does not match its fingerprint"),
    "a better guarantee": (
        lambda d: d["plan"]["guarantee"].update(value=0.1),
        "states epsilon 0.1, but its mechanism gives",
    ),
    "another format": (lambda d: d.update(format=2), "has format 2"),
    "no plan": (lambda d: d.pop("plan"), "cannot be read"),
    "another fingerprint": (lambda d: d.update(fingerprint="0" * 64), "does not match its fingerprint"),
    "something else": (lambda d: d.update(plan={"type": "PrefixSum"}), "does not match its fingerprint"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_refused(tmp_path, edit):
    path = tmp_path / "plan.json"
    plan_for(STRATEGIES["toeplitz"]).save(path)
    data = json.loads(path.read_text())
    change, reason = EDITS[edit]
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ap.Corrupted, match=re.escape(reason)) as caught:
        ap.Plan.load(path)
    assert caught.value.hint


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_plan_cut_short_is_refused(tmp_path, keep):
    path = tmp_path / "plan.json"
    plan_for(STRATEGIES["toeplitz"]).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ap.Corrupted, match=re.escape(str(path))):
        ap.Plan.load(path)


def test_an_estimate_is_no_guarantee():
    plan = plan_for(STRATEGIES["toeplitz"])
    with pytest.raises(ap.InvalidArgument, match="proved bound"):
        replace(plan, guarantee=ap.Bound(1.0, "estimate", "simulation", ""))


def test_extension_charges_the_whole_run():
    plan = plan_for(STRATEGIES["blt"])
    longer = plan.extend(36)
    whole = ap.Mechanism(ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], 36), ap.MinSeparation(4), 3.0)
    assert longer.guarantee.value == ap.epsilon(whole, 1e-6).value
    assert longer.root == plan.fingerprint == longer.extend(40).root
    assert longer.fingerprint != plan.fingerprint


def test_extension_of_epochs_counts_the_new_ones():
    plan = plan_for(STRATEGIES["blt"], ap.FixedEpochs(3, 4))
    assert plan.extend(20).mechanism.participation == ap.FixedEpochs(5, 4)


@pytest.mark.parametrize("steps", [12, 5, 0, 2.5])
def test_extension_needs_more_steps(steps):
    with pytest.raises(ap.InvalidArgument, match="'steps' parameter"):
        plan_for(STRATEGIES["blt"]).extend(steps)


BAD = {
    "no steps": {"steps": 0},
    "a batch larger than the data": {"examples": 10, "batch_size": 11},
    "a negative memory": {"memory_copies": -1},
    "an enormous memory": {"memory_copies": 10**5000},
    "a duration for a count": {"steps": np.timedelta64(5)},
    "not a time for a count": {"examples": np.timedelta64("NaT")},
    "an unknown objective": {"objective": "mean"},
    "an unknown adjacency": {"adjacency": "swap"},
    "a clipping norm of zero": {"clip_norm": 0.0},
    "a number for a budget": {"budget": 1.0},
    "a number for a participation": {"participation": 5},
    "a schedule of another length": {"workload": ap.Momentum(0.9, np.ones(3))},
    "no unit": {"unit": ""},
}


@pytest.mark.parametrize("case", BAD)
def test_contradictory_problems_are_refused(case):
    named = {"a batch larger than the data": "batch_size", "a schedule of another length": "learning_rates"}
    name = named.get(case) or next(iter(BAD[case]))
    with pytest.raises(ap.InvalidArgument, match=f"The '{name}' parameter") as caught:
        ap.Problem(**{"steps": 10, "budget": BUDGET, **BAD[case]})
    assert caught.value.hint


AGREES = ap.Problem(12, ap.Budget(12.0, 1e-6), examples=1000, batch_size=250, participation=ap.FixedEpochs(3, 4))
MECHANISM = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 12), ap.FixedEpochs(3, 4), 3.0, examples=1000)
OPEN = replace(AGREES, participation=None)

CONTRADICTIONS = {
    "steps": (replace(AGREES, steps=7), MECHANISM, ["problem.steps is 7", "strategy is 12"]),
    "adjacency": (replace(AGREES, adjacency="replace"), MECHANISM, ["adjacency is replace", "adjacency is zero-out"]),
    "examples": (replace(AGREES, examples=5, batch_size=2), MECHANISM, ["examples is 5", "examples is 1000"]),
    "a budget that is exceeded": (
        replace(AGREES, budget=ap.Budget(0.1, 1e-6)),
        MECHANISM,
        ["epsilon is 0.1", "value is"],
    ),
    "another participation": (
        AGREES,
        replace(MECHANISM, participation=ap.SingleParticipation()),
        ["participation is FixedEpochs", "participation is SingleParticipation"],
    ),
    "fewer epochs": (AGREES, replace(MECHANISM, participation=ap.FixedEpochs(4, 3)), ["(epochs=3", "(epochs=4"]),
    "another batch size": (
        OPEN,
        ap.Mechanism(ap.strategies.Identity(12), ap.Poisson(0.01), 3.0),
        ["participation is Poisson(rate=0.01", "about 10, the average batch size"],
    ),
    "too few epochs": (
        OPEN,
        replace(MECHANISM, participation=ap.BallsInBins(2, 4)),
        ["BallsInBins(epochs=2", "at most 8"],
    ),
    "memory": (replace(AGREES, memory_copies=0), MECHANISM, ["memory_copies is 0", "uses 1"]),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_plan_that_contradicts_itself_is_refused(tmp_path, case):
    """In memory, and as a file with its fingerprint made to fit."""
    problem, mechanism, words = CONTRADICTIONS[case]
    guarantee = ap.Bound(11.9, "upper", "", "")
    with pytest.raises(ap.InvalidArgument, match="contradicts itself") as caught:
        ap.Plan(problem, mechanism, guarantee, 1.0)
    assert all(word in str(caught.value) for word in words)
    parts = [to_json(problem), to_json(mechanism), ""]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    plan = {"type": "Plan", "problem": parts[0], "mechanism": parts[1], "guarantee": to_json(guarantee), "error": 1.0}
    data = {"format": 1, "fingerprint": hashlib.sha256(text.encode()).hexdigest(), "plan": plan}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(ap.Corrupted, match="contradicts itself"):
        ap.Plan.load(tmp_path / "plan.json")


def test_a_plan_that_agrees_with_itself(tmp_path):
    guarantee = ap.epsilon(MECHANISM, 1e-6)
    plan = ap.Plan(AGREES, MECHANISM, guarantee, 1.0)
    plan.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == plan
    for problem in (OPEN, replace(AGREES, examples=None)):
        assert ap.Plan(problem, MECHANISM, guarantee, 1.0).guarantee == guarantee
    assert ap.Plan(AGREES, replace(MECHANISM, examples=None), guarantee, 1.0).guarantee == guarantee
    assert plan.extend(900).guarantee.value > plan.problem.budget.epsilon
    with pytest.raises(ap.InvalidArgument, match="not the fingerprint of a plan"):
        replace(plan, root="extended")


@pytest.mark.parametrize(
    ("strategy", "participation", "match"),
    [
        (ap.strategies.Toeplitz([1.0, 0.5], 9, column_normalized=True), ap.SingleParticipation(), "cannot be extended"),
        (ap.strategies.Dense(np.eye(9)), ap.EveryStep(), "cannot be extended"),
        (ap.strategies.Tree(9, decoder="full"), ap.EveryStep(), "cannot be extended"),
        (ap.strategies.Identity(1), ap.EveryStep(), "fewer than 2 steps"),
    ],
)
def test_a_plan_that_cannot_extend_another_has_no_root(tmp_path, strategy, participation, match):
    """Noise keys depend on the root, so a root makes a plan repeat the noise of another."""
    mechanism = ap.Mechanism(strategy, participation, 8.0)
    bound = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(strategy.steps, ap.Budget(2 * bound.value, 1e-6), participation=participation)
    plan = ap.Plan(problem, mechanism, bound, 1.0)
    root = ap.Plan(AGREES, MECHANISM, ap.epsilon(MECHANISM, 1e-6), 1.0).fingerprint
    with pytest.raises(ap.InvalidArgument, match=match):
        replace(plan, root=root)
    object.__setattr__(plan, "root", root)
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ap.Corrupted, match=match):
        ap.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("name", ["noise_std", "participation", "memory_copies", "error"])
def test_the_first_candidate_is_the_plan(name):
    plan = ap.plan(ap.Problem(12, BUDGET, participation=ap.FixedEpochs(3, 4)), ["identity", "toeplitz"])
    first = plan.candidates[0]
    wrong = ap.FixedEpochs(4, 4) if name == "participation" else 1 + getattr(first, name)
    other = replace(first, **{name: wrong})
    with pytest.raises(ap.InvalidArgument, match=rf"candidates\[0\]\.{name} is"):
        replace(plan, candidates=(other, *plan.candidates[1:]))


@pytest.mark.parametrize("pipeline", ["poisson", "cyclic-poisson", "fixed-size", "fixed-epochs", "shuffled-epochs"])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_plans_of_every_pipeline_agree_with_themselves(tmp_path, pipeline, adjacency):
    if (pipeline == "fixed-size") != (adjacency == "replace") and pipeline not in ("fixed-epochs", "shuffled-epochs"):
        pytest.skip("not proved")
    problem = ap.Problem(24, BUDGET, examples=997, batch_size=100, adjacency=adjacency, memory_copies=8)
    plan = ap.plan(problem, ["identity", "toeplitz", "blt"], pipelines=[pipeline])
    plan.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == plan


def test_a_made_up_guarantee_opens_no_run(tmp_path):
    plan = ap.Plan(AGREES, MECHANISM, ap.Bound(0.1, "exact", "analytic Gaussian", "Balle and Wang 2018"), 1.0)
    with pytest.raises(ap.InvalidArgument, match=r"states epsilon 0\.1, but its mechanism gives"):
        ap.Run.open(plan, tmp_path / "run", leaves=[(2,)], examples=1000)
    assert not (tmp_path / "run").exists()


def test_a_run_has_the_examples_of_its_problem(tmp_path):
    plan = ap.Plan(AGREES, replace(MECHANISM, examples=None), ap.epsilon(MECHANISM, 1e-6), 1.0)
    with pytest.raises(ap.InvalidArgument, match="1000 examples"):
        ap.Run.open(plan, tmp_path, leaves=[(2,)], examples=5)


WRONG_FIELDS = {
    "problem": [None, "problem"],
    "mechanism": [None, ap.Budget(1.0, 1e-6)],
    "guarantee": [None, 1.0, ap.Bound(math.inf, "upper", "", "")],
    "error": [math.nan, math.inf, "1.0", None, True, np.ones(2), 1j, 10**400],
    "candidates": [None, (1,), "ab"],
    "root": [None, 5, "\ud800"],
    "notes": [None, "abc", (1,), (b"x",), ("\ud800",)],
    "deviation": [None, 5, ["x"], "\ud800"],
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_a_field_of_the_wrong_type_is_named(name):
    plan = replace(plan_for(STRATEGIES["toeplitz"]), candidates=())
    for value in WRONG_FIELDS[name]:
        with pytest.raises(ap.InvalidArgument, match=f"'{name}' parameter of Plan"):
            replace(plan, **{name: value})


@pytest.mark.parametrize("error", [1, 1.0, np.float32(0.1), np.float64(0.1), -0.0])
def test_a_plan_built_by_hand_opens_a_run_that_can_be_read(tmp_path, error):
    plan = replace(plan_for(STRATEGIES["toeplitz"]), candidates=(), error=error, notes=["a note"])
    ap.Run.open(plan, tmp_path, leaves=[(2,)]).close()
    found = read_run(tmp_path)
    assert found.details_recorded
    assert found.plan == plan


def test_the_plan_of_a_server_says_that_it_deviates(tmp_path):
    """Files of federated runs from before plans had that field are read as theirs, and as nothing else."""
    mechanism = replace(MECHANISM, participation=ap.MinSeparation(2), noise_std=1.0)
    plan = ap.Plan(AGREES, mechanism, ap.epsilon(mechanism, 1e-6), 1.0, deviation="the server adds less noise")
    assert plan.guarantee.value > AGREES.budget.epsilon
    path = tmp_path / "plan.json"
    plan.save(path)
    assert ap.Plan.load(path) == plan
    data = json.loads(path.read_text())
    del data["plan"]["deviation"]
    path.write_text(json.dumps(data))
    with pytest.raises(ap.Corrupted, match="contradicts itself"):
        ap.Plan.load(path)
    assert ap.Plan._load(path, "older").deviation == "older"
    with pytest.raises(ap.InvalidArgument, match="adjacency"):
        replace(plan, problem=replace(AGREES, adjacency="replace"))


@pytest.mark.parametrize(
    ("name", "family", "size"),
    [
        ("identity (DP-SGD)", "identity", None),
        ("tree, full", "tree", None),
        ("fourier, optimal decoder, x 4", "stamped", 4),
        ("toeplitz (16 bands)", "toeplitz", 16),
        ("toeplitz (2 bands, unit columns)", "toeplitz", 2),
        ("toeplitz, for the bins", "toeplitz", None),
        ("banded (8 bands)", "banded", 8),
        ("banded inverse (4 bands)", "banded-inverse", 4),
        ("blt (1 buffer)", "blt", 1),
        ("blt (4 buffers, published for separation 400)", "blt", 4),
        ("dense (to 1%)", "dense", None),
        ("written by hand", "unknown", None),
    ],
)
def test_candidates_of_version_0_1_0_get_a_family_and_a_participation(tmp_path, name, family, size):
    """They were stored with a display name and the `repr` of their participation; the digest in a ledger stays."""
    promise = ap.CyclicPoisson(4, 1 / 3)
    problem = ap.Problem(12, BUDGET, participation=promise)
    plan = ap.plan(problem, ["identity"])
    path = tmp_path / "plan.json"
    plan.save(path)
    data = json.loads(path.read_text())
    stored = data["plan"]["candidates"][0]
    del stored["family"]
    stored |= {"name": name, "participation": "CyclicPoisson(groups=4, rate=0.3333333333333333, max_batch=None)"}
    path.write_text(json.dumps(data))
    before = [plan.error, [stored], [*plan.notes], ""]
    digest = hashlib.sha256(json.dumps(before, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    found = ap.Plan.load(path)
    first = found.candidates[0]
    assert (first.name, first.family, first.size, first.participation) == (name, family, size, promise)
    assert found.details == digest
    found.save(path)
    assert ap.Plan.load(path) == found


def test_a_name_that_says_something_else_than_the_candidate_is_refused():
    plan = ap.plan(ap.Problem(12, BUDGET, participation=ap.FixedEpochs(3, 4)), ["identity", "toeplitz"])
    first = plan.candidates[0]
    assert (first.family, first.size, first.size_unit, first.name) == ("toeplitz", 4, "bands", "toeplitz (4 bands)")
    with pytest.raises(ap.InvalidArgument, match="'name' parameter of Candidate"):
        replace(first, size=8)
    assert replace(first, size=8, name="").name == "toeplitz (8 bands)"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_plan_prints_as_a_short_summary(name):
    plan = plan_for(STRATEGIES[name])
    text = str(plan)
    assert len(text.splitlines()) <= 6 + len(plan.notes)
    assert len(text) < 1000 + sum(map(len, plan.notes))
    assert len(repr(plan)) < 200
    stated = float(re.search(r"guarantee: epsilon (\S+) at", text)[1])
    assert plan.guarantee.value <= stated <= plan.guarantee.value + 1e-4  # rounded up
    assert f"{plan.steps} steps" in text
    assert f"delta {plan.problem.budget.delta:g}" in repr(plan)


def test_a_plan_with_learning_rates_per_step_cannot_be_extended():
    workload = ap.Momentum(0.9, np.linspace(1.0, 0.5, 10))
    problem = ap.Problem(10, ap.Budget(8.0, 1e-5), workload=workload, participation=ap.MinSeparation(2, 5))
    plan = ap.plan(problem, families=["toeplitz"])
    with pytest.raises(ap.Refused, match=r"(?s)learning rates for 10 steps only.*hint: plan with a constant"):
        plan.extend(13)
    reasons = [change.reason for change in more_steps(plan)]
    assert all("learning rates for 10 steps" in reason for reason in reasons[:-1])
    assert [change.what for change in smaller_separation(plan)] == ["at least 1 steps apart instead of at least 2"]
