"""Federated runs with a lattice: updates are summed as exact integers, and the noise is lattice noise."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord

import antiphase as ap
from antiphase.flower import report
from tests.flower.federation import (
    SECRET,
    SHAPES,
    Client,
    FakeGrid,
    blt,
    federation,
    model,
    names_by_hand,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)

GOAL = 4


def lattice_plan(chosen, parameters=8, **options):
    plain = plan_for(ap.rounded_strategy(chosen), **options)
    given = plain.mechanism
    lattice = ap.choose_lattice(
        given.strategy, given.participation, given.noise_std, parameters, plain.problem.clip_norm
    )
    mechanism = replace(given, lattice=lattice)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(max(8.0, guarantee.value), 1e-6)
    problem = replace(plain.problem, budget=budget, lattice=True, parameters=parameters)
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def by_hand(directory, clients, plan, given):
    """Integer sums of the recorded clients plus the integers of a noise stream, over the goal."""
    run_id = json.loads((directory / "run" / "run.json").read_text())["run_id"]
    names, total = names_by_hand(directory, clients), [np.zeros(shape) for shape in SHAPES.values()]
    stream = ap.NoiseStream(plan, dict(zip(model(), SHAPES.values(), strict=True)), SECRET, run_id)
    lattice = plan.mechanism.lattice
    for taking_part in record_by_hand(directory):
        released = stream.next()
        for name in taking_part:
            parts = lattice.contribution(given[names[name]])
            released = [out + part for out, part in zip(released, parts, strict=True)]
        total = [out + value / GOAL for out, value in zip(total, lattice.value(released), strict=True)]
    return total


@pytest.mark.parametrize("scale", [0.05, 3.0])
def test_the_model_is_that_of_integer_sums_and_lattice_noise(tmp_path, scale):
    plan = lattice_plan(blt())
    grid = federation(tmp_path / "clients", 13, scale=scale)
    result = strategy(plan, tmp_path / "server").start(grid, model())
    expected = by_hand(tmp_path / "server", tmp_path / "clients", plan, updates(13, scale=scale))
    for found, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-7)
    assert json.loads((tmp_path / "server" / "run" / "run.json").read_text())["dtype"] == "int64"
    stated = report(tmp_path / "server", secret=SECRET)
    assert "covers every bit" in stated.statement
    assert "exact bits of a model" not in stated.statement
    assert stated.run.guarantee.kind == "upper"


def test_an_interrupted_run_continues(tmp_path):
    plan = lattice_plan(ap.strategies.Toeplitz([1.0, 0.5, 0.25], 8))

    def stop(release, arrays):
        if release == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        strategy(plan, tmp_path / "server").start(federation(tmp_path / "clients", 13), model(), evaluate_fn=stop)
    result = strategy(plan, tmp_path / "server").start(federation(tmp_path / "clients", 13), model())
    expected = by_hand(tmp_path / "server", tmp_path / "clients", plan, updates(13))
    for found, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-7)


def test_what_is_not_finite_counts_as_zero(tmp_path):
    entries = 50
    plan = lattice_plan(ap.strategies.Identity(1), parameters=entries, separation=1)
    sent = [[np.full(entries, np.nan)], [np.full(entries, 1e30)]]
    grid = FakeGrid({i: Client(tmp_path / f"c{i}", update) for i, update in enumerate(sent)})
    result = strategy(plan, tmp_path / "server", goal=2).start(grid, ArrayRecord([np.zeros(entries)]))
    (found,) = result.arrays.to_numpy_ndarrays()
    run_id = json.loads((tmp_path / "server" / "run" / "run.json").read_text())["run_id"]
    noise = ap.NoiseStream(plan, {"0": (entries,)}, SECRET, run_id).next()
    (noise_value,) = plan.mechanism.lattice.value(noise)
    (clipped,) = plan.mechanism.lattice.value(plan.mechanism.lattice.contribution(sent[1]))
    np.testing.assert_allclose(found, (noise_value + clipped) / 2, rtol=1e-7, atol=1e-7)


def test_a_model_with_too_many_parameters_is_refused(tmp_path):
    plan = lattice_plan(blt(), parameters=7)
    with pytest.raises(ap.InvalidArgument, match="accounts for 7 parameters"):
        strategy(plan, tmp_path / "server").start(federation(tmp_path / "clients", 13), model())


def test_parameters_without_dimensions_are_trained_too(tmp_path):
    plan = lattice_plan(ap.strategies.Identity(2), parameters=3, separation=1)
    given = [[np.asarray(0.25), np.full(2, 0.125)]] * 2
    grid = FakeGrid({i: Client(tmp_path / f"c{i}", update) for i, update in enumerate(given)})
    start = ArrayRecord([np.zeros(()), np.zeros(2)])
    result = strategy(plan, tmp_path / "server", goal=2).start(grid, start)
    assert [array.shape for array in result.arrays.to_numpy_ndarrays()] == [(), (2,)]
