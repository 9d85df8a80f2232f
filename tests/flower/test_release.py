"""What a release is: the clipped sum plus the step's noise, over the goal."""

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord

import antiphase as ap
from antiphase.flower import SGD, ServerOptimizer, report
from antiphase.flower._clip import clip_factor, norm
from tests.flower.federation import (
    GRID,
    SECRET,
    SHAPES,
    Client,
    FakeGrid,
    blt,
    clipped,
    federation,
    model,
    model_by_hand,
    plan_for,
    strategy,
    updates,
)

STRATEGIES = {
    "blt": blt(6),
    "banded": ap.strategies.Toeplitz([1.0, 0.5, 0.25], 6),
    "tree": ap.strategies.Tree(6),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_released_stream_minus_the_clipped_sums_has_the_covariance_of_the_mechanism(tmp_path, name):
    """Entries are independent, so each is a sample of the n-vector of noises. A variance from 300,000 samples has a
    relative standard error of 0.26 %, and the limit is 5 of them: noise 1 % too small changes it by nearly 8."""
    entries, goal, clip, sigma, chosen = 300_000, 2, 0.7, 3.0, STRATEGIES[name]
    plan = plan_for(chosen, separation=1, clip=clip, noise_std=sigma)
    given = [[np.full(entries, 1.0)], [np.linspace(-1e-5, 1e-5, entries)]]  # one is clipped, one is not
    grid = FakeGrid({i: Client(tmp_path / f"c{i}", update) for i, update in enumerate(given)})
    models = [np.zeros(entries)]
    strategy(plan, tmp_path / "server", goal=goal).start(
        grid,
        ArrayRecord([np.zeros(entries)]),
        evaluate_fn=lambda release, arrays: models.append(arrays.to_numpy_ndarrays()[0]) if release else None,
    )
    true_sum = sum(clipped(update, clip)[0] for update in given)
    noise = np.diff(np.stack(models), axis=0) * goal - true_sum
    expected = sigma**2 * clip**2 * chosen.noising() @ chosen.noising().T
    found = noise @ noise.T / entries
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / entries)
    assert np.abs((found - expected) / error).max() < 5.0
    assert np.abs(noise.mean(axis=1) / np.sqrt(np.diag(expected) / entries)).max() < 5.0


def test_model_is_that_of_the_recorded_clients_and_the_runs_noise(tmp_path):
    plan = plan_for(blt())
    result = strategy(plan, tmp_path / "server").start(federation(tmp_path / "clients", 13), model())
    expected = model_by_hand(tmp_path / "server", tmp_path / "clients", plan, 4, updates(13))
    for found, wanted in zip(result.arrays.to_numpy_ndarrays(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-9)


def test_noise_is_the_same_whoever_comes_and_the_divisor_is_the_goal(tmp_path):
    """Nobody comes: the release is noise over the goal."""
    plan = plan_for(blt(3))
    grid = FakeGrid({})
    result = strategy(plan, tmp_path / "server", goal=50, when_short="release").start(grid, model())
    expected = model_by_hand(tmp_path / "server", tmp_path, plan, 50, [])
    assert np.abs(expected[0]).max() > 0
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7)


def test_float32_models_stay_float32(tmp_path):
    result = strategy(plan_for(blt(3)), tmp_path / "server").start(federation(tmp_path / "c", 12), model("float32"))
    assert {array.dtype.name for array in result.arrays.to_numpy_ndarrays()} == {"float32"}


def test_no_digit_of_a_sum_is_released_without_noise(tmp_path):
    """Without a lattice, noise of float32 models has 24 bits: a sum with more would show them, in momentum for one."""
    seen: list[np.ndarray] = []

    class Watched(ServerOptimizer):
        def init(self, arrays):
            return {}

        def step(self, release, arrays, update, state):
            seen.extend(value.ravel() for value in update.values())
            return arrays, state

    plan = plan_for(blt(3), clip=0.5)
    server = strategy(plan, tmp_path / "server", optimizer=Watched(), lattice=False)
    server.start(federation(tmp_path / "c", 12), model("float32"))
    released = np.concatenate(seen) * 4 / 0.5  # powers of two: exact
    assert released.size > 0
    assert np.array_equal(released, released.astype(np.float32))


def test_the_workload_is_what_the_server_does(tmp_path):
    """The models are A times the released stream, A written out from the definition of momentum."""
    steps, beta, decay = 6, 0.9, 0.1
    rates = ap.schedules.linear(steps, floor=0.1)
    plan = plan_for(blt(steps), separation=1, workload=ap.Momentum(beta, rates, weight_decay=decay))
    released: list[np.ndarray] = []
    strategy(plan, tmp_path / "s", goal=3).start(
        federation(tmp_path / "c", 3), model(), evaluate_fn=lambda _, arrays: released.append(flat(arrays))
    )
    workload = np.zeros((steps, steps))
    for column in range(steps):
        speed = value = 0.0
        for row in range(steps):
            speed = beta * speed + (row == column)
            value = (1 - rates[row] * decay) * value + rates[row] * speed
            workload[row, column] = value
    stream = np.stack([mean_update(tmp_path / "s", t) for t in range(steps)])
    np.testing.assert_allclose(np.stack(released[1:]), workload @ stream, rtol=1e-6, atol=GRID)


