"""`model.fit` of Keras with a plan, against examples clipped one by one; kills and resumes; what is refused."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
from tests.jax import keras_training as kt
from tests.jax.keras_training import BATCH, CLIP, EXAMPLES, RATE, STEPS, WEIGHTS, X, Y, build, private, train

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, with NumPy 2
ROOT = Path(__file__).parents[2]


def by_hand(start, directory):
    """SGD in float64, on the batches and with the noise that the run itself gives out."""

    def loss(params, x, y, weight):
        first, b, second, c = params
        logits = jnp.tanh(x @ first + b) @ second + c
        return -weight * jax.nn.log_softmax(logits)[y]

    params, sizes = [np.asarray(p, np.float64) for p in start], []
    named = {f"[{i}]": ap.Leaf(p.shape) for i, p in enumerate(params)}
    with kt.patch("antiphase._run.opening.fresh_run_id", lambda: kt.RUN_ID):
        run = ap.Run.open(kt.plan(), directory, leaves=named, examples=EXAMPLES, secret=ap.Secret.insecure(8))
    with run:
        for t in range(STEPS):
            total = [np.zeros_like(p) for p in params]
            batch = run.batch(t)
            used = batch.indices[batch.mask]
            sizes.append(len(used))
            for i in used:
                single = [jnp.asarray(p, jnp.float32) for p in params]
                g = [np.asarray(leaf, np.float64) for leaf in jax.grad(loss)(single, X[i], Y[i], WEIGHTS[i])]
                factor = min(1.0, CLIP / np.sqrt(sum(np.square(leaf).sum() for leaf in g)))
                total = [a + factor * b for a, b in zip(total, g, strict=True)]
            noise = run.gradient_noise(t)
            params = [p - RATE * (a + z) / BATCH for p, a, z in zip(params, total, noise, strict=True)]
            run.commit(t, bytes(32))
    return np.concatenate([p.reshape(-1) for p in params]), sizes


def test_fit_is_sgd_on_clipped_sums_with_the_noise_of_the_run(tmp_path):
    model = build()
    start = model.get_weights()
    made, report = train(model, tmp_path / "run")
    wanted, sizes = by_hand(start, tmp_path / "hand")
    assert 0 in sizes
    assert max(sizes) > 1
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    assert (report.steps_run, report.rewinds) == (STEPS, 0)
    assert model.evaluate(X, Y, verbose=0)  # the model is its own again
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("source", ["host", "device"])
def test_a_killed_process_is_resumed_by_running_the_program_again(tmp_path, source):
    """It died in the second step of its second epoch; the seeds of the dropout and the moments of Adam are restored."""
    whole, _ = train(build(dropout=0.5, optimizer="adam"), tmp_path / "whole", source=source)
    if source == "host":
        command = [sys.executable, "-m", "tests.jax.keras_training", str(tmp_path / "killed"), "4"]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 9
    else:
        stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: stop_in_third())
        count = iter(range(3))

        def stop_in_third():
            if next(count) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(build(dropout=0.5, optimizer="adam"), tmp_path / "killed", [stop], source=source)
    other = build(seed=9, dropout=0.5, optimizer="adam")  # its weights come from the checkpoint
    resumed, report = train(other, tmp_path / "killed", source=source)
    assert resumed.tobytes() == whole.tobytes()
    assert (report.steps_run, report.rewinds) == (STEPS, 0)
    again, _ = train(build(seed=5, dropout=0.5, optimizer="adam"), tmp_path / "killed", source=source)
    assert again.tobytes() == whole.tobytes()  # nothing left to do


def test_dropout_differs_between_examples_and_steps():
    from antiphase.jax.keras import _seed_of

    state = jnp.array([3, 0], jnp.uint32)
    seeds = {_seed_of(state, i).tobytes() for i in range(-1, 50)}
    assert len(seeds) == 51
    after = _seed_of(state, -1)
    assert not seeds & {_seed_of(after, i).tobytes() for i in range(-1, 50)}


@pytest.mark.parametrize("asked", [False, True])
def test_metrics_of_training_examples_are_given_only_if_asked_for(tmp_path, asked):
    model = build()
    with private(model, tmp_path, training_metrics=asked):
        history = model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0, validation_data=(X, Y))
    names = {"val_loss", "val_accuracy"} | ({"loss", "accuracy"} if asked else set())
    assert set(history.history) == names
    assert all(np.isfinite(values).all() for values in history.history.values())


def test_more_epochs_can_follow_up_to_the_end_of_the_plan(tmp_path):
    model = build()
    with private(model, tmp_path) as made:
        for _ in range(2):
            model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0)
        assert made.run.committed == STEPS
        with pytest.raises(ap.Refused, match="The plan has 8 steps, of which 8 are done"):
            model.fit(X, Y, steps_per_epoch=2)


def batch_norm():
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


@keras.saving.register_keras_serializable()
class Counting(keras.layers.Layer):
    """Keeps the mean of its inputs, as a normalisation might."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(), trainable=False, initializer="zeros", name="mean")

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * x.mean())
        return x


