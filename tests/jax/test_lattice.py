"""Lattice noise in JAX: contributions, sums and releases are the exact integers that the proof is about."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import antiphase as ap
import antiphase.jax as apj
from antiphase._run import opening
from antiphase.jax._lattice_sum import is_within
from antiphase.strategies import BLT, BandedInverse, Identity, Stamped, Toeplitz
from tests.jax.plans import departures, flat, is_right, plan_for

SECRET = ap.Secret.insecure(8)
LATTICE = ap.Lattice(exponent=-40, norm=(1 << 39) + 12345, entries=1 << 20)
CLIP = LATTICE.clip_norm


@pytest.fixture(autouse=True)
def x64():
    jax.config.update("jax_enable_x64", True)  # for all threads, as callbacks run in their own
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture(autouse=True)
def one_run_id(monkeypatch):
    monkeypatch.setattr(opening, "fresh_run_id", lambda: "0123456789abcdef" * 2)


def lattice_plan(strategy, parameters, **options):
    plain = plan_for(ap.rounded_strategy(strategy), **options)
    given = plain.mechanism
    lattice = ap.choose_lattice(
        given.strategy, given.participation, given.noise_std, parameters, plain.problem.clip_norm
    )
    mechanism = replace(given, lattice=lattice)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(max(8.0, guarantee.value), 1e-6)
    problem = replace(plain.problem, budget=budget, lattice=True, parameters=parameters)
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def given_gradient(params, *gradient):
    """A loss whose gradient is the example itself, exactly."""
    return sum((p * g).sum() for p, g in zip(params, gradient, strict=True))


def by_hand(gradient, lattice=LATTICE):
    """One contribution in exact rational numbers: truncate S g / max(|g|, S) towards zero."""
    numbers = [float(x) for array in gradient for x in np.asarray(array, np.float64).reshape(-1)]
    if not all(map(math.isfinite, numbers)):
        return [0] * len(numbers)
    units = [Fraction(x) / Fraction(2) ** lattice.exponent for x in numbers]
    square = sum(x * x for x in units)
    if square <= lattice.norm**2:
        return [math.trunc(x) for x in units]
    return [(1 if x > 0 else -1) * math.isqrt(math.floor(x * x * lattice.norm**2 / square)) for x in units]


def integers(tree):
    return [int(x) for leaf in jax.tree.leaves(tree) for x in np.asarray(leaf).reshape(-1)]


def batch_of(dtype):
    """Rows of two arrays, (3, 2) and (4,), of every kind: short, long, tiny, huge, on the limit, and not finite."""
    random = np.random.default_rng(3)
    rows = [scale * random.standard_normal(10) for scale in (0.01, 0.1, 0.3, 1.0, 50.0, 1e30, 1e-30, 1e-13)]
    rows += [np.zeros(10), np.eye(10)[3] * CLIP, np.eye(10)[4] * CLIP * 1.01, np.full(10, CLIP / math.sqrt(10))]
    rows += [np.where(np.arange(10) == 7, bad, 0.1) for bad in (np.nan, np.inf, -np.inf)]
    rows += [np.full(10, jnp.finfo(dtype).max), np.full(10, jnp.finfo(dtype).tiny), random.standard_normal(10) * 0.2]
    table = np.array(rows).astype(dtype)
    return table[:, :6].reshape(-1, 3, 2), table[:, 6:]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16])
def test_contributions_are_those_of_exact_arithmetic(dtype):
    batch, count = batch_of(dtype), len(batch_of(dtype)[0])
    params = (jnp.zeros((3, 2), dtype), jnp.zeros(4, dtype))
    total = jax.jit(apj.clipped_sum(given_gradient, CLIP, lattice=LATTICE))
    for i in range(count):
        found = integers(total(params, batch, np.arange(count) == i))
        wanted = by_hand([array[i] for array in batch])
        assert sum(x * x for x in found) <= LATTICE.norm**2
        is_clipped = sum(x * x for x in wanted) > (0.999 * LATTICE.norm) ** 2
        # The clipping factor of a long gradient is a float64, so that an entry may be one unit shorter.
        assert max(abs(a - b) for a, b in zip(found, wanted, strict=True)) <= (1 if is_clipped else 0), i
    at_once = integers(total(params, batch, np.ones(count, bool)))
    singles = [integers(total(params, batch, np.arange(count) == i)) for i in range(count)]
    assert at_once == [sum(column) for column in zip(*singles, strict=True)]


def model_loss(params, x, y):
    hidden = jnp.tanh(x @ params["a"] + params["b"])
    return ((hidden @ params["c"] - y) ** 2).sum()


def model():
    random = np.random.default_rng(0)
    shapes = {"a": (17, 33), "b": (33,), "c": (33, 5)}
    return {name: jnp.asarray(random.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}


def model_batch(count):
    random = np.random.default_rng(1)
    scale = np.exp(random.uniform(-6, 3, count))[:, None]
    return (scale * random.standard_normal((count, 17))).astype(np.float32), random.standard_normal((count, 5))


def test_neighbours_move_the_sum_by_at_most_the_charged_norm():
    """Without an example, the sum differs by that example's contribution, and by nothing else, whatever the batch."""
    params, (x, y), lattice = model(), model_batch(23), ap.Lattice(-36, 1 << 35, 2000)
    total = jax.jit(apj.clipped_sum(model_loss, lattice.clip_norm, lattice=lattice))
    whole = np.array(integers(total(params, (x, y), np.ones(23, bool))), dtype=object)
    longest = 0
    for i in range(23):
        kept = np.arange(23) != i
        masked = np.array(integers(total(params, (x, y), kept)), dtype=object)
        removed = np.array(integers(total(params, (x[kept], y[kept]), np.ones(22, bool))), dtype=object)
        replaced = x.copy()
        replaced[i] = 1e6
        other = np.array(integers(total(params, (replaced, y), np.ones(23, bool))), dtype=object)
        alone = np.array(integers(total(params, (x[i : i + 1], y[i : i + 1]), np.ones(1, bool))), dtype=object)
        assert (masked == removed).all()
        assert (whole - masked == alone).all()
        assert sum((whole - masked) ** 2) <= lattice.norm**2
        assert sum((whole - other) ** 2) <= 4 * lattice.norm**2
        longest = max(longest, sum((whole - masked) ** 2))
    assert longest > (0.999999 * lattice.norm) ** 2  # the limit is reached, so a smaller charge would be wrong


