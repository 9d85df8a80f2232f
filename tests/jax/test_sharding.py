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
from antiphase.jax import _clip
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


@jax.custom_vjp
def quiet_forward(w):
    return w


quiet_forward.defvjp(lambda w: (w, None), lambda _, g: (jax.lax.ppermute(g, "data", [(0, 1), (1, 0)]),))

TALKING = {
    "synchronised mean": lambda w, x: jnp.tanh((x - jax.lax.pmean(x, "data")) @ w),
    "in a nested program": lambda w, x: jax.jit(lambda x: jax.lax.pmax(jax.lax.stop_gradient(x), "data"))(x) @ w,
    "in a branch": lambda w, x: jax.lax.cond(w[0] > 0, lambda: x @ w, lambda: jax.lax.psum(x, "data") @ w),
    "gathered examples": lambda w, x: (jax.lax.all_gather(x, "data") @ w).sum(),
    "neighbour": lambda w, x: jax.lax.ppermute(x, "data", [(0, 1), (1, 0)]) @ w,
    "in the backward pass alone": lambda w, x: x @ quiet_forward(w),
    "tensor parallel": lambda w, x: jax.lax.psum(x @ w, "model"),
}


def manual(loss, mesh, check_vma, params_spec=None, out_spec=None):
    """The sum over all devices, inside of shard_map."""

    def local(w, x, mask):
        return jax.lax.psum(apj.clipped_sum(loss, 1.0)(w, (x,), mask), "data")

    specs = (params_spec or P(), P("data"), P("data"))
    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=out_spec or P(), check_vma=check_vma))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", TALKING)
def test_a_loss_that_communicates_is_refused(name, check_vma):
    """With the synchronised mean, replacing one example moved the sum by up to 3.7 times the norm, not 2."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ap.Refused, match="communicates between devices"):
        manual(TALKING[name], mesh, check_vma)(jnp.ones(3), jnp.ones((8, 3)), np.ones(8, bool))


def test_a_loss_that_communicates_is_refused_in_pmap():
    def local(w, x):
        total = apj.clipped_sum(TALKING["synchronised mean"], 1.0)(w, (x,), np.ones(4, bool))
        return jax.lax.psum(total, "data")

    with pytest.raises(ap.Refused, match="calls psum over the mesh axis 'data'"):
        jax.pmap(local, axis_name="data", in_axes=(None, 0))(jnp.ones(3), jnp.ones((4, 4, 3)))


def test_a_shard_of_the_parameters_is_refused():
    """Two halves of a gradient, each clipped to norm 1, have norm 1.41 together."""
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    halves = manual(lambda w, x: w @ x[:2], mesh, True, P("model"), P("model"))
    with pytest.raises(ap.Refused, match="the same examples but different parameters"):
        halves(jnp.ones(4), jnp.ones((8, 4)), np.ones(8, bool))


def with_device_key(w, x, key):
    return (w * jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.1)).sum()


def key_of_device():
    return jax.random.fold_in(jax.random.key(0), jax.lax.axis_index("data"))


def closing_over(key):
    return apj.clipped_sum(lambda w, x, _: with_device_key(w, x, key), 1.0)


ON_DEVICES = {
    "in the loss": lambda: apj.clipped_sum(lambda w, x, _: with_device_key(w, x, key_of_device()), 1.0),
    "closed over": lambda: closing_over(key_of_device()),
    "shared": lambda: apj.clipped_sum(with_device_key, 1.0, batch_axis=(0, None)),
}


@pytest.mark.parametrize("name", ON_DEVICES)
def test_a_loss_that_depends_on_its_device_is_refused(name, monkeypatch):
    """Such as by a key for every device: leaving out one example moves others to another device."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    x = 100 * np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)

    def local(w, x, mask):
        second = key_of_device() if name == "shared" else jnp.zeros(len(x))
        return jax.lax.psum(ON_DEVICES[name]()(w, (x, second), mask), "data")

    def total(indices, check_vma=True):
        rows, mask = np.zeros((64, 16), np.float32), np.arange(64) < len(indices)
        rows[mask] = x[indices]
        specs = (P(), P("data"), P("data"))
        mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=check_vma)
        return np.asarray(jax.jit(mapped)(jnp.ones(16), rows, mask))

    for check_vma in (True, False):
        with pytest.raises(ap.Refused, match="depends on the device that it runs on"):
            total(np.arange(64), check_vma)
    monkeypatch.setattr(_clip, "check_no_communication", lambda *given: None)
    assert np.linalg.norm(total(np.arange(64)) - total(np.arange(1, 64))) > 1.5  # what it is refused for


def test_a_batch_that_is_the_same_on_all_devices_is_refused(monkeypatch):
    """With psum, every example would count four times."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def total(mask):
        def local(w, x, mask):
            return jax.lax.psum(apj.clipped_sum(lambda w, x: (w * x).sum(), 1.0)(w, (x,), mask), "data")

        mapped = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), P()), out_specs=P())
        return np.asarray(jax.jit(mapped)(jnp.ones(3), 100 * jnp.ones((8, 3)), mask))

    with pytest.raises(ap.Refused, match="all devices have the same examples"):
        total(np.ones(8, bool))
    monkeypatch.setattr(_clip, "check_distributed", lambda axes: None)
    assert np.linalg.norm(total(np.ones(8, bool)) - total(np.arange(8) > 0)) > 3.9  # what it is refused for


@pytest.mark.parametrize("is_raw", [True, False])
def test_a_key_for_each_device_of_pmap_is_refused(is_raw):
    keys = jax.random.split(jax.random.PRNGKey(0) if is_raw else jax.random.key(0), 4)

    def local(w, x, key):
        total = apj.clipped_sum(lambda w, x: with_device_key(w, x, key), 1.0)
        return jax.lax.psum(total(w, (x,), np.ones(4, bool)), "data")

    with pytest.raises(ap.Refused, match="a random key that may differ between devices"):
        jax.pmap(local, axis_name="data", in_axes=(None, 0, 0))(jnp.ones(3), jnp.ones((4, 4, 3)), keys)


def test_values_that_all_devices_share_may_be_closed_over():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    key, scale = jax.random.key(0), jnp.float32(3.0)
    total = manual(lambda w, x: scale * with_device_key(w, x, key), mesh, True)
    found = total(jnp.ones(3), jnp.ones((8, 3)), np.ones(8, bool))
    g = np.where(jax.random.bernoulli(key, 0.5, (3,)), 3.0, 0.3)
    np.testing.assert_allclose(found, 8 * g / max(1.0, np.linalg.norm(g)), rtol=1e-4)


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
