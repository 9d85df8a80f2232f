"""Ways in which noise could be too small, missing from some bits, or used twice without a trace: all are refused."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import Identity, Toeplitz, Tree
from tests.jax.plans import check_refused, flat, plan_for, run_for

PARAMS = {"w": jnp.zeros(4)}
SUM = partial(optax.MultiSteps, every_k_schedule=2, use_grad_mean=False)
SOURCES = pytest.mark.parametrize("source", ["host", "device"])


def gradient(value):
    return {"w": jnp.full(4, float(value))}


def test_the_buffers_of_a_shorter_tree_are_refused(tmp_path):
    """JAX reads the last of too few buffers again and again, without a word."""
    strategy, once = Tree(4, decoder="online"), ap.SingleParticipation()
    plan = plan_for(strategy, participation=once)
    with run_for(plan, tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        update = jax.jit(optimizer.update)
        first = state = optimizer.init(PARAMS)
        for step in range(3):
            updates, state = update(gradient(step), state)
            apj.commit(run, state, updates)
    with run_for(plan.extend(9), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        update = jax.jit(optimizer.update)
        with pytest.raises(ap.Refused, match="belongs to another plan"):
            update(gradient(3.0), state)
        state = optimizer.init(PARAMS)
        assert state.private.buffers[0].shape != first.private.buffers[0].shape
        for step in range(9):  # from the start: the first three steps are replays
            updates, state = update(gradient(step), state)
            apj.commit(run, state, updates)
        assert apj.report(run, state).rewinds == 0


@SOURCES
def test_more_precision_than_the_noise_has_is_refused(tmp_path, source):
    """float64 + float32 shows the gradient in the bits that the noise does not reach."""
    with jax.enable_x64(True), run_for(plan_for(Identity(3)), tmp_path / "single", PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source)
        wide = {"w": jnp.zeros(4, jnp.float64)}
        for update in (optimizer.update, jax.jit(optimizer.update)):
            with pytest.raises(ap.Refused, match="low bits"):
                update(wide, optimizer.init(wide))
    with jax.enable_x64(True), run_for(plan_for(Identity(3)), tmp_path / "double", PARAMS, dtype="float64") as run:
        optimizer = apj.add_correlated_noise(run, source)
        updates, _ = optimizer.update(wide, optimizer.init(wide))
        assert updates["w"].dtype == jnp.float64
        assert not np.array_equal(flat(updates), flat(updates).astype(np.float32))


def test_device_noise_of_another_dtype_than_the_runs_is_refused(tmp_path):
    """Without float64 in JAX the draws would end at 7.4, where the report of a float64 run says 11.5."""
    with jax.enable_x64(False), run_for(plan_for(Identity(3)), tmp_path, PARAMS, dtype="float64") as run:
        with pytest.raises(ap.Refused, match="noise is float64, but JAX would make it on the device in float32"):
            apj.add_correlated_noise(run, "device")
        optimizer = apj.add_correlated_noise(
            run, "host"
        )  # made in float64 and rounded; the refusal has not bound the run
        updates, _ = optimizer.update(gradient(1.0), optimizer.init(PARAMS))
        assert updates["w"].dtype == jnp.float32
    with jax.enable_x64(True), run_for(plan_for(Identity(3)), tmp_path / "wide", PARAMS, dtype="float64") as run:
        apj.add_correlated_noise(run, "device")


@SOURCES
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_before_the_noise_is_refused(tmp_path, source, dtype):
    half = {"w": jnp.ones(4, dtype)}
    with run_for(plan_for(Identity(3)), tmp_path, half) as run:
        optimizer = apj.add_correlated_noise(run, source)
        with pytest.raises(ap.Refused, match="more than the clipping norm"):
            jax.jit(optimizer.update)(half, optimizer.init(half))
        # Accumulators of half precision, even where sums come and go in float32.
        optimizer = SUM(optimizer, accumulator_dtype=dtype)
        state = optimizer.init(half)._replace(mini_step=jnp.int32(1))
        for act in (apj.split, partial(apj.report, run), lambda s: apj.commit(run, s, half)):
            with pytest.raises(ap.Refused, match="more than the clipping norm"):
                act(state)


@SOURCES
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_of_half_precision_are_trained(tmp_path, source, dtype):
    params = {"w": jnp.ones(4, dtype)}
    total = apj.clipped_sum(lambda p, x: (p["w"] * x).sum().astype(jnp.float32), 0.5)
    with run_for(plan_for(Toeplitz([1.0, 0.5], 3)), tmp_path, params) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.adam(0.1))
        state = optimizer.init(params)

        @jax.jit
        def step(params, state):
            updates, state = optimizer.update(total(params, (jnp.ones((8, 4)),), np.ones(8, bool)), state, params)
            return optax.apply_updates(params, updates), state

        for _ in range(3):
            params, state = step(params, state)
            apj.commit(run, state, params)
            apj.commit(run, state, params)  # a replay
        assert params["w"].dtype == dtype
        assert apj.report(run, state).rewinds == 0
        with pytest.raises(ap.Refused, match="not been read"):  # other bits are another output
            apj.commit(run, state, {"w": params["w"] + dtype(0.5)})


@pytest.mark.parametrize("micro", [False, True])
def test_a_replay_that_shows_in_the_state_alone_is_seen(tmp_path, micro):
    """At learning rate 0 the parameters stay, but momentum holds the noisy gradient."""
    with run_for(plan_for(Identity(3)), tmp_path, PARAMS) as run:
        inner = optax.chain(apj.add_correlated_noise(run), optax.sgd(optax.linear_schedule(0.0, 0.1, 4), momentum=0.9))
        optimizer = SUM(inner) if micro else inner
        start = optimizer.init(PARAMS)

        def step(value):
            state = start
            for _ in range(2 if micro else 1):
                updates, state = optimizer.update(gradient(value), state, PARAMS)
            assert not flat(updates).any()
            return state

        apj.commit(run, step(1.0), PARAMS)
        apj.commit(run, step(1.0), PARAMS)
        assert run.report().rewinds == 0
        run.publish("first")
        with pytest.raises(ap.Refused, match="replayed with a different output"):
            apj.commit(run, step(2.0), PARAMS)


def test_a_commit_between_micro_batches_is_a_replay(tmp_path):
    with run_for(plan_for(Identity(3)), tmp_path, PARAMS) as run:
        optimizer = SUM(optax.chain(apj.add_correlated_noise(run), optax.adam(0.1)))
        state = optimizer.init(PARAMS)
        for calls in range(1, 7):
            _, state = optimizer.update(gradient(1.0), state, PARAMS)
            if calls > 1:
                apj.commit(run, state, PARAMS)
        assert (run.committed, run.report().rewinds) == (3, 0)


@SOURCES
def test_steps_taken_again_and_not_committed_again_stop_the_run(tmp_path, source):
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source)
        states, made = [optimizer.init(PARAMS)], []
        for step in range(2):
            updates, state = optimizer.update(gradient(step), states[-1])
            apj.commit(run, state, updates)
            made.append(updates)
            states.append(state)
        run.publish("a")
        for state in states[:2]:
            optimizer.update(gradient(9.0), state)
        third, state = optimizer.update(gradient(9.0), states[-1])
        with pytest.raises(ap.Refused, match=r"not committed again: \[0, 1\]"):
            apj.commit(run, state, third)
        for state, updates in zip(states[1:], made, strict=True):
            apj.commit(run, state, updates)
        third, state = optimizer.update(gradient(2.0), states[-1])
        apj.commit(run, state, third)
        run.publish("b")


def test_two_optimizers_on_one_run_hide_no_open_step(tmp_path):
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        one, two = apj.add_correlated_noise(run), apj.add_correlated_noise(run)
        states = [one.init(PARAMS)]
        for optimizer in (two, one):
            updates, state = optimizer.update(gradient(1.0), states[-1])
            apj.commit(run, state, updates)
            states.append(state)
        updates, state = two.update(gradient(2.0), states[0])
        apj.commit(run, state, updates)  # step 0 again; the next is 1, which `one` has made before
        again, state = one.update(gradient(3.0), state)
        with pytest.raises(ap.Refused, match="not committed"):
            run.publish("too early")
        apj.commit(run, state, again)
        run.publish("in time")


@SOURCES
def test_a_state_of_withdrawn_steps_is_refused(tmp_path, source):
    """The same noise is in the old and in the new output of the step: what follows from both shows their difference."""
    plan = plan_for(Toeplitz([1.0, 0.5], 4))

    def begin(run):
        return optax.chain(apj.add_correlated_noise(run, source), optax.sgd(1.0))

    with run_for(plan, tmp_path, PARAMS) as run:
        optimizer = begin(run)
        start, made = optimizer.init(PARAMS), {}
        for attempt, value in (("old", 1.0), ("new", 2.0)):
            updates, state = optimizer.update(gradient(value), start)
            apj.commit(run, state, updates)
            made[attempt] = updates, state
            apj.save(tmp_path / attempt, state, run)
        assert np.allclose(flat(made["old"][0]) - flat(made["new"][0]), 1.0)
        run.publish("new")
    with run_for(plan, tmp_path, PARAMS) as run:  # what the ledger has is known in every process
        optimizer = begin(run)
        state = apj.load(tmp_path / "old", start, run)
        check_refused(run, optimizer.update, (gradient(0.0), state), "for the first 1 steps")
        state = apj.load(tmp_path / "new", start, run)
        for step in range(1, 4):
            updates, state = optimizer.update(gradient(step), state)
            apj.commit(run, state, updates)
        assert run.report().rewinds == 1


@SOURCES
def test_a_step_that_was_made_from_a_withdrawn_one_is_refused(tmp_path, source):
    """It was made before the step below it was taken again, when the ledger still had what it goes on from."""
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.sgd(1.0))
        start = optimizer.init(PARAMS)
        updates, old = optimizer.update(gradient(1.0), start)
        apj.commit(run, old, updates)
        second, after_old = optimizer.update(gradient(1.0), old)
        updates, new = optimizer.update(gradient(2.0), start)
        apj.commit(run, new, updates)
        with pytest.raises(ap.Refused, match="Step 1 cannot be committed"):
            apj.commit(run, after_old, second)
        run.publish("the first step, taken again")
        updates, new = optimizer.update(gradient(1.0), new)
        apj.commit(run, new, updates)


@SOURCES
def test_a_trained_model_is_not_given_the_first_noise_again(tmp_path, source):
    """Resumed with the parameters but without the state of the optimizer."""
    plan, params = plan_for(Toeplitz([1.0, 0.5], 4)), PARAMS
    with run_for(plan, tmp_path, PARAMS) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.sgd(1.0))
        state = optimizer.init({"w": jnp.ones(4)})
        optimizer.update(gradient(1.0), state)  # not committed: the run can still begin elsewhere
        state = optimizer.init(params)
        for _ in range(2):
            updates, state = optimizer.update(gradient(1.0), state)
            params = optax.apply_updates(params, updates)
            apj.commit(run, state, params)
    with run_for(plan, tmp_path, PARAMS) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.sgd(1.0))
        with pytest.raises(ap.Refused, match="started with different parameters"):
            optimizer.update(gradient(1.0), optimizer.init(params))
        updates, state = optimizer.update(gradient(2.0), jax.jit(optimizer.init)(PARAMS))  # begin again
        apj.commit(run, state, updates)
        assert (run.committed, run.report().rewinds) == (1, 1)


def of_a_loop(update):
    """The update inside of a loop of a compiled program."""
    return lambda g, s: jax.lax.scan(lambda state, g: update(g, state)[::-1], s, jax.tree.map(lambda x: x[None], g))


MAPPED = {
    "vmap": lambda update: jax.vmap(update, (0, None)),
    "of states too": lambda update: lambda g, s: jax.vmap(update)(g, jax.tree.map(lambda x: jnp.stack([x, x]), s)),
    "jit of vmap": lambda update: jax.jit(jax.vmap(update, (0, None))),
    "vmap of jit": lambda update: jax.vmap(jax.jit(update), (0, None)),
    "vmap of a loop": lambda update: jax.vmap(of_a_loop(update), (0, None)),
    "map in batches": lambda update: lambda g, s: jax.lax.map(lambda one: update(one, s), g, batch_size=2),
}


@SOURCES
@pytest.mark.parametrize("way", MAPPED)
def test_gradients_side_by_side_are_not_given_the_same_noise(tmp_path, source, way):
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        optimizer = optax.chain(apj.add_correlated_noise(run, source), optax.sgd(0.1))
        several = {"w": jnp.arange(8.0).reshape(2, 4)}
        with pytest.raises(ap.Refused, match="maps add_correlated_noise over 2 gradients"):
            MAPPED[way](optimizer.update)(several, optimizer.init(PARAMS))
        assert run.committed == 0


@SOURCES
def test_a_gradient_is_taken_through_the_noise(tmp_path, source):
    """Such as that of a learning rate or of a scale; noise is a constant."""
    with run_for(plan_for(Identity(3)), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source)
        state = optimizer.init(PARAMS)
        slope = jax.grad(lambda scale: optimizer.update({"w": scale * jnp.arange(4.0)}, state)[0]["w"].sum())(2.0)
        assert slope == 6.0


@SOURCES
def test_replicas_that_were_not_added_up_first_are_refused(tmp_path, source):
    """Each would have the same noise on gradients of its own."""
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        optimizer = apj.add_correlated_noise(run, source)
        update = jax.jit(lambda *several: jax.lax.map(lambda one: optimizer.update(*one), several))
        states = jax.tree.map(lambda part: jnp.stack([part, part]), optimizer.init(PARAMS))
        for differ in (0.0, 1.0):  # replicas that are alike are one model
            several = {"w": jnp.stack([jnp.zeros(4), jnp.full(4, differ)])}
            updates, states = update(several, states)
            apj.commit(run, *(jax.tree.map(lambda part: part[0], tree) for tree in (states, updates)))
        updates, states = update(several, states)
        assert np.isnan(updates["w"][1]).all()
        with pytest.raises(ap.Refused, match="for the first 2 steps"):
            apj.commit(run, *(jax.tree.map(lambda part: part[1], tree) for tree in (states, updates)))


@SOURCES
def test_a_run_that_is_closed_while_a_step_is_computed_says_so(tmp_path, source):
    """JAX computes in the background, so the noise may be asked for when the run is closed already."""
    run = run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS)
    optimizer = apj.add_correlated_noise(run, source)
    state = optimizer.init(PARAMS)
    update = jax.jit(optimizer.update).lower(gradient(1.0), state).compile()
    run.close()
    updates, state = update(gradient(1.0), state)
    assert np.isnan(flat(updates)).all()
    for act in (lambda: apj.commit(run, state, updates), lambda: apj.report(run, state)):
        with pytest.raises(ap.Refused, match="closed before the noise of step 0 was made"):
            act()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_the_history_hash_depends_on_every_number(dtype):
    from antiphase.jax._state import next_hash

    with jax.enable_x64(dtype == jnp.float64):
        start = jnp.zeros(2, jnp.uint32)
        leaves = [jnp.arange(5.0, dtype=dtype), jnp.zeros((0, 3), dtype), jnp.ones((), dtype)]
        changed = [[leaves[0].at[i].add(0.25), *leaves[1:]] for i in range(5)]
        changed += [[leaves[0], leaves[1], -leaves[2]], leaves[:1], leaves[::-1]]
        hashes = [next_hash(start, arrays) for arrays in (leaves, *changed)]
        hashes.append(next_hash(hashes[0], leaves))
        assert len({mark.tobytes() for mark in hashes}) == len(hashes)
        assert hashes[0].tobytes() == jax.jit(next_hash)(start, leaves).tobytes()


@SOURCES
def test_a_refused_step_is_not_committed_though_another_was_made_since(tmp_path, source):
    """The output was NaN, and `apply_if_finite` has hidden it; the error of the step has been forgotten."""
    with run_for(plan_for(Toeplitz([1.0, 0.5], 4)), tmp_path, PARAMS) as run:
        inner = optax.apply_if_finite(optax.adam(0.1), 5)
        optimizer = optax.chain(apj.add_correlated_noise(run, source), inner)
        update = jax.jit(optimizer.update)
        start = optimizer.init(PARAMS)
        updates, first = update(gradient(1.0), start)
        kept, refused = update(gradient(1.0), first)  # before the first is committed
        assert not flat(kept).any()
        apj.commit(run, first, updates)
        updates, second = update(gradient(1.0), first)
        for act in (lambda: apj.commit(run, refused, PARAMS), lambda: apj.report(run, refused)):
            with pytest.raises(ap.Refused, match="refused the noise of this step"):
                act()
        apj.commit(run, second, updates)
        with pytest.raises(ap.Refused, match="for the first 2 steps"):
            optimizer.update(gradient(1.0), refused)
        assert (run.committed, run.report().rewinds) == (2, 0)


class SameName:
    """A key that prints like any other of its kind."""

    def __init__(self, order):
        self.order = order

    def __repr__(self):
        return "key"

    def __hash__(self):
        return self.order

    def __lt__(self, other):
        return self.order < other.order


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ap.InvalidArgument, match="two arrays named"):
        apj.leaves({SameName(0): jnp.zeros(2), SameName(1): jnp.zeros(2)})
