"""Flax NNX and Linen, Equinox and Haiku, each with its own optimizer loop, against examples clipped one by one."""

from unittest.mock import patch

import equinox as eqx
import flax
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import BLT
from tests.jax.plans import CLIP, flat, plan_for, run_for

STEPS, BATCH, RATE = 3, 6, 0.3
RNG = np.random.default_rng(4)
X = RNG.normal(size=(STEPS, BATCH, 3)).astype(np.float32) * 3
Y = RNG.normal(size=(STEPS, BATCH, 2)).astype(np.float32)
MASK = np.ones(BATCH, bool)
PLAN = plan_for(BLT([0.9, 0.5], [0.1, 0.2], STEPS))


class NnxModel(nnx.Module):
    """Attributes that do not come in alphabetical order, a list of layers, and variables that are not trained."""

    def __init__(self, rngs):
        self.last = nnx.Linear(4, 2, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs)])
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x):
        return self.last(self.dropout(self.norm(jnp.tanh(self.layers[0](x)))))


def by_hand(start, gradient_of, noise_of):
    """SGD on flat parameters: every gradient clipped on its own in float64, plus the noise that the run makes."""
    weights = start.astype(np.float64)
    for step in range(STEPS):
        total = np.zeros_like(weights)
        for x, y in zip(X[step], Y[step], strict=True):
            g = gradient_of(weights, x, y)
            total += g * min(1.0, CLIP / np.linalg.norm(g))
        weights = weights - RATE * (total + noise_of(step)) / BATCH
    return weights


def noise_reader(run, directory, params):
    """The noise of the run's steps, read by a second run with the same secret and id, which only a test may have."""
    with patch("antiphase._run.opening.fresh_run_id", lambda: run.run_id):
        second = run_for(PLAN, directory, params)

    def read(step):
        noise = np.concatenate([array.reshape(-1) for array in second.gradient_noise(step)])
        second.commit(step, bytes(32))
        return noise

    return read


def unflat(vector, like):
    leaves, tree = jax.tree.flatten(like)
    parts = np.split(np.asarray(vector, np.float32), np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(tree, [jnp.asarray(p).reshape(leaf.shape) for p, leaf in zip(parts, leaves, strict=True)])


def square(out, y):
    return jnp.square(out - y).sum()


def chain(run, source="host"):
    return optax.chain(apj.add_correlated_noise(run, source), optax.scale(1 / BATCH), optax.sgd(RATE))


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("jit", [nnx.jit, lambda f: f])
def test_the_optimizer_of_nnx(tmp_path, source, jit):
    model = NnxModel(nnx.Rngs(0))
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    start = flat(params)

    def loss(params, x, y):
        return square(nnx.merge(graph, params, rest)(x), y)

    with run_for(PLAN, tmp_path / "run", params) as run:
        optimizer = nnx.Optimizer(model, chain(run, source), wrt=nnx.Param)
        total = apj.clipped_sum(loss, CLIP)

        @jit
        def step(model, optimizer, x, y):
            optimizer.update(model, total(nnx.state(model, nnx.Param), (x, y), MASK))

        for t in range(STEPS):
            step(model, optimizer, X[t], Y[t])
            apj.commit(run, optimizer.opt_state, nnx.state(model, nnx.Param))
        report = apj.report(run, optimizer.opt_state)
        assert (report.steps_run, report.rewinds) == (STEPS, 0)
        public, private = apj.split(optimizer.opt_state)
        assert int(apj.join(public, private)[0].step) == STEPS
        if source == "device":
            return

        def gradient_of(weights, x, y):
            return flat(jax.grad(loss)(unflat(weights, params), x, y)).astype(np.float64)

        wanted = by_hand(start, gradient_of, noise_reader(run, tmp_path / "second", params))
    np.testing.assert_allclose(flat(nnx.state(model, nnx.Param)), wanted, rtol=1e-4, atol=1e-5)


def test_nnx_is_resumed_from_a_checkpoint_of_its_optimizer(tmp_path):
    """With noise on the device, whose buffers are in the state; killed after the second step."""

    def start(run):
        model = NnxModel(nnx.Rngs(0))
        optimizer = nnx.Optimizer(
            model, optax.chain(apj.add_correlated_noise(run, "device"), optax.adam(0.1)), wrt=nnx.Param
        )
        return model, optimizer

    def train(run, model, optimizer, first):
        for t in range(first, STEPS):
            optimizer.update(model, jax.tree.map(lambda p, t=t: jnp.full_like(p, t), nnx.state(model, nnx.Param)))
            apj.commit(run, optimizer.opt_state, nnx.state(model, nnx.Param))
            if t == 1:
                apj.save(tmp_path / "checkpoint", nnx.state((model, optimizer)), run)
        return flat(nnx.state(model, nnx.Param))

    params = nnx.state(NnxModel(nnx.Rngs(0)), nnx.Param)
    with run_for(PLAN, tmp_path / "run", params) as run:
        whole = train(run, *start(run), 0)
    with run_for(PLAN, tmp_path / "run", params) as run:
        both = start(run)
        nnx.update(both, apj.load(tmp_path / "checkpoint", nnx.state(both), run))
        assert train(run, *both, 2).tobytes() == whole.tobytes()
        assert run.report().rewinds == 0


def test_equinox(tmp_path):
    model = eqx.nn.Sequential([eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.5, inference=True)])
    trained, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(model, x, y):
        return square(model(x), y)

    with run_for(PLAN, tmp_path / "run", model) as run:  # with its functions and numbers
        assert apj.leaves(model) == apj.leaves(trained) == apj.leaves(eqx.filter(model, eqx.is_array))
        optimizer = chain(run)
        state = optimizer.init(eqx.filter(model, eqx.is_array))
        total = apj.clipped_sum(lambda p, x, y: loss(eqx.combine(p, static), x, y), CLIP)

        @eqx.filter_jit
        def step(model, state, x, y):
            updates, state = optimizer.update(total(eqx.filter(model, eqx.is_inexact_array), (x, y), MASK), state)
            return eqx.apply_updates(model, updates), state

        for t in range(STEPS):
            model, state = step(model, state, X[t], Y[t])
            apj.commit(run, state, model)
            apj.commit(run, state, eqx.filter(model, eqx.is_array))  # the same output: its functions do not count

        def gradient_of(weights, x, y):
            return flat(eqx.filter_grad(loss)(eqx.combine(unflat(weights, trained), static), x, y))

        wanted = by_hand(flat(trained), gradient_of, noise_reader(run, tmp_path / "second", trained))
    np.testing.assert_allclose(flat(eqx.filter(model, eqx.is_inexact_array)), wanted, rtol=1e-4, atol=1e-5)


