"""Plans: saved and loaded without change, refused when edited; problems refused when they contradict themselves."""

import json
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
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
    "less noise": lambda d: d["plan"]["mechanism"].update(noise_std=2.9),
    "another participation": lambda d: d["plan"]["mechanism"]["participation"].update(separation=5),
    "another delta": lambda d: d["plan"]["problem"]["budget"].update(delta=1e-5),
    "a better guarantee": lambda d: d["plan"]["guarantee"].update(value=0.1),
    "another format": lambda d: d.update(format=2),
    "no plan": lambda d: d.pop("plan"),
    "another fingerprint": lambda d: d.update(fingerprint="0" * 64),
    "something else": lambda d: d.update(plan={"type": "PrefixSum"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_is_refused(tmp_path, edit):
    path = tmp_path / "plan.json"
    plan_for(STRATEGIES["toeplitz"]).save(path)
    data = json.loads(path.read_text())
    EDITS[edit](data)
    path.write_text(json.dumps(data))
    with pytest.raises(ap.Corrupted, match="hint"):
        ap.Plan.load(path)


@pytest.mark.parametrize("keep", [0, 1, 100, -2])
def test_a_plan_cut_short_is_refused(tmp_path, keep):
    path = tmp_path / "plan.json"
    plan_for(STRATEGIES["toeplitz"]).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ap.Corrupted):
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
    with pytest.raises(ap.InvalidArgument):
        plan_for(STRATEGIES["blt"]).extend(steps)


BAD = {
    "no steps": {"steps": 0},
    "a batch larger than the data": {"examples": 10, "batch_size": 11},
    "a negative memory": {"memory_copies": -1},
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
    with pytest.raises(ap.InvalidArgument, match="hint"):
        ap.Problem(**{"steps": 10, "budget": BUDGET, **BAD[case]})