def test_the_norm_is_checked_in_integers():
    random = np.random.default_rng(2)
    check = jax.jit(lambda a, b: is_within([a, b], LATTICE.norm))
    for _ in range(50):
        values = [random.integers(-LATTICE.norm // 4, LATTICE.norm // 4, 10) for _ in range(2)]
        assert bool(check(*values)) == (sum(int(x) ** 2 for v in values for x in v) <= LATTICE.norm**2)
    # x^2 + y^2 = S^2 + r with the smallest r possible, on both sides of the limit
    for x in (LATTICE.norm // 3, LATTICE.norm // 2 + 77, LATTICE.norm - 1):
        y = math.isqrt(LATTICE.norm**2 - x * x)
        assert bool(check(np.array([x, 0]), np.array([y])))
        assert not bool(check(np.array([x, 0]), np.array([y + 1])))
    for number in (-(1 << 63), (1 << 63) - 1, 1 << 49):
        assert not bool(check(np.array([0, number]), np.array([0])))


def test_without_jit_the_compiler_does_not_know_the_number_of_examples(caplog):
    """A scan of known length may be unrolled. The program, and the bits of a gradient, could depend on the batch."""
    total = apj.clipped_sum(given_gradient, CLIP, lattice=LATTICE)
    with jax.log_compiles():
        sums = total([jnp.zeros(3)], (jnp.ones((4, 3)) / 64,), jnp.array([True, False, True, False]))
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert any("while" in line for line in compiled)
    assert not any("scan" in line for line in compiled)
    assert integers(sums) == [1 << 35] * 3


def test_losses_and_auxiliary_outputs_are_returned():
    params, (x, y) = model(), model_batch(6)
    mask = np.array([True, True, False, True, False, False])

    def loss(params, x, y):
        value = model_loss(params, x, y)
        return value, {"twice": 2 * value}

    total = apj.clipped_sum(loss, CLIP, lattice=LATTICE, has_aux=True)
    _, each = jax.jit(total)(params, (x, y), mask)
    plain = jax.vmap(model_loss, (None, 0, 0))(params, x, y)
    np.testing.assert_allclose(each.losses, np.where(mask, plain, 0.0), rtol=1e-5)
    np.testing.assert_allclose(each.aux["twice"], 2 * np.where(mask, plain, 0.0), rtol=1e-5)
    sums = apj.clipped_sum(model_loss, CLIP, lattice=LATTICE)(params, (x[:0], y[:0]), np.ones(0, bool))
    assert not any(integers(sums))


STRATEGIES = [
    Identity(6),
    Toeplitz([1.0, 0.5, 0.25], 6),
    BLT([0.9, 0.5], [0.3, 0.2], 6),
    BandedInverse.square_root(3, 6),
    Stamped(Toeplitz([1.0, 0.5], 3), 2),
]


@pytest.mark.parametrize(("strategy", "sharded"), [*((s, False) for s in STRATEGIES), (STRATEGIES[2], True)])
def test_releases_are_integer_sums_plus_the_integers_of_the_noise_stream(tmp_path, strategy, sharded):
    params = {"w": jnp.zeros((8, 6), jnp.float64), "s": jnp.zeros((), jnp.float64)}
    plan = lattice_plan(strategy, 49)
    lattice, shardings = plan.mechanism.lattice, None
    if sharded:
        mesh = jax.make_mesh((2, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
        specs = {"w": P("rows", "columns"), "s": P()}
        shardings = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
        params = jax.device_put(params, shardings)
    random, total = np.random.default_rng(0), [0] * 49

    def loss(params, w, s):
        return given_gradient((params["w"], params["s"]), w, s)

    sums_of = jax.jit(apj.clipped_sum(loss, plan.problem.clip_norm, lattice=lattice))
    with ap.Run.open(plan, tmp_path, leaves=apj.leaves(params), secret=SECRET) as run:
        optimizer = apj.add_correlated_noise(run, shardings=shardings)
        update, state = jax.jit(optimizer.update), optimizer.init(params)
        stream = ap.NoiseStream(plan, apj.leaves(params), SECRET, run.run_id)
        for _ in range(plan.steps):
            batch = (random.standard_normal((5, 8, 6)) * 0.05, random.standard_normal(5) * 0.05)
            updates, state = update(sums_of(params, batch, np.ones(5, bool)), state, params)
            parts = [by_hand([batch[1][i], batch[0][i]], lattice) for i in range(5)]
            total = [sum(column) + n for *column, n in zip(*parts, integers(stream.next()), strict=True)]
            # float64 holds these integers exactly; clipped entries may be a unit shorter, as above
            found = [x / lattice.grid for x in flat(updates)]
            assert max(abs(a - b) for a, b in zip(found, total, strict=True)) <= 5
            assert all(x == int(x) for x in found)
            apj.commit(run, state, params)
        assert run.report().guarantee.value <= plan.guarantee.value


def noise_of(plan, directory, params):
    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.int64), params)
    rows = []
    with ap.Run.open(plan, directory, leaves=apj.leaves(params), secret=SECRET) as run:
        optimizer = apj.add_correlated_noise(run)
        update, state = jax.jit(optimizer.update), optimizer.init(params)
        for _ in range(plan.steps):
            updates, state = update(zeros, state)
            assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(updates))
            rows.append(flat(updates))
            apj.commit(run, state, updates)
    return np.stack(rows)


def test_the_noise_has_the_covariance_of_the_plan(tmp_path):
    params = {"w": jnp.zeros((40, 40), jnp.float32), "b": jnp.zeros(40, jnp.float32)}
    plan = lattice_plan(BLT.from_decays([0.999, 0.9, 0.4], [0.99, 0.6, 0.1], 500), 1640)
    noise = noise_of(plan, tmp_path, params)
    assert is_right(noise, plan), departures(noise, plan)
    assert not is_right(0.99 * noise, plan)
    assert not is_right(1.01 * noise, plan)


def trained(plan, directory, stop, saved=None):
    params, (x, y) = model(), model_batch(12)
    lattice = plan.mechanism.lattice
    sums_of = apj.clipped_sum(model_loss, plan.problem.clip_norm, lattice=lattice)
    with ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=12, secret=SECRET) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run), optax.scale(1 / 4), optax.sgd(0.1))
        state = optimizer.init(params)
        if saved is not None and saved.exists():
            params, state = apj.load(saved, (params, state), run)

        @jax.jit
        def step(params, state, batch, mask):
            updates, state = optimizer.update(sums_of(params, batch, mask), state, params)
            return optax.apply_updates(params, updates), state

        for batch in apj.batches(run, (x, y), multiple=4):
            if batch.step == stop:
                break
            params, state = step(params, state, batch.data, batch.mask)
            apj.commit(run, state, params, batch.indices)
        if saved is not None:
            apj.save(saved, (params, state), run)
        return params, apj.report(run, state)


