"""Four devices: every device makes, or is given, its own part of the noise, and the whole is that of one device."""

from itertools import product
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import BLT, Banded, BandedInverse, Identity, Stamped, Toeplitz, Tree
from tests.jax.plans import added, departures, flat, is_right, plan_for, run_for

STEPS = 12
STRATEGIES = {
    "identity": Identity(STEPS),
    "banded": Banded(Toeplitz.square_root(STEPS, 5).columns()),
    "blt": BLT([0.9, 0.5], [0.1, 0.2], STEPS),
    "banded-inverse": BandedInverse.square_root(4, STEPS),
    "tree": Tree(STEPS),
    "stamped": Stamped(Tree(4), 3),
}
PARAMS = {"w": jnp.zeros((8, 6)), "s": jnp.zeros(())}
SPECS = {"w": P("rows", "columns"), "s": P()}
QUICK = [("host", "blt", AxisType.Auto), ("device", "identity", AxisType.Explicit)]
EVERY = product(["host", "device"], STRATEGIES, [AxisType.Auto, AxisType.Explicit])
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in QUICK)]


def shardings_for(kind):
    mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(kind, kind))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), SPECS, is_leaf=lambda part: isinstance(part, P))


def noise_of(run, params, source, shardings=None):
    optimizer = apj.add_noise(run, source, shardings=shardings)
    update, state, rows = jax.jit(optimizer.update), optimizer.init(params), []
    for _ in range(run.steps):
        updates, state = update(jax.tree.map(jnp.zeros_like, params), state, params)
        rows.append(flat(updates))
        apj.commit(run, state, updates)
    return np.stack(rows), updates, state


