"""`model.fit` of Keras with a plan, against examples clipped one by one; kills and resumes; what is refused."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase._samplers import Batch
from tests.jax import keras_training as kt
from tests.jax.keras_training import BATCH, CLIP, EXAMPLES, RATE, STEPS, WEIGHTS, X, Y, build, private, train

keras = pytest.importorskip("keras")
import antiphase.jax.keras  # noqa: E402

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


class RaiseIn(keras.callbacks.Callback):
    def __init__(self, step, error):
        super().__init__()
        self.step, self.error, self.taken = step, error, 0

    def on_train_batch_end(self, batch, logs=None):
        self.taken += 1
        if self.taken == self.step:
            raise self.error


@pytest.mark.parametrize("swap", [False, True])
def test_moving_averages_are_resumed(tmp_path, swap):
    """Keras puts them in place of the weights at the end of training; SwapEMAWeights does so after every epoch."""

    def averaged(seed, directory, *callbacks):
        model = build(seed, optimizer=keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5))
        swaps = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)] if swap else []
        return train(model, directory, [*swaps, *callbacks])

    whole, _ = averaged(0, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        averaged(0, tmp_path / "killed", RaiseIn(6, KeyboardInterrupt()))
    resumed, report = averaged(1, tmp_path / "killed")
    again, _ = averaged(2, tmp_path / "killed")
    assert report.rewinds == 0
    assert whole.tobytes() == resumed.tobytes() == again.tobytes()


def momentum(seed=0):
    return build(seed, optimizer=keras.optimizers.SGD(RATE, momentum=0.9))


class Visit(keras.callbacks.Callback):
    """Calls a function with the model before training (batch 0) or after a batch, counting from 1."""

    def __init__(self, batch, act):
        super().__init__()
        self.batch, self.act, self.taken = batch, act, 0

    def visit(self):
        if self.taken == self.batch:
            self.model.jax_state_sync()
            self.act(self.model)

    def on_train_begin(self, logs=None):
        self.visit()

    def on_train_batch_end(self, batch, logs=None):
        self.taken += 1
        self.visit()


def fit_two_epochs(directory, *callbacks):
    """Train for two epochs of four steps. The checkpoint is at step 4."""
    model = momentum()
    with private(model, directory) as made:
        model.fit(X, Y, epochs=2, steps_per_epoch=4, verbose=0, sample_weight=WEIGHTS, callbacks=list(callbacks))
        return np.concatenate([weight.reshape(-1) for weight in model.get_weights()]), made.report().rewinds


def killed_after_seven_steps(directory, *callbacks):
    """Return the values of the weights and of the optimizer's variables after step 7."""
    seen = {}

    def look(model):
        for name, variables in ("weights", model.trainable_variables), ("optimizer", model.optimizer.variables):
            seen[name] = [np.asarray(variable.value) for variable in variables]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_two_epochs(directory, *callbacks, Visit(7, look))
    return seen


@pytest.mark.parametrize("parts", [["weights"], ["optimizer"], ["weights", "optimizer"]], ids=" and ".join)
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_no_variable_of_replayed_steps_gets_their_noise_again(tmp_path, batch, parts):
    """Steps 5 to 7 are replayed. A callback loads what was there after step 7, with the noise of these steps."""
    seen = killed_after_seven_steps(tmp_path / "run")

    def restore(model):
        now = {"weights": model.trainable_variables, "optimizer": model.optimizer.variables}
        for part in parts:
            for variable, value in zip(now[part], seen[part], strict=True):
                variable.assign(value)

    with pytest.raises(ap.Refused, match=f"Step {4 + batch} was committed before .* a callback changed"):
        fit_two_epochs(tmp_path / "run", Visit(batch, restore))
    resumed, rewinds = fit_two_epochs(tmp_path / "run")
    assert rewinds == 0
    assert resumed.tobytes() == fit_two_epochs(tmp_path / "whole")[0].tobytes()


def test_variables_that_contain_the_noise_are_refused_also_after_a_step_was_replaced(tmp_path):
    """The step is replaced because the labels changed. Then later steps are no longer in the ledger."""
    seen = killed_after_seven_steps(tmp_path)

    def restore(model):
        for variable, value in zip(model.trainable_variables, seen["weights"], strict=True):
            variable.assign(value)

    model = momentum()
    with private(model, tmp_path) as made:
        with pytest.warns(RuntimeWarning, match="replaced"), pytest.raises(ap.Refused, match="Step 6 was committed"):
            model.fit(X, 1 - Y, epochs=2, steps_per_epoch=4, verbose=0, callbacks=[Visit(2, restore)])
        assert made.run.committed == 6


