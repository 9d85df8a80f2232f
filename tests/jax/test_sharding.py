"""Four devices: every device makes, or is given, its own part of the noise, and the whole is that of one device."""

from contextlib import nullcontext
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
    optimizer = apj.add_correlated_noise(run, source, shardings=shardings)
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
        optimizer = apj.add_correlated_noise(run, source)
        wanted = jax.block_until_ready(jax.jit(optimizer.update)(PARAMS, optimizer.init(PARAMS)))[0]
        run_id = run.run_id
    with run_with_id(plan_for(STRATEGIES["blt"]), tmp_path / "four", run_id) as run:
        optimizer = apj.add_correlated_noise(run, source)
        placed = jax.device_put(PARAMS, shardings_for(AxisType.Auto))
        made = jax.block_until_ready(jax.jit(optimizer.update)(placed, optimizer.init(placed)))[0]
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
        optimizer = apj.add_correlated_noise(run, shardings=shardings)
        placed = jax.device_put(PARAMS, shardings)
        jax.block_until_ready(jax.jit(optimizer.update)(placed, optimizer.init(placed), placed))
    assert asked == [(), (4, 3)]


@pytest.mark.parametrize("said", [False, True])
@pytest.mark.parametrize("source", ["host", "device"])
def test_a_refused_step_leaves_no_device_waiting_for_another(tmp_path, source, said):
    """XLA would end the whole process: the sum over all devices is never reached by the one that was refused."""
    shardings = shardings_for(AxisType.Auto)
    with run_for(plan_for(STRATEGIES["identity"]), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source, shardings=shardings if said else None)
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
        noise = apj.add_correlated_noise(run, source, shardings=shardings)
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
        apj.add_correlated_noise(run, shardings=shardings)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("microbatch", [None, 2])
def test_examples_are_clipped_before_they_are_summed_over_devices(check_vma, microbatch):
    """The gradient with respect to replicated parameters is a sum over the devices, unless they count as varying."""
    mesh, clip_norm = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,)), 0.5
    clipped = apj.clipped_sum(lambda p, x: (p["w"] * x).sum() + p["s"] * x[0], clip_norm, microbatch=microbatch)

    def local(params, x, mask):
        return jax.lax.psum(clipped(params, (x,), mask), "d")

    total = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P(), check_vma=check_vma)
    params = {"w": jnp.zeros(2), "s": jnp.zeros(())}
    x = jax.random.normal(jax.random.key(0), (16, 2)) * 10
    mask = np.arange(16) != 5
    np.testing.assert_allclose(flat(jax.jit(total)(params, x, mask)), flat(clipped(params, (x,), mask)), rtol=1e-5)


def wide_loss(params, x, y):
    return jnp.square(jnp.tanh(x @ params["w"]) + params["s"] - y).sum()


def clipped_by_hand(params, x, y, mask, norm):
    """Every example alone, on one device, in float64."""
    total = np.zeros(sum(leaf.size for leaf in jax.tree.leaves(params)))
    for xi, yi, used in zip(x, y, mask, strict=True):
        g = flat(jax.grad(wide_loss)(params, xi, yi))
        total += used * g * min(1.0, norm / np.linalg.norm(g))
    return total