def test_a_resumed_training_has_the_same_bits(tmp_path):
    plan = lattice_plan(Toeplitz([1.0, 0.5], 6), 771, participation=ap.FixedEpochs(2, 3))
    whole, report = trained(plan, tmp_path / "whole", None)
    trained(plan, tmp_path / "parts", 3, tmp_path / "saved")
    parts, _ = trained(plan, tmp_path / "parts", None, tmp_path / "saved")
    assert flat(whole).tobytes() == flat(parts).tobytes()
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(whole))
    assert report.guarantee.value <= plan.guarantee.value
    assert json.loads((tmp_path / "whole" / "run.json").read_text())["dtype"] == "int64"


PARAMS = {"w": jnp.zeros(3, jnp.float32)}


def sums(count=1):
    return {"w": jnp.arange(3, dtype=jnp.int64) + count}


def test_a_refused_step_reveals_nothing(tmp_path):
    """With several devices, errors are deferred: the output is NaN, not the sum without noise."""
    plan = lattice_plan(Identity(4), 3)
    with ap.Run.open(plan, tmp_path, leaves=apj.leaves(PARAMS), secret=SECRET) as run:
        optimizer = apj.add_correlated_noise(run)
        update = jax.jit(optimizer.update)
        _, ahead = update(sums(), optimizer.init(PARAMS), PARAMS)
        updates, state = update(sums(), ahead, PARAMS)  # the step before is not committed
        assert np.isnan(flat(updates)).all()
        with pytest.raises(ap.Refused, match="step"):
            apj.commit(run, state, PARAMS)
        with pytest.raises(ap.Refused, match="step"):
            optimizer.update(sums(), ahead, PARAMS)