def flat(arrays: ArrayRecord) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays.to_numpy_ndarrays()])


def mean_update(server, release):
    """The noised mean update of one release in which all three clients take part."""
    run_id = json.loads((server / "run" / "run.json").read_text())["run_id"]
    leaves = dict(zip(model(), SHAPES.values(), strict=True))
    ran = ap.Plan.load(server / "run" / "plan.json")
    noise = ran.mechanism.lattice.value(ap.NoiseStream(ran, leaves, SECRET, run_id, start_step=release).next())
    parts = [clipped(update) for update in updates(3)]
    return np.concatenate([(sum(p[i] for p in parts) + n).ravel() / 3 for i, n in enumerate(noise)])


class Adam(ServerOptimizer):
    """Any optimizer is post-processing; its state is stored with the model."""

    def init(self, model):
        return {f"{kind} {name}": np.zeros_like(v) for kind in "mv" for name, v in model.items()}

    def step(self, release, model, update, state):
        made, moved = {}, {}
        for name, g in update.items():
            m = made[f"m {name}"] = 0.9 * state[f"m {name}"] + 0.1 * g
            v = made[f"v {name}"] = 0.99 * state[f"v {name}"] + 0.01 * g**2
            moved[name] = (model[name] + 0.1 * m / (np.sqrt(v) + 1e-3)).astype(model[name].dtype)
        return moved, made


def test_any_optimizer_is_resumed_with_its_state(tmp_path):
    grid = federation(tmp_path / "c", 12)
    plan = plan_for(blt(6))
    for stop in (2, 3, 6):
        result = strategy(plan, tmp_path / "s", optimizer=Adam()).start(grid, model(), num_rounds=stop)
    assert report(tmp_path / "s", secret=SECRET).run.steps_run == 6
    assert all(np.isfinite(a).all() for a in result.arrays.to_numpy_ndarrays())


def test_an_optimizer_that_changes_the_model_s_form_is_refused_before_anything_is_stored(tmp_path):
    class Wrong(ServerOptimizer):
        def init(self, model):
            return {}

        def step(self, release, model, update, state):
            return {name: value.astype("float32") for name, value in model.items()}, {}

    with pytest.raises(ap.InvalidArgument, match="float32"):
        strategy(plan_for(blt()), tmp_path / "s", optimizer=Wrong()).start(federation(tmp_path / "c", 12), model())
    assert report(tmp_path / "s", secret=SECRET).run.steps_run == 0


def test_clipping_never_exceeds_the_norm():
    rng = np.random.default_rng(0)
    for scale in (1e-30, 1e-3, 1.0, 1.0 + 1e-12, 1e3, 1e30):
        update = [(scale * rng.standard_normal(1001)).astype("float32"), np.asarray(np.float32(scale))]
        length = np.sqrt(sum((a.astype("longdouble") ** 2).sum() for a in update))
        assert abs(norm(update) / float(length) - 1) < 1e-12
        assert clip_factor(norm(update), 1.0) * length <= 1.0
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(0.0, 1.0) == 1.0


def test_sgd_refuses_bad_settings():
    for options in (
        {"learning_rates": -1.0},
        {"learning_rates": (1.0, np.nan)},
        {"momentum": 1.0},
        {"weight_decay": -1},
    ):
        with pytest.raises(ap.InvalidArgument):
            SGD(**options)
    with pytest.raises(
        ap.InvalidArgument, match=r"SGD has 2 learning rates, but .* none for release 5, counted from 0"
    ):
        SGD((1.0, 0.5)).step(5, {"w": np.zeros(1)}, {"w": np.zeros(1)}, {})


def test_metrics_stay_on_the_clients_unless_they_are_asked_for(tmp_path):
    plan = plan_for(blt(2))
    for raw, wanted in ((False, {}), (True, {1: {"loss": 2.0}, 2: {"loss": 2.0}})):
        grid = federation(tmp_path / f"c{raw}", 8)
        result = strategy(plan, tmp_path / f"s{raw}", raw_metrics=raw).start(grid, model())
        assert {n: dict(m) for n, m in result.train_metrics_clientapp.items()} == wanted
        assert result.evaluate_metrics_clientapp == {}
        found = report(tmp_path / f"s{raw}", secret=SECRET)
        assert any("Metrics from clients" in remark for remark in found.remarks) == raw
    assert all(isinstance(m, MetricRecord) for m in result.train_metrics_clientapp.values())