LAYOUTS = {
    "both over data": ({"w": P("data", None), "s": P()}, ("data", "model")),
    "both axes": ({"w": P("data", "model"), "s": P()}, ("data", "model")),
    "columns": ({"w": P(None, "model"), "s": P()}, ("data", "model")),
    "replicated": ({"w": P(), "s": P()}, ("data", "model")),
    "batch over both": ({"w": P("model", "data"), "s": P()}, (("data", "model"), None)),
}


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_sharded_parameters_and_batch_give_the_sum_of_one_device(name, kind, compiled):
    specs, (batch_axes, _) = LAYOUTS[name]
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind, kind))
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(8, 6)), jnp.float32), "s": jnp.float32(0.5)}
    x, y = rng.normal(size=(16, 8)).astype(np.float32) * 5, rng.normal(size=(16, 6)).astype(np.float32)
    mask = np.arange(16) % 5 != 0
    placed = {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in params.items()}
    data = jax.device_put((x, y, mask), NamedSharding(mesh, P(batch_axes)))
    total = apj.clipped_sum(wide_loss, 0.5, return_losses=True)
    with jax.set_mesh(mesh):
        sums, each = (jax.jit(total) if compiled else total)(placed, data[:2], data[2])
    np.testing.assert_allclose(flat(sums), clipped_by_hand(params, x, y, mask, 0.5), rtol=1e-4, atol=1e-5)
    losses = [float(wide_loss(params, a, b)) * used for a, b, used in zip(x, y, mask, strict=True)]
    np.testing.assert_allclose(each.losses, losses, rtol=1e-4)
    if kind == AxisType.Explicit:
        for key, leaf in sums.items():
            assert leaf.sharding.is_equivalent_to(placed[key].sharding, leaf.ndim)


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("microbatch", [None, 4])
def test_a_step_on_an_explicit_mesh_is_that_of_one_device(tmp_path, source, microbatch):
    """Parameters and batch sharded over the same axis; the noise is added once."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    rng = np.random.default_rng(0)
    params = {"w": jnp.asarray(rng.normal(size=(8, 6)), jnp.float32), "s": jnp.float32(0.5)}
    shardings = {"w": NamedSharding(mesh, P("data", "model")), "s": NamedSharding(mesh, P())}
    x, y = rng.normal(size=(40, 8)).astype(np.float32), rng.normal(size=(40, 6)).astype(np.float32)
    once = ap.FixedEpochs(2, 3)
    mechanism = ap.Mechanism(STRATEGIES["blt"].first(6), once, 3.0)
    problem = ap.Problem(
        steps=6, budget=ap.Budget(20.0, 1e-6), examples=40, batch_size=20, participation=once, clip_norm=0.5
    )
    plan = ap.Plan(problem, mechanism, ap.epsilon(mechanism, 1e-6), error=1.0)

    def train(directory, params, data_sharding, shardings, run_id=None):
        fixed = patch("antiphase._run.opening.fresh_run_id", lambda: run_id) if run_id else nullcontext()
        with fixed, run_for(plan, directory, params, examples=40) as run:
            optimizer = optax.chain(apj.add_correlated_noise(run, source, shardings=shardings), optax.sgd(0.1))
            state, total = optimizer.init(params), apj.clipped_sum(wide_loss, 0.5, microbatch=microbatch)

            @jax.jit
            def step(params, state, data, mask):
                updates, state = optimizer.update(total(params, data, mask), state, params)
                return optax.apply_updates(params, updates), state

            for batch in apj.batches(run, (x, y), multiple=8, sharding=data_sharding):
                params, state = step(params, state, batch.data, batch.mask)
                apj.commit(run, state, params, batch.indices)
            return params, run.run_id

    one, run_id = train(tmp_path / "one", params, None, None)
    placed = {key: jax.device_put(value, shardings[key]) for key, value in params.items()}
    four, _ = train(tmp_path / "four", placed, NamedSharding(mesh, P("data")), shardings, run_id)
    np.testing.assert_allclose(flat(four), flat(one), rtol=1e-4, atol=1e-4)
    assert four["w"].sharding.is_equivalent_to(shardings["w"], 2)


@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto])
@pytest.mark.parametrize("compiled", [True, False])
def test_new_buffers_are_sharded(tmp_path, kind, compiled):
    """Also if the state is made by a compiled program, which may place what it makes from nothing anywhere."""
    shardings = shardings_for(kind)
    placed = jax.device_put(PARAMS, shardings)
    with run_for(plan_for(STRATEGIES["blt"]), tmp_path, PARAMS) as run:
        init = apj.add_correlated_noise(run, "device", shardings=shardings).init
        state = (jax.jit(init) if compiled else init)(placed)
    _, buffer = state.private.buffers
    assert {shard.data.size for shard in buffer.addressable_shards} == {buffer.size // 4}