def test_what_is_not_exact_is_refused(tmp_path):
    plan = lattice_plan(Identity(4), 3)
    lattice, clip = plan.mechanism.lattice, plan.problem.clip_norm
    with ap.Run.open(plan, tmp_path, leaves=apj.leaves(PARAMS), secret=SECRET) as run:
        with pytest.raises(ap.Refused, match="made on the host"):
            apj.add_correlated_noise(run, "device")
        optimizer = apj.add_correlated_noise(run)
        state = optimizer.init(PARAMS)
        for kind in (jnp.float32, jnp.float64, jnp.int32):
            with pytest.raises(ap.Refused, match="exact sums in int64"):
                optimizer.update({"w": jnp.ones(3, kind)}, state, PARAMS)
        with pytest.raises(ap.InvalidArgument, match="makes noise for"):
            optimizer.update({"w": jnp.ones(4, jnp.int64)}, state, PARAMS)
        with pytest.raises(ap.Refused, match=r"jax\.vmap"):
            jax.vmap(lambda s: optimizer.update(s, state)[0])({"w": jnp.ones((2, 3), jnp.int64)})
        for kind in (jnp.float32, jnp.int64):
            several = optax.MultiSteps(optimizer, 2, use_grad_mean=False, accumulator_dtype=kind)
            held = several.init(PARAMS)
            for _ in range(2):
                _, held = several.update(sums(), held, PARAMS)
            with pytest.raises(ap.Refused, match="MultiSteps"):
                apj.commit(run, held, PARAMS)
        made = sums()
        with jax.enable_x64(False), pytest.raises(ap.Refused, match="64-bit"):
            optimizer.update(made, state, PARAMS)
        with jax.enable_x64(False), pytest.raises(ap.Refused, match="64-bit"):
            apj.add_correlated_noise(run)
    with jax.enable_x64(False), pytest.raises(ap.Refused, match="64-bit"):
        apj.clipped_sum(given_gradient, clip, lattice=lattice)
    with pytest.raises(ap.InvalidArgument, match="microbatch"):
        apj.clipped_sum(given_gradient, clip, lattice=lattice, microbatch=4)
    for wrong in (0.9 * clip, 1.1 * clip):
        with pytest.raises(ap.InvalidArgument, match="the lattice's clipping norm"):
            apj.clipped_sum(given_gradient, wrong, lattice=lattice)
    with pytest.raises(ap.InvalidArgument, match="a Lattice or None"):
        apj.clipped_sum(given_gradient, clip, lattice=True)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sums_on_several_devices_are_exact_or_refused(kind):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    params, (x, y) = model(), model_batch(8)
    total = apj.clipped_sum(model_loss, CLIP, lattice=LATTICE)
    placed = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    mask = jax.device_put(jnp.ones(8, bool), NamedSharding(mesh, P("data")))
    if kind == AxisType.Auto:
        found = integers(jax.jit(total)(params, placed, mask))
        alone = integers(jax.jit(total)(params, (x, y), np.ones(8, bool)))
        assert max(abs(a - b) for a, b in zip(found, alone, strict=True)) < 1e-5 * LATTICE.norm
        return
    with jax.set_mesh(mesh), pytest.raises(ap.Refused, match="explicit"):
        jax.jit(total)(params, placed, mask)
    for check_vma in (True, False):
        local = jax.shard_map(
            total, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(), check_vma=check_vma
        )
        with jax.set_mesh(mesh), pytest.raises(ap.Refused, match="shard_map"):
            local(params, placed, mask)


def test_keras_refuses_a_lattice(tmp_path):
    keras = pytest.importorskip("keras")
    from antiphase.jax.keras import make_private

    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    network.compile(optimizer="sgd", loss="mse")
    with pytest.raises(ap.Refused, match="Keras"):
        make_private(network, lattice_plan(Identity(4), 4), tmp_path, examples=8)
