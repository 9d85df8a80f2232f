"""The public part of a state holds no secret, and the two parts are joined where they are of one step of one run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.jax._state import PrivateNoiseState, run_id_words
from tests.jax.plans import check_refused, flat, plan_for, run_for
from tests.jax.training import PARAMS, open_run, optimizer_for, plan

GRADIENT = jax.tree.map(lambda p: jnp.full_like(p, 0.123), PARAMS)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("source", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_the_public_part_holds_no_secret(tmp_path, source):
    with run_for(plan(), tmp_path, PARAMS, examples=60) as run:
        optimizer = optax.MultiSteps(optimizer_for(run, source), 2, use_grad_mean=False)
        update, state = jax.jit(optimizer.update), optimizer.init(PARAMS)
        for call in range(3):
            _, state = update(GRADIENT, state, PARAMS)
            if call == 1:
                apj.commit(run, state, PARAMS, run.batch(0).indices)
        public, private = apj.split(state)
        own = {"at"}  # where both parts stand: in the public one too
        secrets = [
            leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(private)
            if np.asarray(leaf).any() and not own & {getattr(key, "key", None) for key in path}
        ]
        secrets = [leaf for leaf in secrets if leaf.dtype == jnp.float32]
        shown = jax.tree.leaves(public)
        assert any(np.array_equal(leaf, np.full((4, 2), np.float32(0.123))) for leaf in secrets)
        for secret in secrets:
            assert not any(np.array_equal(secret, leaf) for leaf in shown)
        assert len(secrets) == (2 + 2 if source == "device" else 2)  # accumulated, one ring for each leaf
        joined = apj.join(public, private)
        assert jax.tree.structure(joined) == jax.tree.structure(state)
        assert bits(joined) == bits(state)


def states_of(run, optimizer, count):
    """The states after 0, 1, ..., count - 1 steps."""
    state, update = optimizer.init(PARAMS), jax.jit(optimizer.update)
    yield state
    for step in range(count - 1):
        _, state = update(PARAMS, state, PARAMS)
        apj.commit(run, state, PARAMS, run.batch(step).indices)
        yield state


def test_parts_of_different_steps_are_refused(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, "device"))
        parts = [apj.split(state) for state in states_of(run, optimizer, 3)]
        for i, (public, _) in enumerate(parts):
            for j, (_, private) in enumerate(parts):
                if i == j:
                    apj.join(public, private)
                else:
                    with pytest.raises(ap.InvalidArgument, match="from another optimizer, step or run"):
                        apj.join(public, private)


def test_parts_of_different_steps_give_no_noise_however_put_together(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, "device"))
        _, older, newer = states_of(run, optimizer, 3)
        forged = (newer[0]._replace(private=older[0].private), *newer[1:])
        check_refused(run, optimizer.update, (PARAMS, forged, PARAMS), "private part belongs to another step")
        public = apj.split(newer)[0]
        for update in (optimizer.update, jax.jit(optimizer.update)):
            with pytest.raises(ap.Refused, match="private part is missing"):
                update(PARAMS, public, PARAMS)


def test_parts_of_different_runs_are_refused(tmp_path):
    with open_run(tmp_path / "a") as one, open_run(tmp_path / "b") as two:
        public, _ = apj.split(optimizer_for(one, "device").init(PARAMS))
        _, private = apj.split(optimizer_for(two, "device").init(PARAMS))
        with pytest.raises(ap.InvalidArgument, match="from another optimizer, step or run"):
            apj.join(public, private)


def test_sums_of_another_micro_batch_or_run_are_refused(tmp_path):
    with open_run(tmp_path / "a") as run, open_run(tmp_path / "b") as other:
        parts = []
        for each in (run, other):
            optimizer = optax.MultiSteps(apj.add_correlated_noise(each), 3, use_grad_mean=False)
            state = optimizer.init(PARAMS)
            for _ in range(3):
                parts.append(apj.split(state))
                _, state = optimizer.update(GRADIENT, state, PARAMS)
        for i, (public, _) in enumerate(parts):
            for j, (_, private) in enumerate(parts):
                if i == j:
                    assert bits(apj.join(public, private).acc_grads) == bits(private[0]["sums"])
                else:
                    with pytest.raises(ap.InvalidArgument, match="from another optimizer, step or run"):
                        apj.join(public, private)


def test_a_private_part_of_another_optimizer_is_refused(tmp_path):
    with open_run(tmp_path) as run:
        public, private = apj.split(optimizer_for(run).init(PARAMS))
        for wrong in ([], [*private, ()], [{}], [None], [{"at": [], "sums": None, "inner": []}]):
            with pytest.raises(ap.InvalidArgument, match="does not belong to this state"):
                apj.join(public, wrong)


def test_the_state_of_a_device_is_that_of_the_run(tmp_path):
    with open_run(tmp_path) as run:
        state = apj.add_correlated_noise(run, "device").init(PARAMS)
        assert isinstance(state.private, PrivateNoiseState)
        assert np.array_equal(state.run_id, run_id_words(run.run_id))
        assert np.array_equal(state.private.run_id, state.run_id)


def test_a_printed_state_shows_no_noise(tmp_path):
    with run_for(plan_for(plan().mechanism.strategy), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        updates, state = optimizer.update(jax.tree.map(jnp.zeros_like, PARAMS), optimizer.init(PARAMS))
        shown = repr((state, str(state)))
        assert flat(updates).any()
        assert "PrivateNoiseState(step=1, ...)" in shown
        assert "float32" not in shown
        assert f"{float(jax.tree.leaves(state.private.buffers)[0].max()):.5f}" not in shown
