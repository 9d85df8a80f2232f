"""The ledger and the report say what ran; what does not fit the run is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase._run import set_noise_source
from antiphase._samplers import Batch
from antiphase.strategies import Fourier, Toeplitz
from tests.jax.plans import check_refused, flat, plan_for, run_for
from tests.jax.training import EXAMPLES, PARAMS, STEPS, X, Y, open_run, optimizer_for, plan, train


@pytest.mark.parametrize("source", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_a_whole_run_is_reported_with_the_epsilon_of_its_plan(tmp_path, source):
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run, source)
        _, state = train(run, optimizer, PARAMS, optimizer.init(PARAMS))
        run.publish("model")
        report = apj.report(run, state)
    assert report.steps_run == STEPS
    assert report.guarantee.value == plan().guarantee.value
    assert any("not made by AES" in remark for remark in report.remarks) == (source == "device")


def test_a_run_stopped_early_says_so(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run)
        _, state = train(run, optimizer, PARAMS, optimizer.init(PARAMS), stop=5)
        report = apj.report(run, state)
    assert report.steps_run == 5
    assert report.guarantee.value < plan().guarantee.value
    assert any("Stopped after 5 of 12" in remark for remark in report.remarks)


def test_other_examples_than_those_of_the_plan_are_refused(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run)
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS)
        own = run.batch(0).indices
        for wrong in (own[:-1], np.arange(10), [*own, (own[-1] + 1) % EXAMPLES]):
            with pytest.raises(ap.Refused, match="not the run's own batch"):
                apj.commit(run, state, PARAMS, wrong)
        with pytest.raises(ap.Refused, match="without the indices of the examples"):
            apj.commit(run, state, PARAMS)
        assert run.committed == 0
        apj.commit(run, state, PARAMS, own[::-1])
        assert run.committed == 1
        assert not any("word of the program" in remark for remark in apj.report(run, state).remarks)


def test_batches_that_the_run_did_not_make_are_the_word_of_the_program(tmp_path):
    with run_for(plan_for(Toeplitz([1.0, 0.5], 3)), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run)
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
        with pytest.raises(ap.Refused, match="cannot check which examples"):
            apj.commit(run, state, PARAMS, [1, 2])
        apj.commit(run, state, PARAMS)
        assert any("drew no batches" in remark for remark in apj.report(run, state).remarks)


def test_a_step_without_noise_cannot_be_committed(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run)
        state = optimizer.init(PARAMS)
        with pytest.raises(ap.Refused, match="no noise has been added"):
            apj.commit(run, state, PARAMS, [])
        with pytest.raises(ap.InvalidArgument, match="has 0 noise states"):
            apj.commit(run, optax.adam(0.1).init(PARAMS), PARAMS)
        forged = state[0]._replace(step=jnp.int32(1))
        with pytest.raises(ap.Refused, match="noise has not been read"):
            apj.commit(run, forged, PARAMS, run.batch(0).indices)


def test_the_state_of_another_run_is_refused(tmp_path):
    with open_run(tmp_path / "a") as one, open_run(tmp_path / "b") as two:
        state = apj.add_correlated_noise(one).init(PARAMS)
        check_refused(two, apj.add_correlated_noise(two).update, (PARAMS, state), "belongs to another run")
        with pytest.raises(ap.Refused, match="belongs to another run"):
            apj.commit(two, state._replace(step=jnp.int32(1)), PARAMS)


@pytest.mark.parametrize("source", ["host", "device"])
def test_a_step_ahead_of_the_ledger_is_refused(tmp_path, source):
    """Where steps went unrecorded, the report would promise too much."""
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, source)
        updates, state = jax.jit(optimizer.update)(PARAMS, optimizer.init(PARAMS))
        assert np.isfinite(flat(updates)).all()
        check_refused(run, optimizer.update, (PARAMS, state), "the next step is 0")
        with pytest.raises(ap.Refused, match="is not committed"):
            run.publish("weights")
        with pytest.raises(ap.Refused, match="taken 1 steps, but only 0 are committed"):
            apj.report(run, state)
        apj.commit(run, state, PARAMS, run.batch(0).indices)
        run.publish("weights")
        assert apj.report(run, state).steps_run == 1


@pytest.mark.parametrize("source", ["host", "device"])
def test_a_step_taken_again_with_another_output_is_seen(tmp_path, source):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, source)
        start, own = optimizer.init(PARAMS), run.batch(0).indices
        first, state = optimizer.update(PARAMS, start)
        apj.commit(run, state, first, own)
        other, state = optimizer.update(jax.tree.map(jnp.ones_like, PARAMS), start)
        apj.commit(run, state, other, own)
        assert apj.report(run, state).rewinds == 1
        run.publish("weights")
        first, state = optimizer.update(PARAMS, start)
        with pytest.raises(ap.Refused, match="replayed with a different output"):
            apj.commit(run, state, first, own)


def test_a_run_keeps_to_its_source(tmp_path):
    with open_run(tmp_path / "device") as run:
        optimizer = optimizer_for(run, "device")
        _, state = train(run, optimizer, PARAMS, optimizer.init(PARAMS), stop=2)
    with open_run(tmp_path / "device") as run:
        with pytest.raises(ap.Refused, match="started with noise from a different source"):
            apj.add_correlated_noise(run, "host")
        assert any("Threefry" in remark for remark in run.report().remarks)
    with open_run(tmp_path / "host") as run:
        host = apj.add_correlated_noise(run)
        _, first = host.update(PARAMS, host.init(PARAMS))
        apj.commit(run, first, PARAMS, run.batch(0).indices)
        with pytest.raises(ap.Refused, match="started with noise from a different source"):
            apj.add_correlated_noise(run, "device")
        with pytest.raises(ap.Refused, match="made for a different noise source"):
            host.update(PARAMS, state[0])


def test_an_optimizer_made_before_the_other_cannot_go_on_either(tmp_path):
    with open_run(tmp_path) as run:
        host = apj.add_correlated_noise(run)
        device = apj.add_correlated_noise(run, "device")
        check_refused(run, host.update, (PARAMS, host.init(PARAMS)), "a different source")
        with pytest.raises(ap.Refused, match="made for a different noise source"):
            device.update(PARAMS, host.init(PARAMS))


def test_a_source_that_the_run_was_not_started_with_is_refused_without_asking_other_processes(tmp_path, monkeypatch):
    """It may be asked for in a compiled program, where processes cannot communicate."""
    with open_run(tmp_path) as run:
        apj.add_correlated_noise(run, "device")
        monkeypatch.setattr(run, "_write", lambda act: pytest.fail("a collective operation"))
        with pytest.raises(ap.Refused, match="a different source"):
            set_noise_source(run, "host")


@pytest.mark.parametrize("source", ["host", "device"])
def test_there_is_no_noise_beyond_the_plan(tmp_path, source):
    with run_for(plan_for(Toeplitz([1.0, 0.5], 3)), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source)
        update, state = jax.jit(optimizer.update), optimizer.init(PARAMS)
        for _ in range(3):
            updates, state = update(PARAMS, state)
            assert np.isfinite(flat(updates)).all()
            apj.commit(run, state, updates)
        with pytest.raises(ap.Refused, match="All 3 steps of the plan have been taken"):
            optimizer.update(PARAMS, state)
        updates, state = update(PARAMS, state)
        assert np.isnan(flat(updates)).all()
        with pytest.raises(ap.Refused, match="all 3 steps"):
            apj.commit(run, state, updates)


def test_the_noise_of_the_host_is_the_run_s_own_times_the_clipping_norm(tmp_path):
    made = plan_for(Fourier(4, "optimal"), clip_norm=2.5)
    with run_for(made, tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run)
        ones = jax.tree.map(jnp.ones_like, PARAMS)
        updates, _ = jax.jit(optimizer.update)(ones, optimizer.init(PARAMS))
        for leaf, noise in zip(jax.tree.leaves(updates), run._unit_noise(0), strict=True):
            np.testing.assert_allclose(leaf, 1.0 + 2.5 * noise, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("source", ["host", "device"])
def test_an_update_thrown_away_uses_nothing_up(tmp_path, source):
    """The same state gives the same noise, however often it is asked for."""
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, source)
        update, state = jax.jit(optimizer.update), optimizer.init(PARAMS)
        first, again = update(PARAMS, state)[0], update(PARAMS, state)[0]
        assert flat(first).tobytes() == flat(again).tobytes()


def test_other_parameters_than_the_run_s_are_refused(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run)
        for wrong in (
            {"w": PARAMS["w"]},
            {"w": jnp.zeros((2, 4)), "b": jnp.zeros(2)},
            [jnp.zeros((4, 2)), jnp.zeros(2)],
        ):
            with pytest.raises(ap.InvalidArgument, match="The run makes noise for the arrays"):
                optimizer.init(wrong)
            with pytest.raises(ap.InvalidArgument, match="The run makes noise for the arrays"):
                optimizer.update(wrong, optimizer.init(PARAMS))
            _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
            with pytest.raises(ap.InvalidArgument, match="The parameters have"):
                apj.commit(run, state, wrong, run.batch(0).indices)
        with pytest.raises(ap.InvalidArgument, match="floating-point"):
            apj.leaves({"w": jnp.zeros(3, int)})
        with pytest.raises(ap.InvalidArgument, match="at least one array"):
            apj.leaves({})
        with pytest.raises(ap.InvalidArgument, match="'host' or 'device'"):
            apj.add_correlated_noise(run, "gpu")
        with pytest.raises(ap.InvalidArgument, match="a Run"):
            apj.add_correlated_noise(plan())


def test_batches_are_the_run_s_padded_to_few_shapes(tmp_path):
    with open_run(tmp_path) as run:
        shapes = set()
        for batch in apj.batches(run, {"x": X, "y": Y}, multiple=8):
            indices, mask = run.batch(batch.step)
            assert np.array_equal(batch.indices, indices[mask])
            assert np.array_equal(batch.data["x"][batch.mask], X[indices])
            assert np.array_equal(batch.data["y"][batch.mask], Y[indices])
            assert batch.mask.sum() == len(indices)
            shapes.add(len(batch.mask))
        assert {size % 8 for size in shapes} == {0}
        with pytest.raises(ap.InvalidArgument, match="arrays of 60 examples"):
            next(apj.batches(run, X[:-1]))


@pytest.mark.parametrize("sharded", [False, True])
def test_a_mask_of_another_batch_counts_no_example_twice(tmp_path, sharded):
    """A jitted step that closes over the mask of the first batch: as a constant, it is wrong for all others."""
    devices = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    at = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("data")) if sharded else None
    examples = np.eye(60, dtype=np.float32)  # the gradient of an example has its own direction
    each = apj.clipped_sum(lambda p, x: x @ p, 0.5)
    stale, padding = {}, 0
    with open_run(tmp_path) as run:
        for batch in apj.batches(run, (examples, np.arange(60)), multiple=16, sharding=at):
            rows, labels = (np.asarray(part) for part in batch.data)
            given = np.asarray(batch.mask)
            assert not rows[~given].any()
            assert not labels[~given].any()
            padding += len(given) - given.sum()
            mask = stale.setdefault(len(given), given)
            for wrong in (mask, np.ones_like(mask)):
                counted = np.asarray(each(jnp.zeros(60), (rows,), wrong))
                assert counted.max() <= 0.5
                assert set(np.flatnonzero(counted)) <= set(batch.indices)
    assert padding > 20


def test_an_empty_batch_still_gets_its_noise(tmp_path):
    empty = apj.pad(Batch(np.empty(0, np.int64), np.empty(0, bool)), 8)
    assert empty.mask.tolist() == [False] * 8
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run)
        clipped = jax.jit(apj.clipped_sum(lambda p, x: (x @ p["w"]).sum(), 1.0))
        total = clipped(PARAMS, (X[empty.indices],), empty.mask)
        updates, _ = optimizer.update(total, optimizer.init(PARAMS))
        np.testing.assert_allclose(flat(updates), 0.5 * flat(run._unit_noise(0)), rtol=1e-6)
