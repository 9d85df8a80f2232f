"""Random keys of examples: they come from the secret, belong to examples and not to rows, and others are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import antiphase as ap
import antiphase.jax as apj
from antiphase._run import opening
from antiphase.jax import _clip
from antiphase.jax._example_keys import typed
from tests.jax.plans import run_for
from tests.jax.training import EXAMPLES, PARAMS, X, Y, open_run, plan

CLIP, HIDDEN, ROWS = 0.5, 16, 300
RNG = np.random.default_rng(3)
IMAGES = RNG.normal(size=(ROWS, 8)).astype(np.float32) * 10
WEIGHTS = {"a": RNG.normal(size=(8, HIDDEN)).astype(np.float32), "b": RNG.normal(size=HIDDEN).astype(np.float32)}


def words(key):
    return np.asarray(jax.random.key_data(key))


def with_dropout(params, x, key):
    kept = jax.random.bernoulli(key, 0.5, (HIDDEN,))
    return jnp.square(jnp.where(kept, jnp.tanh(x @ params["a"]), 0.0) @ params["b"])


def change(keys_of, left_out):
    """How much the sum changes, in clipping norms, if one example is left out: keys_of(indices) makes the keys."""
    total = jax.jit(apj.clipped_sum(with_dropout, CLIP))

    def vector(indices):
        sums = total(WEIGHTS, (IMAGES[indices], keys_of(indices)), np.ones(len(indices), bool))
        return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(sums)])

    everybody = np.arange(ROWS)
    return np.linalg.norm(vector(everybody) - vector(np.delete(everybody, left_out))) / CLIP


@pytest.mark.parametrize("left_out", [0, 100, ROWS - 1])
def test_leaving_out_an_example_changes_nothing_but_its_own_term(tmp_path, left_out):
    with open_run(tmp_path) as run:
        assert change(lambda indices: apj.example_keys(run, 2, indices), left_out) <= 1.0


def test_keys_by_row_would_change_many_terms(monkeypatch):
    """The attack that the test above would detect, and that `clipped_sum` refuses."""

    def by_row(indices):
        return jax.random.split(jax.random.key(0), len(indices))

    with pytest.raises(ap.Refused, match="random keys that do not come from the run"):
        change(by_row, 0)
    monkeypatch.setattr(_clip, "check_keys", lambda arrays: None)
    assert change(by_row, 0) > 5.0
    assert change(lambda indices: jax.random.split(jax.random.PRNGKey(0), len(indices)), 0) > 5.0


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_raw_keys_are_refused_too(impl, axis):
    keys = jnp.moveaxis(jax.random.key_data(jax.random.split(jax.random.key(0, impl=impl), 5)), 0, axis)
    total = apj.clipped_sum(lambda w, key: (w * key.astype(float)).sum(), 1.0, batch_axis=axis)
    for call in (total, jax.jit(total)):
        with pytest.raises(ap.Refused, match="looks like random keys"):
            call(jnp.ones(()), (keys,), np.ones(5, bool))


def test_several_raw_keys_for_each_example_are_refused_too():
    """Such as one for dropout and one for augmentation."""
    keys = jax.random.split(jax.random.PRNGKey(0), (5, 3))
    total = apj.clipped_sum(lambda w, keys: (w * keys[0].astype(float)).sum(), 1.0)
    with pytest.raises(ap.Refused, match="looks like random keys"):
        total(jnp.ones(()), (keys,), np.ones(5, bool))


def test_a_key_that_all_examples_share_is_not_refused():
    """It belongs to no row: leaving out an example does not change the random numbers of the others."""
    total = apj.clipped_sum(with_dropout, CLIP, batch_axis=(0, None))
    total(WEIGHTS, (IMAGES, jax.random.key(0)), np.ones(ROWS, bool))


def test_keys_depend_on_the_secret_the_run_the_step_and_the_example_alone(tmp_path, monkeypatch):
    indices = np.array([7, 3, 3, 59, 0])
    with open_run(tmp_path / "a") as run:
        first = words(apj.example_keys(run, 0, indices))
        assert np.array_equal(first[1], first[2])
        assert len(np.unique(first, axis=0)) == 4
        assert np.array_equal(words(apj.example_keys(run, 0, indices[::-1])), first[::-1])
        assert np.array_equal(words(apj.example_keys(run, 0, [59])), first[3:4])
        assert not np.isin(words(apj.example_keys(run, 1, indices)), first).any()
        run_id = run.run_id
    with open_run(tmp_path / "a") as run:  # resumed
        assert np.array_equal(words(apj.example_keys(run, 0, indices)), first)
    with open_run(tmp_path / "b") as run:
        assert not np.isin(words(apj.example_keys(run, 0, indices)), first).any()
    monkeypatch.setattr(opening, "fresh_run_id", lambda: run_id)
    with run_for(plan(), tmp_path / "c", PARAMS, examples=EXAMPLES, secret=ap.Secret.insecure(9)) as run:
        assert not np.isin(words(apj.example_keys(run, 0, indices)), first).any()


def test_bits_of_keys_are_balanced(tmp_path):
    """Each of the 64 bits is set in half of 20,000 keys, within five standard deviations."""
    with open_run(tmp_path) as run:
        found = words(apj.example_keys(run, 0, np.arange(20_000)))
    bits = np.unpackbits(found.astype("<u4").view(np.uint8), axis=1)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_batches_have_the_keys_of_their_examples(tmp_path, is_sharded):
    mesh = jax.make_mesh((4,), ("data",))
    sharding = NamedSharding(mesh, P("data")) if is_sharded else None
    params = jax.device_put(PARAMS, NamedSharding(mesh, P())) if is_sharded else PARAMS
    total = jax.jit(apj.clipped_sum(lambda p, x, y, key: (p["w"] * jax.random.normal(key, (4, 2))).sum(), CLIP))
    with open_run(tmp_path) as run:
        for batch in apj.batches(run, (X, Y), multiple=32, sharding=sharding):
            wanted = words(apj.example_keys(run, batch.step, batch.indices))
            assert np.array_equal(words(batch.keys)[np.asarray(batch.mask)], wanted)
            sums = total(params, (*batch.data, batch.keys), batch.mask)
            each = [np.asarray(jax.random.normal(typed(key), (4, 2)), np.float64) for key in wanted]
            by_hand = sum((g * min(1.0, CLIP / np.linalg.norm(g)) for g in each), np.zeros((4, 2)))
            np.testing.assert_allclose(sums["w"], by_hand, rtol=1e-3, atol=1e-4)


def test_keys_work_on_a_lattice():
    """A contribution is the same integers, whatever else is in the batch."""
    lattice = ap.Lattice(exponent=-30, norm=1 << 29, entries=1 << 20)
    keys = typed(np.arange(10, dtype=np.uint32).reshape(5, 2))
    with jax.enable_x64(True):
        params = jax.tree.map(jnp.asarray, WEIGHTS)
        total = jax.jit(apj.clipped_sum(with_dropout, CLIP, lattice=lattice))
        whole = total(params, (IMAGES[:5], keys), np.ones(5, bool))
        without = total(params, (IMAGES[1:5], keys[1:]), np.ones(4, bool))
        alone = total(params, (IMAGES[:1], keys[:1]), np.ones(1, bool))
    for name in WEIGHTS:
        assert np.array_equal(whole[name], without[name] + alone[name])
        assert np.any(alone[name])


def test_the_generator_is_that_of_jax():
    """Only its type differs: the same bits give the same numbers, also after split and fold_in."""
    bits = np.array([12, 34], np.uint32)
    ours, theirs = typed(bits), jax.random.wrap_key_data(bits, impl="threefry2x32")
    for change_key in (lambda k: k, lambda k: jax.random.split(k, 3)[1], lambda k: jax.random.fold_in(k, 5)):
        one, other = (jax.random.normal(change_key(key), (5,)) for key in (ours, theirs))
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("library", ["linen", "nnx", "haiku", "equinox"])
def test_model_libraries_take_the_keys(tmp_path, library):
    """Dropout in each library, for one example: two keys give two masks, and one key always the same."""
    with open_run(tmp_path) as run:
        keys = apj.example_keys(run, 0, [4, 5])
    ones = jnp.ones(64)
    if library == "equinox":
        eqx = pytest.importorskip("equinox")
        dropped = lambda key: eqx.nn.Dropout(0.5)(ones, key=key)  # noqa: E731
    elif library == "haiku":
        hk = pytest.importorskip("haiku")
        net = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, x))
        dropped = lambda key: net.apply({}, key, ones)  # noqa: E731
    elif library == "linen":
        nn = pytest.importorskip("flax.linen")
        dropped = lambda key: nn.Dropout(0.5, deterministic=False).apply({}, ones, rngs={"dropout": key})  # noqa: E731
    else:
        nnx = pytest.importorskip("flax.nnx")
        dropped = lambda key: nnx.Dropout(0.5)(ones, deterministic=False, rngs=nnx.Rngs(dropout=key))  # noqa: E731
    one, other = np.asarray(jax.jit(jax.vmap(dropped))(keys))
    assert 10 < np.count_nonzero(one) < 54
    assert not np.array_equal(one, other)
    assert np.array_equal(one, dropped(keys[0]))


@pytest.mark.parametrize("step", [-1, 12, True, 1.0])
def test_steps_that_the_run_does_not_have_are_refused(tmp_path, step):
    with open_run(tmp_path) as run, pytest.raises(ap.InvalidArgument, match="step"):
        apj.example_keys(run, step, [0])


@pytest.mark.parametrize("indices", [[-1], [0.5], [[0]], [True]])
def test_indices_that_are_none_are_refused(tmp_path, indices):
    with open_run(tmp_path) as run, pytest.raises(ap.InvalidArgument, match="indices"):
        apj.example_keys(run, 0, indices)
