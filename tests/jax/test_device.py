"""The key of noise made on a device belongs to one run, and is in no program and no state."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.jax._device_noise import device_key
from tests.jax.plans import check_refused
from tests.jax.training import PARAMS, open_run


def test_the_key_is_that_of_the_run_alone(tmp_path):
    keys = []
    for name, secret in (("a", 1), ("b", 1), ("c", 2)):
        with open_run(tmp_path / name, secret=ap.Secret.insecure(secret)) as run:
            keys.append(device_key(run).tobytes())
    assert len(set(keys)) == 3


def spellings(word):
    """A word as programs print it: signed or not, in hexadecimal, or as bytes of a dense constant."""
    raw = int(word).to_bytes(4, "little")
    return {str(int(word)), str(int(word) - (1 << 32)), f"{int(word):x}", raw.hex(), raw[::-1].hex()}


def test_the_key_is_in_no_program(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, "device"), optax.sgd(0.1))
        key, state = device_key(run), optimizer.init(PARAMS)
        texts = [str(jax.make_jaxpr(optimizer.update)(PARAMS, state, PARAMS))]
        for lowered in (jax.jit(optimizer.init).lower(PARAMS), jax.jit(optimizer.update).lower(PARAMS, state, PARAMS)):
            texts += [lowered.as_text(), lowered.compile().as_text()]
        assert all(len(text) > 200 for text in texts)
        for text in texts:
            assert not any(spelling in text.lower() for word in key for spelling in spellings(word))


def test_the_check_sees_a_key_in_a_program():
    key = np.array([3735928559, 3405691582], np.uint32)
    lowered = jax.jit(lambda x: x + jnp.asarray(key)).lower(jnp.zeros(2, jnp.uint32))
    for text in (lowered.as_text(), lowered.compile().as_text()):
        assert any(spelling in text.lower() for word in key for spelling in spellings(word))


def test_the_key_is_in_no_state(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        _, state = jax.jit(optimizer.update)(PARAMS, optimizer.init(PARAMS))
        key = device_key(run)
        apj.save(tmp_path / "state", state, run)
    for word in key:
        assert int(word).to_bytes(4, "little") not in (tmp_path / "state").read_bytes()
        assert str(int(word)) not in repr(state)


@pytest.mark.parametrize("source", ["host", "device"])
def test_no_step_is_taken_after_the_run_is_closed(tmp_path, source):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, source)
        state = optimizer.init(PARAMS)
        jax.block_until_ready(optimizer.update(PARAMS, state))
    check_refused(run, optimizer.update, (PARAMS, state), "closed")


def test_a_state_can_be_donated(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        update = jax.jit(optimizer.update, donate_argnums=1)
        state = optimizer.init(PARAMS)
        for step in range(2):
            updates, state = update(PARAMS, state)
            apj.commit(run, state, updates, run.batch(step).indices)
        assert int(state.step) == int(state.private.step) == run.committed == 2


def test_steps_cannot_be_taken_in_one_program_without_being_committed(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, "device")

        def step(state, _):
            updates, state = optimizer.update(PARAMS, state)
            return state, updates

        state, updates = jax.lax.scan(step, optimizer.init(PARAMS), length=3)
        assert [bool(np.isnan(row).any()) for row in updates["w"]] == [False, True, True]
        with pytest.raises(ap.Refused, match="the next step is 0"):
            apj.commit(run, state, jax.tree.map(lambda rows: rows[-1], updates))


@pytest.mark.parametrize("source", ["host", "device"])
def test_on_a_single_device_the_program_ends_with_the_reason(tmp_path, source, monkeypatch):
    """Nobody waits for it, so the callback raises, and JAX puts its message into an error of its own."""
    from antiphase.jax import _device_noise, _host_noise

    monkeypatch.setattr(_device_noise, "must_defer", lambda: False)
    monkeypatch.setattr(_host_noise, "must_defer", lambda: False)
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, source)
        _, state = optimizer.update(PARAMS, optimizer.init(PARAMS))
        with pytest.raises(jax.errors.JaxRuntimeError, match="the next step is 0"):
            jax.block_until_ready(jax.jit(optimizer.update)(PARAMS, state))


def test_other_random_numbers_of_jax_are_refused(tmp_path):
    """A step that is replayed under another flag would get different noise, and two outputs of it could be averaged."""
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        state = optimizer.init(PARAMS)
        with jax.threefry_partitionable(False):
            for update in (optimizer.update, jax.jit(optimizer.update)):
                with pytest.raises(ap.Refused, match="jax_threefry_partitionable"):
                    update(PARAMS, state)
            with pytest.raises(ap.Refused, match="jax_threefry_partitionable"):
                apj.add_correlated_noise(run, "device")
        optimizer.update(PARAMS, state)


def test_the_hosts_noise_does_not_depend_on_the_flag(tmp_path):
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run)
        state = optimizer.init(PARAMS)
        made = optimizer.update(PARAMS, state)[0]
        with jax.threefry_partitionable(False):
            again = optimizer.update(PARAMS, state)[0]
        assert all(np.array_equal(made[name], again[name]) for name in PARAMS)