class Linen(nn.Module):
    """One kernel in a box that names its mesh axes."""

    @nn.compact
    def __call__(self, x):
        boxed = nn.with_partitioning(nn.initializers.lecun_normal(), ("data", None))
        return nn.Dense(2)(jnp.tanh(nn.Dense(4, kernel_init=boxed)(x)))


def haiku_net():
    return hk.without_apply_rng(hk.transform(lambda x: jnp.tanh(hk.nets.MLP([4, 2])(x))))


def linen():
    params = Linen().init(jax.random.key(1), X[0, 0])
    return Linen().apply, params, flax.core.freeze(params), nn.meta.unbox(params)


def haiku():
    net = haiku_net()
    params = net.init(jax.random.key(1), X[0, 0])
    return net.apply, params, hk.data_structures.to_immutable_dict(params), params


@pytest.mark.parametrize("library", [linen, haiku])
def test_any_wrapper_of_the_parameters_will_do(tmp_path, library):
    """The run is opened with one, the optimizer is given another, and the ledger a third."""
    apply, opened, given, committed = library()

    def loss(params, x, y):
        return square(apply(params, x), y)

    with run_for(PLAN, tmp_path / "run", opened) as run:
        optimizer, total = chain(run), apj.clipped_sum(loss, CLIP)
        state, params = optimizer.init(given), committed
        step = jax.jit(lambda p, s, x, y: optimizer.update(total(p, (x, y), MASK), s, p))
        for t in range(STEPS):
            updates, state = step(params, state, X[t], Y[t])
            params = optax.apply_updates(params, updates)
            apj.commit(run, state, params)

        def gradient_of(weights, x, y):
            return flat(jax.grad(loss)(unflat(weights, committed), x, y))

        wanted = by_hand(flat(committed), gradient_of, noise_reader(run, tmp_path / "second", committed))
    np.testing.assert_allclose(flat(params), wanted, rtol=1e-4, atol=1e-5)


TREES = {
    "nnx": lambda: [
        nnx.state(NnxModel(nnx.Rngs(0)), nnx.Param),
        nnx.as_pure(nnx.state(NnxModel(nnx.Rngs(0)), nnx.Param)),
    ],
    "nnx model": lambda: [nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))],
    "linen": lambda: linen()[1:],
    "haiku": lambda: haiku()[1:],
}


@pytest.mark.parametrize("name", TREES)
def test_names_are_those_of_the_arrays_in_order(name):
    found = [apj.leaves(tree) for tree in TREES[name]()]
    assert all(list(names.items()) == list(found[0].items()) for names in found)
    for tree, names in zip(TREES[name](), found, strict=True):
        assert [leaf.shape for leaf in names.values()] == [array.shape for array in jax.tree.leaves(tree)]
        assert not any("flat index" in text or text.endswith(".value") for text in names)


@jax.tree_util.register_pytree_with_keys_class
class OneKey:
    """A node with two children under one key."""

    def __init__(self, *arrays):
        self.arrays = arrays

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.GetAttrKey("value"), array) for array in self.arrays], None

    @classmethod
    def tree_unflatten(cls, _, arrays):
        return cls(*arrays)


def test_arrays_that_would_share_a_name_are_refused():
    with pytest.raises(ap.InvalidArgument, match="two arrays named"):
        apj.leaves({"a": OneKey(jnp.zeros(2), jnp.zeros(2))})
    several = apj.leaves({"a": {"value": jnp.zeros(1)}, "b": eqx.nn.Linear(1, 1, key=jax.random.key(0))})
    assert list(several) == ["['a']['value']", "['b'].weight", "['b'].bias"]


def test_variables_that_are_not_trained_are_refused():
    with pytest.raises(ap.InvalidArgument, match=r"(?s)at \['dropout'\].*nnx\.state\(model, nnx\.Param\)"):
        apj.leaves(NnxModel(nnx.Rngs(0)))


def test_an_update_without_one_of_the_arrays_is_refused(tmp_path):
    """Equinox leaves None in place of an array that has no gradient."""
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    with run_for(PLAN, tmp_path, model) as run:
        optimizer = chain(run)
        state = optimizer.init(eqx.filter(model, eqx.is_array))
        frozen = eqx.tree_at(lambda m: m.layers[0].weight, eqx.filter(model, eqx.is_array), None)
        with pytest.raises(ap.InvalidArgument, match="The updates have"):
            optimizer.update(frozen, state)


@pytest.mark.parametrize("how", [lambda: apj.add_noise, lambda: __import__("antiphase.jax", fromlist=["add_noise"])])
def test_the_old_name_says_what_is_new(how):
    with pytest.raises(ap.Refused, match=r"(?s)optax\.add_noise.*hint: use antiphase\.jax\.add_correlated_noise"):
        how()
    with pytest.raises(AttributeError):
        apj.something_else  # noqa: B018
