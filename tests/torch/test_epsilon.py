"""`get_epsilon` returns the guarantee for the steps in the ledger, at any delta."""

import pytest
import torch

import antiphase as ap
import antiphase.torch
from antiphase.torch import NoiseAdder
from tests.torch.training import HOOKS, SECRET, STEPS, plan_for, private

pytestmark = pytest.mark.filterwarnings(HOOKS)
PLANS = {
    "correlated": plan_for(),
    "independent": plan_for(ap.strategies.Identity(STEPS), ap.MinSeparation(4)),
    "amplified": plan_for(ap.strategies.Identity(STEPS), ap.Poisson(0.3)),
}
DELTAS = (1e-9, 1e-6, 1e-3)


def one_step(noise):
    noise.batch()
    noise.add()
    noise.commit()


@pytest.mark.parametrize("name", PLANS)
def test_is_the_epsilon_of_the_first_steps(tmp_path, name):
    plan = PLANS[name]
    with NoiseAdder([torch.zeros(3)], plan, tmp_path, examples=40, secret=SECRET) as noise:
        assert [noise.get_epsilon(delta) for delta in DELTAS] == [0.0] * 3
        for step in range(STEPS):
            one_step(noise)
            if step in (0, 4, STEPS - 1):
                for delta in DELTAS:
                    # A run also knows that its first steps cost at most what all steps do.
                    proved = [ap.epsilon(m, delta).value for m in (plan.mechanism.first(step + 1), plan.mechanism)]
                    assert noise.get_epsilon(delta) == pytest.approx(min(proved), rel=1e-9)
        assert noise.get_epsilon(1e-6) == noise.report().guarantee.value


def test_grows_with_the_steps_and_falls_with_delta(tmp_path):
    with NoiseAdder([torch.zeros(3)], PLANS["independent"], tmp_path, examples=40, secret=SECRET) as noise:
        found = []
        for _ in range(STEPS):
            one_step(noise)
            found.append([noise.get_epsilon(delta) for delta in DELTAS])
    assert all(row == sorted(row, reverse=True) and len(set(row)) == 3 for row in found)
    for column in zip(*found, strict=True):
        # MinSeparation(4): an example takes part again in every fourth step.
        assert list(column) == sorted(column)
        assert len(set(column)) == STEPS // 4


def test_of_the_engine_is_that_of_its_run(tmp_path):
    plan = PLANS["correlated"]
    with pytest.raises(ap.Refused, match="There is no run yet"):
        antiphase.torch.PrivacyEngine(tmp_path / "none").get_epsilon(1e-6)
    engine, module, optimizer, criterion, loader = private(tmp_path, plan)
    assert engine.get_epsilon(1e-5) == 0.0
    for x, y in loader:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()
    assert 0 < engine.step < STEPS
    assert engine.get_epsilon(1e-5) == pytest.approx(
        ap.epsilon(plan.mechanism.first(engine.step), 1e-5).value, rel=1e-9
    )
    spent = engine.get_epsilon(1e-6)
    engine.restart()
    assert engine.get_epsilon(1e-6) == spent  # steps in the ledger count wherever training stands
    engine.close()


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, float("nan"), "small"])
def test_a_delta_that_is_none_is_refused(tmp_path, delta):
    with (
        NoiseAdder([torch.zeros(3)], PLANS["correlated"], tmp_path, examples=40, secret=SECRET) as noise,
        pytest.raises(ap.InvalidArgument, match="'delta' parameter of get_epsilon"),
    ):
        noise.get_epsilon(delta)
