"""Only optimizers that add the noise first, in every step and to everything can be committed, split or reported."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from tests.jax.training import PARAMS, open_run

SUM = partial(optax.MultiSteps, every_k_schedule=2, use_grad_mean=False)
LARGE = partial(optax.skip_large_updates, max_squared_norm=1e9)
TRAINED = {"w": True, "b": True}


def of_dict(chain):
    """A chain whose state is a dict. JAX sorts its keys, so the state does not show which comes first."""

    def named(state):
        return {"noise": state[0], "rate": state[1]}

    def update(updates, state, params=None):
        updates, state = chain.update(updates, (state["noise"], state["rate"]), params)
        return updates, named(state)

    return optax.GradientTransformation(lambda params: named(chain.init(params)), update)


UNSOUND = {
    "skips large sums": lambda noise: SUM(noise, should_skip_update_fn=LARGE),
    "skips what is not finite": lambda noise: SUM(noise, should_skip_update_fn=optax.skip_not_finite),
    "accumulates before": lambda noise: optax.chain(optax.apply_every(2), noise),
    "accumulates before in a chain": lambda noise: optax.chain(optax.chain(optax.trace(0.9), noise), optax.scale(0.1)),
    "scales before": lambda noise: optax.chain(optax.scale(50.0), noise),
    "leaves out what is not finite": lambda noise: optax.apply_if_finite(noise, 3),
    "leaves out steps": lambda noise: optax.conditionally_transform(noise, lambda step: step % 2 == 0),
    "masks steps": lambda noise: optax.conditionally_mask(noise, lambda step: step % 2 == 0),
    "masks parameters": lambda noise: optax.masked(noise, TRAINED),
    "two kinds": lambda noise: optax.multi_transform({"a": noise, "b": optax.identity()}, dict.fromkeys(PARAMS, "a")),
    "named, later": lambda noise: optax.named_chain(("rate", optax.scale(0.1)), ("noise", noise)),
    "order of names": lambda noise: of_dict(optax.chain(noise, optax.scale(0.1))),
}
SOUND = {
    "alone": lambda noise: noise,
    "chain": lambda noise: optax.chain(noise, optax.scale(0.1), optax.adam(0.1)),
    "chains": lambda noise: optax.chain(optax.chain(noise, optax.scale(0.1)), optax.adam(0.1)),
    "wrapped after": lambda noise: optax.chain(noise, optax.apply_if_finite(optax.adam(0.1), 3), optax.trace(0.9)),
    "hyperparameters after": lambda noise: optax.chain(noise, optax.inject_hyperparams(optax.sgd)(0.1)),
    "named": lambda noise: optax.named_chain(("noise", noise), ("a rate", optax.scale(0.1))),
    "named chains": lambda noise: optax.chain(optax.named_chain(("one", optax.chain(noise, optax.scale(0.1))))),
    "sums of named": lambda noise: SUM(optax.named_chain(("noise", noise), ("adam", optax.adam(0.1)))),
    "sums": lambda noise: optax.chain(SUM(optax.chain(noise, optax.adam(0.1))).gradient_transformation()),
}


def after(optimizer, calls=2):
    gradient = jax.tree.map(lambda p: jnp.full_like(p, 3.14), PARAMS)
    state = optimizer.init(PARAMS)
    for _ in range(calls):
        _, state = optimizer.update(gradient, state, PARAMS)
    return state


@pytest.mark.parametrize("name", UNSOUND)
def test_what_may_see_gradients_before_the_noise_is_refused(tmp_path, name):
    with open_run(tmp_path) as run:
        state = after(UNSOUND[name](apj.add_correlated_noise(run)), calls=1)
        for act in (apj.split, partial(apj.report, run), partial(commit, run)):
            with pytest.raises(ap.Refused, match=r"Noise must be added first|whether to skip an update"):
                act(state)
        assert run.committed == 0


def commit(run, state):
    apj.commit(run, state, PARAMS, run.batch(0).indices)


@pytest.mark.parametrize("name", SOUND)
def test_everything_else_is_let_through(tmp_path, name):
    with open_run(tmp_path) as run:
        state = after(SOUND[name](apj.add_correlated_noise(run)), calls=2 if name.startswith("sums") else 1)
        commit(run, state)
        public, private = apj.split(state)
        joined = apj.join(public, private)
        assert jax.tree.structure(joined) == jax.tree.structure(state)
        assert apj.report(run, joined).steps_run == 1


def test_two_noises_are_refused(tmp_path):
    with open_run(tmp_path) as run:
        state = optax.chain(apj.add_correlated_noise(run), apj.add_correlated_noise(run)).init(PARAMS)
        with pytest.raises(ap.InvalidArgument, match="has 2 noise states"):
            apj.split(state)


def test_parameters_without_noise_are_refused(tmp_path):
    """Trained beside those of the run, they would be released as they are."""
    more = {**PARAMS, "extra": jnp.zeros(2)}
    labels = {"w": "noisy", "b": "noisy", "extra": "bare"}
    with open_run(tmp_path) as run:
        noisy = optax.chain(apj.add_correlated_noise(run), optax.sgd(0.1))
        optimizer = optax.multi_transform({"noisy": noisy, "bare": optax.sgd(0.1)}, labels)
        _, state = optimizer.update(more, optimizer.init(more), more)
        for params in (more, PARAMS):
            with pytest.raises(ap.Refused, match="Found PartitionState"):
                apj.commit(run, state, params, run.batch(0).indices)
        with pytest.raises(ap.InvalidArgument, match="The run makes noise for the arrays"):
            noisy.init(more)
        _, state = noisy.update(PARAMS, noisy.init(PARAMS), PARAMS)
        with pytest.raises(ap.InvalidArgument, match="The parameters have"):
            apj.commit(run, state, more, run.batch(0).indices)


def test_models_trained_side_by_side_with_one_noise_are_refused(tmp_path):
    """The difference of two of them would have no noise at all."""
    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run, "device")
        several = jax.tree.map(lambda p: jnp.stack([p, p + 1.0]), PARAMS)
        updates, states = jax.lax.map(lambda one: optimizer.update(one, optimizer.init(PARAMS)), several)
        assert np.allclose(updates["w"][1] - updates["w"][0], 1.0)
        with pytest.raises(ap.InvalidArgument, match="The parameters have"):
            apj.commit(run, jax.tree.map(lambda part: part[0], states), updates, run.batch(0).indices)


def test_losses_and_raw_gradients_are_not_taken_beside_the_noise(tmp_path):
    with open_run(tmp_path) as run:
        for after_noise in (optax.contrib.reduce_on_plateau(), optax.polyak_sgd()):
            optimizer = optax.chain(apj.add_correlated_noise(run), after_noise)
            with pytest.raises(ap.Refused, match="extra arguments, which get no noise: value"):
                optimizer.update(PARAMS, optimizer.init(PARAMS), PARAMS, value=1.0)


@pytest.mark.parametrize(("clip_norm", "noise_std"), [(1e-31, 1.0), (1e-20, 1e-15), (1e31, 1.0), (1e20, 1e20)])
def test_noise_that_float32_cannot_hold_is_refused(tmp_path, clip_norm, noise_std):
    from antiphase.strategies import Identity
    from tests.jax.plans import plan_for, run_for

    made = plan_for(Identity(4), noise_std=noise_std, clip_norm=clip_norm)
    with pytest.raises(ap.Refused, match=r"clip_norm|clipping norm"):
        run_for(made, tmp_path, PARAMS)