class StopAndLoad(keras.callbacks.Callback):
    """Stops after the first batch, and loads values when training ends."""

    def __init__(self, part, values):
        super().__init__()
        self.part, self.values = part, values

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True

    def on_train_end(self, logs=None):
        model = self.model
        variables = {"weights": model.trainable_variables, "optimizer": model.optimizer.variables}[self.part]
        for variable, value in zip(variables, self.values, strict=True):
            variable.assign(value)


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_no_checkpoint_has_variables_that_contain_the_noise_of_replayed_steps(tmp_path, part):
    """Step 5 is replayed, then a callback loads what was there after step 7, and training ends."""
    seen = killed_after_seven_steps(tmp_path / "run")
    fit_two_epochs(tmp_path / "run", StopAndLoad(part, seen[part]))
    resumed, rewinds = fit_two_epochs(tmp_path / "run")
    assert rewinds == 0
    assert resumed.tobytes() == fit_two_epochs(tmp_path / "whole")[0].tobytes()


def test_callbacks_may_change_variables_as_they_did_before(tmp_path):
    def callbacks():
        return keras.callbacks.LearningRateScheduler(lambda epoch: RATE / (1 + epoch)), Visit(6, lambda model: None)

    killed_after_seven_steps(tmp_path / "run", *callbacks())
    resumed, rewinds = fit_two_epochs(tmp_path / "run", *callbacks())
    assert rewinds == 0
    assert resumed.tobytes() == fit_two_epochs(tmp_path / "whole", *callbacks())[0].tobytes()


def test_validation_may_come_between_replayed_steps(tmp_path):
    """Keras then gives the arrays of the variables away, and they cannot be read any more."""
    killed_after_seven_steps(tmp_path / "run")
    resumed, rewinds = fit_two_epochs(tmp_path / "run", Visit(1, lambda model: model.evaluate(X, Y, verbose=0)))
    assert rewinds == 0
    assert resumed.tobytes() == fit_two_epochs(tmp_path / "whole")[0].tobytes()


@pytest.mark.parametrize("every", [1, "epoch"])
def test_weights_of_steps_that_are_replayed_are_not_trained_again(tmp_path, every):
    """A backup of every step has weights with noise that the replayed steps use again."""

    def backed_up(*callbacks):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=every)
        return train(build(optimizer="adam"), tmp_path / "run", [backup, *callbacks])

    with pytest.raises(KeyboardInterrupt):
        backed_up(RaiseIn(4, KeyboardInterrupt()))
    if every == 1:
        with pytest.raises(ap.Refused, match=r"Step 2 was committed before .* a callback changed"):
            backed_up()
    resumed, report = train(build(optimizer="adam"), tmp_path / "run") if every == 1 else backed_up()
    assert report.rewinds == 0
    assert resumed.tobytes() == train(build(optimizer="adam"), tmp_path / "whole")[0].tobytes()


def test_first_batches_are_not_used_again_if_the_iterator_of_keras_ends(tmp_path):
    model, ending = build(), RaiseIn(1, StopIteration())
    with private(model, tmp_path) as made:
        with pytest.warns(UserWarning, match="ran out"), pytest.raises(ap.Refused, match="different batch"):
            model.fit(X, Y, epochs=4, steps_per_epoch=2, verbose=0, callbacks=[ending])
        assert made.run.committed == 1


def test_a_callback_that_calls_fit_does_not_mix_up_the_batches(tmp_path):
    """The outer fit had already fetched batches; one of them was used for a later step."""
    model = build()
    nested = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: model.fit(X, Y, epochs=1, steps_per_epoch=1, verbose=0)
    )
    with private(model, tmp_path) as made:
        with pytest.raises(ap.Refused, match="different batch"):
            model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0, callbacks=[nested])
        assert made.run.committed == 3


