"""The sum of clipped gradients against NumPy, one example at a time, and what an example can do to it at most."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.jax._clip import ROUNDING_MARGIN
from antiphase.jax._example_keys import typed

RNG = np.random.default_rng(0)
PARAMS = {"w": jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32), "b": jnp.asarray(RNG.normal(size=2), jnp.float32)}
X, Y = RNG.normal(size=(12, 3)).astype(np.float32), RNG.normal(size=(12, 2)).astype(np.float32)
MASK = RNG.random(12) < 0.7


def loss(params, x, y):
    return jnp.square(jnp.tanh(x @ params["w"] + params["b"]) - y).sum()


def by_hand(x, y, mask, norm):
    total = {name: np.zeros(p.shape) for name, p in PARAMS.items()}
    for xi, yi in zip(x[mask], y[mask], strict=True):
        out = np.tanh(xi @ np.asarray(PARAMS["w"]) + np.asarray(PARAMS["b"]))
        back = 2 * (out - yi) * (1 - out**2)
        gradient = {"w": np.outer(xi, back), "b": back}
        length = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        for name, g in gradient.items():
            total[name] += g * min(1.0, norm / length)
    return total


@pytest.mark.parametrize(("norm", "microbatch"), [(0.01, None), (1.0, None), (100.0, 4), (1.0, 4), (1.0, 1), (1.0, 64)])
def test_the_sum_is_that_of_examples_clipped_one_by_one(norm, microbatch):
    total = jax.jit(apj.clipped_sum(loss, norm, microbatch=microbatch))(PARAMS, (X, Y), MASK)
    for name, wanted in by_hand(X, Y, MASK, norm * (1 - ROUNDING_MARGIN)).items():
        np.testing.assert_allclose(total[name], wanted, rtol=2e-5, atol=1e-6)


def linear(params, x, y):
    return (x @ params["w"]).sum() * 1e6


@pytest.mark.parametrize("function", [loss, linear])
def test_no_example_moves_the_sum_by_more_than_the_norm(function):
    """Whatever it holds: were its gradient not finite, the sum would show that it took part."""
    total = jax.jit(apj.clipped_sum(function, 1.0))
    without, with_it, bad = MASK.copy(), MASK.copy(), X.copy()
    without[0], with_it[0] = False, True
    for poison in (1e-30, 1e30, 1e38, np.inf, -np.inf, np.nan):
        bad[0] = poison
        a, b = total(PARAMS, (bad, Y), with_it), total(PARAMS, (bad, Y), without)
        assert length(jax.tree.map(np.subtract, a, b)) <= 1.0 + 1e-5


@cache
def total_of_linear(norm):
    """Its gradients are its examples."""
    return jax.jit(apj.clipped_sum(lambda w, x: (w * x).sum(), norm))


def alone(gradient, norm):
    """What one example with this gradient adds, by its norm in float64."""
    return length(total_of_linear(norm)(jnp.ones_like(gradient), (gradient[None],), np.ones(1, bool)))


@pytest.mark.parametrize("norm", [1e-30, 1e-25, 1e-21, 1e-10, 0.3, 1e10, 1e25, 1e30])
def test_one_example_alone_has_at_most_the_norm(norm):
    """Without any excess, over all of float32: squares of small numbers vanish in it, those of large ones overflow."""
    direction = np.random.default_rng(1).normal(size=50)
    for scale in (1e-42, 1e-38, *np.logspace(-37, 36, 74), 1e38):
        assert alone((scale * direction).astype(np.float32), norm) <= norm
    for times in (1.001, 2.0, 1e4):  # and no less than the norm, where it is cut
        made = alone((times * norm * direction / np.linalg.norm(direction)).astype(np.float32), norm)
        assert (1 - 2e-5) * norm <= made <= norm


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("norm", [1e-30, 1e-6, 0.3, 1e4])
def test_half_precision_has_at_most_the_norm(dtype, norm):
    limits, direction = jnp.finfo(dtype), np.random.default_rng(2).normal(size=50)
    for scale in (limits.smallest_subnormal, limits.tiny, limits.eps, 1.0, limits.max / 100, limits.max, np.inf):
        with np.errstate(over="ignore"):
            gradient = jnp.asarray((float(scale) * direction).astype(np.float32)).astype(dtype)
        assert alone(gradient, norm) <= norm


def test_small_numbers_are_not_swallowed_by_a_large_one():
    """Each square is below the rounding of 1, together they are a hundredth of it."""
    gradient = np.full(1 << 19, 1.5e-4, np.float32)
    gradient[0] = 1.0
    assert (1 - 2e-5) * 0.3 <= alone(gradient, 0.3) <= 0.3


def test_an_example_of_zeros_adds_nothing():
    assert alone(np.zeros(3, np.float32), 0.3) == 0.0


def length(tree):
    return np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree)))


def test_an_empty_batch_gives_zero():
    total = jax.jit(apj.clipped_sum(loss, 1.0))
    for x, y, mask in ((X[:0], Y[:0], np.zeros(0, bool)), (X, Y, np.zeros(12, bool))):
        assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(total(PARAMS, (x, y), mask)))


def test_half_precision_is_summed_in_single():
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
    total = jax.jit(apj.clipped_sum(lambda p, x: (p["w"] * x).sum() + p["b"].sum() * 0, 100.0))
    made = total(half, (jnp.ones(600, jnp.bfloat16),), np.ones(600, bool))
    assert made["w"].dtype == jnp.float32
    assert np.array_equal(made["w"], np.full((3, 2), 600.0))


def test_a_microbatch_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ap.InvalidArgument, match="divisor of the batch size, 12"):
        apj.clipped_sum(loss, 1.0, microbatch=5)(PARAMS, (X, Y), MASK)


@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan, np.inf, 1e-31, 1e-300, 1e31])
def test_a_norm_that_is_none_is_refused(norm):
    with pytest.raises(ap.InvalidArgument, match="clip_norm"):
        apj.clipped_sum(loss, norm)


@pytest.mark.parametrize("mask", [True, np.ones((12, 1), bool)])
def test_a_mask_of_another_shape_is_refused(mask):
    with pytest.raises(ap.InvalidArgument, match="one flag per example"):
        apj.clipped_sum(loss, 1.0)(PARAMS, (X, Y), mask)


@pytest.mark.parametrize("microbatch", [None, 4])
@pytest.mark.parametrize("flags", [4, 8])
def test_a_mask_of_another_length_is_an_error(microbatch, flags):
    with pytest.raises(ap.InvalidArgument, match=rf"{flags} examples along axis 0"):
        apj.clipped_sum(loss, 1.0, microbatch=microbatch)(PARAMS, (X, Y), np.ones(flags, bool))


def test_a_norm_over_many_leaves_is_not_too_small():
    """Each leaf adds just under half a unit in the last place of the sum, and float32 loses all of them."""
    leaves, small = 1000, 2.0**-12.05
    total = apj.clipped_sum(lambda p, x: sum(a * b for a, b in zip(p, x, strict=True)), 0.5)
    x = [np.full(1, 3 * small, np.float32) for _ in range(leaves)]
    x[0][:] = 3
    found = total([jnp.zeros(()) for _ in range(leaves)], (x,), np.ones(1, bool))
    assert np.sqrt(sum(float(value) ** 2 for value in found)) <= 0.5


SIZES = [(None, 12), (4, 12), (1, 12), (None, 1100), (100, 1100), (600, 1200)]


def many(examples):
    rng = np.random.default_rng(examples)
    return rng.normal(size=(examples, 3)).astype(np.float32), rng.normal(size=(examples, 2)).astype(np.float32)


@pytest.mark.parametrize(("microbatch", "examples"), SIZES)
@pytest.mark.parametrize("has_aux", [False, True])
def test_losses_and_aux_are_those_of_each_example_in_order(microbatch, examples, has_aux):
    x, y = many(examples)
    mask = np.random.default_rng(1).random(examples) < 0.7

    def with_aux(params, x, y):
        return loss(params, x, y), {"out": jnp.tanh(x @ params["w"]), "first": x[0].astype(jnp.bfloat16)}

    function = with_aux if has_aux else loss
    total = apj.clipped_sum(function, 1.0, microbatch=microbatch, has_aux=has_aux, return_losses=True)
    sums, each = jax.jit(total)(PARAMS, (x, y), mask)
    w, b = np.asarray(PARAMS["w"]), np.asarray(PARAMS["b"])
    losses = [used * np.square(np.tanh(xi @ w + b) - yi).sum() for xi, yi, used in zip(x, y, mask, strict=True)]
    np.testing.assert_allclose(each.losses, losses, rtol=1e-4, atol=1e-6)
    if has_aux:
        np.testing.assert_allclose(each.aux["out"], np.tanh(x @ w) * mask[:, None], rtol=1e-4, atol=1e-6)
        assert each.aux["first"].dtype == jnp.bfloat16
        assert np.array_equal(each.aux["first"] != 0, mask & (x[:, 0] != 0))
    else:
        assert each.aux is None
    for name, wanted in by_hand(x, y, mask, 1 - ROUNDING_MARGIN).items():
        np.testing.assert_allclose(sums[name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("examples", [9, 513, 1026])
def test_examples_may_have_random_keys(examples, microbatch):
    """Such as for dropout. The batch is cut into blocks, which need not divide it."""
    keys, w = typed(np.random.default_rng(1).integers(0, 2**32, (examples, 2), np.uint32)), jnp.ones(4)
    mask = np.arange(examples) % 3 > 0

    def loss(w, key):
        return (w * jax.random.bernoulli(key, 0.5, (4,))).sum()

    found = jax.jit(apj.clipped_sum(loss, 1.0, microbatch=microbatch))(w, (keys,), mask)
    kept = np.asarray(jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (4,)))(keys), np.float64)[mask]
    clipped = kept / np.maximum(1.0, np.linalg.norm(kept, axis=1, keepdims=True))
    np.testing.assert_allclose(found, clipped.sum(0), rtol=1e-4)


def test_an_empty_batch_has_values_of_nobody():
    total = apj.clipped_sum(lambda p, x, y: (loss(p, x, y), x), 1.0, has_aux=True)
    sums, each = total(PARAMS, (X[:0], Y[:0]), np.zeros(0, bool))
    assert (each.losses.shape, each.aux.shape) == ((0,), (0, 3))
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(sums))


@pytest.mark.parametrize("microbatch", [None, 4])
def test_examples_along_other_axes_and_arrays_for_all(microbatch):
    def weighted(params, batch, weights):
        return loss(params, batch["x"], batch["y"]) * weights.sum()

    weights = np.array([0.5, 1.5], np.float32)
    axes = ({"x": 1, "y": -1}, None)
    total = apj.clipped_sum(weighted, 1.0, microbatch=microbatch, batch_axis=axes)
    made = jax.jit(total)(PARAMS, ({"x": X.T, "y": Y.T}, weights), MASK)
    for name, wanted in by_hand(X, Y, MASK, (1 - ROUNDING_MARGIN) / 2).items():
        np.testing.assert_allclose(made[name], 2 * wanted, rtol=2e-5, atol=1e-6)
    whole = apj.clipped_sum(loss, 1.0, batch_axis=1)(PARAMS, (X.T, Y.T), MASK)
    for name, wanted in by_hand(X, Y, MASK, 1 - ROUNDING_MARGIN).items():
        np.testing.assert_allclose(whole[name], wanted, rtol=2e-5, atol=1e-6)


def test_a_loss_for_batches_is_given_batches_of_one():
    shapes = []

    def batch_loss(params, x, y):
        shapes.append((x.shape, y.shape))
        return jax.vmap(loss, (None, 0, 0))(params, x, y).mean()

    made = apj.clipped_sum(batch_loss, 1.0, keep_batch_axis=True)(PARAMS, (X, Y), MASK)
    assert set(shapes) == {((1, 3), (1, 2))}
    for name, wanted in by_hand(X, Y, MASK, 1 - ROUNDING_MARGIN).items():
        np.testing.assert_allclose(made[name], wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("axis", ["0", None, (0,), (0, 0, 0), (0, "1"), (0, {"a": 0}), 0.0, True, (None, None)])
def test_an_axis_that_is_none_is_refused(axis):
    with pytest.raises(ap.InvalidArgument, match="batch_axis"):
        apj.clipped_sum(loss, 1.0, batch_axis=axis)(PARAMS, (X, Y), MASK)


@pytest.mark.parametrize("axis", [1, 2, -3])
def test_an_axis_without_the_examples_is_refused(axis):
    with pytest.raises(ap.InvalidArgument, match=f"12 examples along axis {axis}"):
        apj.clipped_sum(loss, 1.0, batch_axis=axis)(PARAMS, (X, Y), MASK)


def test_a_batch_that_is_no_tuple_is_refused():
    with pytest.raises(ap.InvalidArgument, match="a tuple"):
        apj.clipped_sum(lambda p, x: (p["w"].sum() * x).sum(), 1.0)(PARAMS, X, MASK)


@pytest.mark.parametrize("microbatch", [1, 4, None])
def test_one_example_does_not_steer_the_rounding_of_others(microbatch):
    """With it, the sum is just above a power of two, and all later examples are rounded up; without it, down.

    Added one after another in float32, they change by 1.98 times the clipping norm. Reference: Casacuberta et al. 2022,
    "Widespread underestimation of sensitivity in differentially private libraries".
    """
    total = jax.jit(apj.clipped_sum(lambda w, x: (w * x).sum(), 1.0, microbatch=microbatch))
    each = microbatch or 1
    small = 1.2 * 2.0**-12 * (np.arange(4000) % each == 0)  # one in each microbatch

    def sum_of(lengths, used):
        rows = np.asarray(lengths, np.float32)[:, None] * np.full(4, 0.5, np.float32)
        return np.asarray(total(jnp.zeros(4), (rows,), used), np.float64)

    clipped = np.full(4096, 1e3)
    to_4096 = 4096.02 - np.linalg.norm(sum_of(clipped, np.ones(4096, bool)))
    lengths = np.concatenate([clipped, [to_4096, 0.0, 0.0, 0.0], small])
    used = np.ones(len(lengths), bool)
    with_it = sum_of(lengths, used)
    used[0] = False
    assert 0.99 <= np.linalg.norm(with_it - sum_of(lengths, used)) <= 1 + 2e-3


def test_a_sum_of_many_blocks_is_as_exact_as_one_in_double_precision():
    x = np.random.default_rng(3).normal(size=(20_000, 5)).astype(np.float32)
    total = jax.jit(apj.clipped_sum(lambda w, x: (w * x).sum(), 1e4, microbatch=2))
    made, wanted = total(jnp.zeros(5), (x,), np.ones(len(x), bool)), x.astype(np.float64).sum(0)
    assert np.abs(made - wanted).max() <= np.abs(wanted).max() * 2.0**-22