def counting():
    model = keras.Sequential([keras.Input((3,)), Counting(), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class OwnStep(keras.Sequential):
    def train_step(self, state, data):
        return super().train_step(state, data)


def own_step():
    model = OwnStep([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


REFUSED = {
    "batch_normalization": (batch_norm, "normalises over the batch"),
    "counting": (counting, r"updates the variable .*mean"),
    "own step": (own_step, "train_step of its own"),
    "accumulation": (lambda: build(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)), "accumulates"),
    "loss scale": (lambda: build(optimizer=keras.optimizers.SGD(0.1, loss_scale_factor=8.0)), "scales the loss"),
    "loss scaling": (
        lambda: build(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))),
        "scales the loss",
    ),
    "executions": (lambda: build(steps_per_execution=2), "steps_per_execution=2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_void_the_guarantee_is_refused(tmp_path, name):
    make, match = REFUSED[name]
    model = make()
    with pytest.raises(ap.Refused, match=match), private(model, tmp_path):
        model.fit(X, Y, steps_per_epoch=2, verbose=0)


OPTIONS = {
    "validation_split": {"validation_split": 0.1},
    "class_weight": {"class_weight": {0: 1.0, 1: 2.0}},
    "shuffle": {"shuffle": True},
    "initial_epoch": {"initial_epoch": 1},
    "batch_size": {"batch_size": 3},
    "sample_weight": {"sample_weight": np.ones((EXAMPLES, 2))},
    "unknown": {"unknown": 1},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_the_run_decides_are_refused(tmp_path, name):
    model = build()
    with private(model, tmp_path), pytest.raises(ap.AntiphaseError, match=name):
        model.fit(X, Y, **OPTIONS[name])


@pytest.mark.parametrize(
    "data", [(X[1:], Y), (X, Y[1:]), (X, None), (iter([(X, Y)]), None), ([X, X[1:]], Y)], ids=range(5)
)
def test_data_that_are_not_the_examples_are_refused(tmp_path, data):
    model = build()
    with private(model, tmp_path), pytest.raises(ap.InvalidArgument, match="fit"):
        model.fit(*data)


def test_batches_of_ones_own_are_refused(tmp_path):
    model = build()
    with private(model, tmp_path):
        with pytest.raises(ap.Refused, match="train_on_batch"):
            model.train_on_batch(X[:4], Y[:4])
        with pytest.raises(ap.Refused, match="already private"):
            private(model, tmp_path)
    model.train_on_batch(X[:4], Y[:4])


def test_a_checkpoint_that_is_gone_is_refused(tmp_path):
    train(build(), tmp_path)
    (tmp_path / "private" / "keras-checkpoint").unlink()
    with pytest.raises(ap.Refused, match="its checkpoint is missing"):
        train(build(), tmp_path)


def test_a_model_that_is_not_compiled_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="not compiled"):
        private(keras.Sequential([keras.layers.Dense(2)]), tmp_path)
    with pytest.raises(ap.InvalidArgument, match=r"must be a keras\.Model"):
        private(object(), tmp_path)