@pytest.mark.parametrize(("source", "name", "kind"), CASES)
def test_sharded_noise_is_the_noise_of_one_device(tmp_path, source, name, kind):
    plan, shardings = plan_for(STRATEGIES[name]), shardings_for(kind)
    with run_for(plan, tmp_path / "one", PARAMS) as run:
        whole, _, _ = noise_of(run, PARAMS, source)
        run_id = run.run_id
    placed = jax.device_put(PARAMS, shardings)
    with run_with_id(plan, tmp_path / "four", run_id) as run:
        parts, updates, state = noise_of(run, placed, source, shardings)
    assert parts.tobytes() == whole.tobytes()
    assert all(jax.tree.leaves(jax.tree.map(lambda u, at: u.sharding.is_equivalent_to(at, u.ndim), updates, shardings)))
    for buffer in jax.tree.leaves(state.private):
        if buffer.size and buffer.ndim > 2:
            assert {shard.data.size for shard in buffer.addressable_shards} == {buffer.size // 4}


def run_with_id(plan, directory, run_id):
    """A second run with the noise of the first, which only a test may want."""
    with patch("antiphase._run.opening.fresh_run_id", lambda: run_id):
        return run_for(plan, directory, PARAMS)


@pytest.mark.parametrize("source", ["host", "device"])
def test_shardings_need_not_be_said(tmp_path, source):
    """Then the noise is made whole, and the compiler cuts it."""
    with run_for(plan_for(STRATEGIES["blt"]), tmp_path / "one", PARAMS) as run:
        optimizer = apj.add_noise(run, source)
        wanted, _ = jax.jit(optimizer.update)(PARAMS, optimizer.init(PARAMS))
        run_id = run.run_id
    with run_with_id(plan_for(STRATEGIES["blt"]), tmp_path / "four", run_id) as run:
        optimizer = apj.add_noise(run, source)
        placed = jax.device_put(PARAMS, shardings_for(AxisType.Auto))
        made, _ = jax.jit(optimizer.update)(placed, optimizer.init(placed))
    assert flat(made).tobytes() == flat(wanted).tobytes()


def test_every_device_asks_for_its_own_part_alone(tmp_path, monkeypatch):
    from antiphase.jax import _host_noise

    asked = []
    original = _host_noise.io_callback
    monkeypatch.setattr(
        _host_noise, "io_callback", lambda f, shape, *args: asked.append(shape.shape) or original(f, shape, *args)
    )
    shardings = shardings_for(AxisType.Auto)
    with run_for(plan_for(STRATEGIES["blt"]), tmp_path, PARAMS) as run:
        optimizer = apj.add_noise(run, shardings=shardings)
        placed = jax.device_put(PARAMS, shardings)
        jax.block_until_ready(jax.jit(optimizer.update)(placed, optimizer.init(placed), placed))
    assert asked == [(), (4, 3)]


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("source", ["host", "device"])
def test_a_refused_step_leaves_no_device_waiting_for_another(tmp_path, source, said):
    """XLA would end the whole process: the sum over all devices is never reached by the one that was refused."""
    shardings = shardings_for(AxisType.Auto)
    with run_for(plan_for(STRATEGIES["identity"]), tmp_path, PARAMS) as run:
        optimizer = apj.add_noise(run, source, shardings=shardings if said else None)
        placed = jax.device_put(PARAMS, shardings)

        @jax.jit
        def step(state):
            updates, state = optimizer.update(placed, state, placed)
            return updates, state, sum(jnp.sum(leaf) for leaf in jax.tree.leaves(updates))

        updates, first, total = step(optimizer.init(placed))
        assert np.isfinite(total)
        ahead, second, total = step(first)
        assert np.isnan(total)
        assert np.isnan(flat(ahead)).all()
        with pytest.raises(ap.Refused, match="the next step is 0"):
            apj.commit(run, second, ahead)
        with pytest.raises(ap.Refused, match="the next step is 0"):
            apj.report(run, second)
        apj.commit(run, first, updates)  # the step that was left out, and the next one after it
        updates, second, total = step(first)
        assert np.isfinite(total)
        apj.commit(run, second, updates)


def test_replicated_parameters_get_the_same_noise_everywhere(tmp_path):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    shardings = jax.tree.map(lambda p: NamedSharding(mesh, P()), PARAMS)
    with run_for(plan_for(STRATEGIES["blt"]), tmp_path, PARAMS) as run:
        _, updates, _ = noise_of(run, jax.device_put(PARAMS, shardings), "host", shardings)
    copies = [np.asarray(shard.data) for shard in updates["w"].addressable_shards]
    assert len(copies) == 4
    assert len({copy.tobytes() for copy in copies}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("source", ["host", "device"])
def test_noise_of_four_devices_over_500_steps_has_the_covariance_of_the_plan(tmp_path, source):
    """Micro-batches accumulated on four devices; what any one of them makes would not do, nor the noise of a mean."""
    params, plan = {"w": jnp.zeros((40, 40))}, plan_for(Banded(Toeplitz.square_root(500, 7).columns()))
    shardings = {"w": shardings_for(AxisType.Auto)["w"]}
    placed = jax.device_put(params, shardings)
    with run_for(plan, tmp_path, params) as run:
        noise = apj.add_noise(run, source, shardings=shardings)
        optimizer = optax.MultiSteps(noise, 2, use_grad_mean=False).gradient_transformation()
        made = added(optimizer, run, placed, micro=2)
    assert is_right(made, plan), departures(made, plan)
    own = np.zeros((40, 40), bool)
    own[shardings["w"].devices_indices_map((40, 40))[jax.devices()[0]]] = True
    assert own.sum() == 400
    assert not is_right(made * own.reshape(-1), plan)
    assert not is_right(made / 50.0, plan)


@pytest.mark.parametrize("shardings", [{}, {"w": None}, {"w": "rows"}])
def test_anything_but_named_shardings_is_refused(tmp_path, shardings):
    with (
        run_for(plan_for(STRATEGIES["blt"]), tmp_path, PARAMS) as run,
        pytest.raises(ap.InvalidArgument, match="tree with a NamedSharding for each array"),
    ):
        apj.add_noise(run, shardings=shardings)