@pytest.mark.parametrize("source", ["host", "device"])
@pytest.mark.parametrize("late", [False, True])
def test_after_an_interrupted_step_fit_continues(tmp_path, monkeypatch, source, late):
    """Ctrl-C mostly comes while `commit` waits for the device; Keras then keeps the weights before the step."""
    commit, count = apj.commit, iter(range(3))

    def interrupted(*given):
        is_last = next(count, None) == 2
        if late or not is_last:
            commit(*given)
        if is_last:
            raise KeyboardInterrupt

    model, whole = build(optimizer="adam"), build(optimizer="adam")
    with private(whole, tmp_path / "whole", source=source):
        whole.fit(X, Y, epochs=4, steps_per_epoch=2, verbose=0)
    monkeypatch.setattr(antiphase.jax.keras, "commit", interrupted)
    with private(model, tmp_path / "run", source=source) as made:
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0)
        model.fit(X, Y, epochs=3, steps_per_epoch=2, verbose=0)
        assert (made.report().steps_run, made.report().rewinds) == (STEPS, 0)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), whole.get_weights(), strict=True))


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("held_out", [None, (X + 1.0, Y)], ids=["no validation", "validation"])
def test_a_first_step_that_fails_loses_no_weights(tmp_path, monkeypatch, at, held_out):
    """Keras takes the values out of the variables before the first step of every epoch."""
    commit, count, before = antiphase.jax.keras.commit, iter(range(STEPS)), []

    def interrupted(*given):
        if next(count, None) == at:
            raise KeyboardInterrupt
        commit(*given)

    def look(epoch, logs):
        model.optimizer.learning_rate = RATE / (1 + epoch)  # after the last step, so it is not in that step's state
        before[:] = [np.asarray(value) for value in made._everything()]

    monkeypatch.setattr(antiphase.jax.keras, "commit", interrupted)
    model = momentum()
    with private(model, tmp_path) as made:
        callback = keras.callbacks.LambdaCallback(on_epoch_begin=look)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0, validation_data=held_out, callbacks=[callback])
        assert all(np.array_equal(a, b) for a, b in zip(before, made._everything(), strict=True))
        assert len(model.get_weights()) == 4
        model.fit(X, Y, steps_per_epoch=2, verbose=0)
        assert (made.run.committed, made.report().rewinds) == (at + 2, 0)


def test_a_first_step_that_fails_is_told_as_it_is_with_moving_averages(tmp_path, monkeypatch):
    """When `fit` ends, Keras reads them from the variables."""
    monkeypatch.setattr(antiphase.jax.keras, "commit", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
    model = build(optimizer=keras.optimizers.SGD(RATE, use_ema=True))
    with private(model, tmp_path), pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, steps_per_epoch=2, verbose=0)


def test_a_refused_model_keeps_its_weights(tmp_path):
    model = counting()
    before = model.get_weights()
    with private(model, tmp_path), pytest.raises(ap.Refused, match="updates the variable"):
        model.fit(X, Y, steps_per_epoch=2, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("name", ["add_correlated_noise", "save"])
def test_fit_continues_after_an_interrupt_while_it_opens_the_run(tmp_path, monkeypatch, name):
    interrupt_once(monkeypatch, name)
    model = build()
    with private(model, tmp_path) as made:
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, steps_per_epoch=2, verbose=0)
        model.fit(X, Y, steps_per_epoch=2, verbose=0)
        assert (made.report().steps_run, made.report().rewinds) == (2, 0)


@pytest.mark.parametrize("name", ["load", "_digest_of"])
def test_fit_restores_after_an_interrupt_while_it_restores(tmp_path, monkeypatch, name):
    killed_after_seven_steps(tmp_path / "run")
    interrupt_once(monkeypatch, name)
    model = momentum(seed=9)
    with private(model, tmp_path / "run") as made:
        with pytest.raises(KeyboardInterrupt):
            model.fit(X, Y, epochs=2, steps_per_epoch=4, verbose=0, sample_weight=WEIGHTS)
        model.fit(X, Y, epochs=2, steps_per_epoch=4, verbose=0, sample_weight=WEIGHTS)
        assert (made.report().steps_run, made.report().rewinds) == (STEPS, 0)
    whole = fit_two_epochs(tmp_path / "whole")[0]
    assert np.concatenate([weight.reshape(-1) for weight in model.get_weights()]).tobytes() == whole.tobytes()


def interrupt_once(monkeypatch, name):
    """Let the first call of a function of the module raise `KeyboardInterrupt`."""
    original, first = getattr(antiphase.jax.keras, name), iter([True])

    def interrupted(*given):
        if next(first, False):
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(antiphase.jax.keras, name, interrupted)


def test_a_closed_object_does_not_train(tmp_path):
    """The model has its own train function again, which neither clips nor adds noise."""
    model = build()
    with private(model, tmp_path) as made:
        model.fit(X, Y, steps_per_epoch=2, verbose=0)
    with pytest.raises(ap.Refused, match="closed"):
        made.fit(X, Y, steps_per_epoch=2, verbose=0)


class Rows(keras.layers.Layer):
    """Two seed generators, whose numbers are added to the features, so that the gradient shows them."""

    def __init__(self):
        super().__init__()
        self.generators = [keras.random.SeedGenerator(5), keras.random.SeedGenerator(5)]

    def call(self, x):
        return sum(x + 3.0 * keras.random.normal(keras.ops.shape(x), seed=generator) for generator in self.generators)


