"""A small Keras model that a process trains, and may die in: python -m tests.jax.keras_training DIRECTORY STEP."""

import os
import sys
from pathlib import Path
from unittest.mock import patch

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import antiphase as ap
from antiphase.jax.keras import make_private
from antiphase.strategies import Toeplitz

EXAMPLES, STEPS, BATCH, CLIP, RATE = 24, 8, 2, 0.5, 0.3
RUN_ID = "fedcba9876543210" * 2
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(EXAMPLES, 3)).astype(np.float32), RNG.integers(0, 2, EXAMPLES)
WEIGHTS = RNG.uniform(0.5, 2.0, EXAMPLES).astype(np.float32)


def plan():
    sometimes = ap.CyclicPoisson(groups=2, rate=0.15)  # some batches are empty
    mechanism = ap.Mechanism(Toeplitz([1.0, 0.5], STEPS), sometimes, 2.0)
    budget = ap.Budget(40.0, 1e-5)
    problem = ap.Problem(
        steps=STEPS, budget=budget, examples=EXAMPLES, batch_size=BATCH, participation=sometimes, clip_norm=CLIP
    )
    return ap.Plan(problem, mechanism, ap.epsilon(mechanism, budget.delta), error=1.0)


def build(seed=0, *, dropout=0.0, optimizer=None, **options):
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(4, activation="tanh"), keras.layers.Dropout(dropout, seed=3)]
    model = keras.Sequential([keras.Input((3,)), *hidden, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer or keras.optimizers.SGD(RATE), loss=loss, metrics=["accuracy"], **options)
    return model


def private(model, directory, **options):
    """With the noise of one run id, so that two runs can be compared."""
    made = make_private(model, plan(), directory, examples=EXAMPLES, secret=ap.Secret.insecure(8), **options)
    original = made._open_run

    def opened():
        with patch("antiphase._run.opening.fresh_run_id", lambda: RUN_ID):
            return original()

    made._open_run = opened
    return made


class DieIn(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self.step, self.taken = step, 0

    def on_train_batch_end(self, batch, logs=None):
        self.taken += 1
        if self.taken == self.step:
            os._exit(9)


def train(model, directory, callbacks=(), **options):
    with private(model, directory, **options) as made:
        model.fit(X, Y, epochs=4, steps_per_epoch=2, verbose=0, sample_weight=WEIGHTS, callbacks=list(callbacks))
        report = made.report()
    return np.concatenate([weight.reshape(-1) for weight in model.get_weights()]), report


if __name__ == "__main__":
    train(build(dropout=0.5, optimizer="adam"), Path(sys.argv[1]), [DieIn(int(sys.argv[2]))])