def sums_with_and_without(tmp_path, monkeypatch, left_out):
    """The sum of the clipped gradients of the first step, if its batch is everybody, or everybody but one."""
    sums = []
    original = antiphase.jax.keras.clipped_sum

    def seen(*given, **options):
        total = original(*given, **options)

        def call(*batch):
            found, each = total(*batch)
            jax.debug.callback(lambda *arrays: sums.append(np.concatenate([np.ravel(a) for a in arrays])), *found)
            return found, each

        return call

    monkeypatch.setattr(antiphase.jax.keras, "clipped_sum", seen)
    for name, indices in ("with", np.arange(EXAMPLES)), ("without", np.delete(np.arange(EXAMPLES), left_out)):
        keras.utils.set_random_seed(0)
        hidden = [Rows(), keras.layers.Dense(4), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        batch = Batch(indices, np.ones(len(indices), bool))
        everybody = kt.patch.object(ap.Run, "_batch", lambda run, step, batch=batch: batch)
        with everybody, private(model, tmp_path / f"{name}-{left_out}"):
            model.fit(X * 10.0, Y, steps_per_epoch=1, verbose=0)
        jax.effects_barrier()
    return sums


@pytest.mark.parametrize("left_out", [0, 7])
def test_the_random_numbers_of_a_layer_belong_to_the_example_and_not_to_its_row(tmp_path, monkeypatch, left_out):
    """With a known seed for each row, all examples after the one left out would change: by about 3 clipping norms."""
    one, other = sums_with_and_without(tmp_path, monkeypatch, left_out)
    assert 0.5 * CLIP < np.linalg.norm(one - other) <= CLIP * (1 + 1e-5)


def test_random_numbers_of_layers_come_from_the_secret_and_not_from_the_model(tmp_path):
    """Two models with other seeds have the same dropout in one run; and the seeds in the model stay as they were."""
    made = []
    for seed in (3, 4):
        model = build(dropout=0.5)
        model.layers[1].seed_generator.state.assign([seed, 0])
        before = [np.asarray(v.value) for v in model.non_trainable_variables]
        weights, _ = train(model, tmp_path / str(seed))
        made.append(weights)
        assert all(np.array_equal(a, b.value) for a, b in zip(before, model.non_trainable_variables, strict=True))
    assert made[0].tobytes() == made[1].tobytes()


def test_dropout_differs_between_layers_examples_and_steps(tmp_path):
    from antiphase.jax.keras import _seed_of

    model = build()
    with private(model, tmp_path) as made:
        model.fit(X, Y, steps_per_epoch=1, verbose=0)
        keys = [key for step in range(3) for key in apj.example_keys(made.run, step, np.arange(20))]
    seeds = {_seed_of(key, layer, jnp.uint32).tobytes() for key in keys for layer in range(3)}
    assert len(seeds) == 3 * 20 * 3


@pytest.mark.parametrize("asked", [False, True])
def test_metrics_of_training_examples_are_given_only_if_asked_for(tmp_path, asked):
    model = build()
    with private(model, tmp_path, training_metrics=asked):
        history = model.fit(X, Y, epochs=2, steps_per_epoch=2, verbose=0, validation_data=(X + 1.0, Y))
    names = {"val_loss", "val_accuracy"} | ({"loss", "accuracy"} if asked else set())
    assert set(history.history) == names
    assert all(np.isfinite(values).all() for values in history.history.values())


def test_metrics_of_training_examples_are_not_given_as_those_of_validation(tmp_path):
    """Early stopping would depend on them without noise. Other rows of the same array are other examples."""
    both = np.concatenate([X, X])
    shared = {
        "the same": (X, (X, Y)),
        "some of them": (X, (X[::2], Y[::2])),
        "overlap": (both[:EXAMPLES], (both[EXAMPLES - 1 :], np.r_[Y, 0])),
        "one of two inputs": ({"a": X, "b": X + 1.0}, ({"a": X + 1.0, "b": X}, Y)),
    }
    model = build()
    for x, held_out in shared.values():
        with private(model, tmp_path / "refused"), pytest.raises(ap.Refused, match="share memory"):
            model.fit(x, Y, steps_per_epoch=2, verbose=0, validation_data=held_out)
    with private(model, tmp_path / "asked", training_metrics=True):
        model.fit(X, Y, steps_per_epoch=2, verbose=0, validation_data=(X, Y))
    model = build()
    with private(model, tmp_path / "fine"):
        for rows in (slice(EXAMPLES, None), slice(1, None, 2)):
            given = both[:EXAMPLES] if rows.step is None else both[::2]
            model.fit(given, Y, steps_per_epoch=2, verbose=0, validation_data=(both[rows], Y))


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
    "own step": (own_step, "custom train_step"),
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
