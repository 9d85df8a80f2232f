"""A small regression trained for a few steps: what the tests of checkpoints and ledgers replay."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import Strategy, Toeplitz
from tests.jax.plans import run_for

EXAMPLES, STEPS = 60, 12
RNG = np.random.default_rng(5)
X = RNG.normal(size=(EXAMPLES, 4)).astype(np.float32)
Y = RNG.normal(size=(EXAMPLES, 2)).astype(np.float32)
PARAMS = {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.square(x @ params["w"] + params["b"] - y).mean()


def plan(strategy: Strategy | None = None) -> ap.Plan:
    strategy = strategy or Toeplitz([1.0, 0.5, 0.25], STEPS)
    participation = ap.CyclicPoisson(groups=3, rate=0.5)
    mechanism = ap.Mechanism(strategy, participation, noise_std=1.5)
    budget = ap.Budget(40.0, 1e-5)
    problem = ap.Problem(
        steps=STEPS, budget=budget, examples=EXAMPLES, batch_size=10, participation=participation, clip_norm=0.5
    )
    return ap.Plan(problem, mechanism, ap.epsilon(mechanism, budget.delta), error=1.0)


def open_run(directory: Path, made: ap.Plan | None = None, **options: Any) -> ap.Run:
    return run_for(made or plan(), directory, PARAMS, examples=EXAMPLES, **options)


def optimizer_for(run: ap.Run, source: str = "host") -> optax.GradientTransformation:
    return optax.chain(apj.add_correlated_noise(run, source), optax.scale(1 / 10), optax.adam(0.05))


def train(run: ap.Run, optimizer: Any, params: Any, state: Any, stop: int = STEPS) -> tuple[Any, Any]:
    """From where the state stands up to `stop`."""
    total = apj.clipped_sum(loss, run.plan.problem.clip_norm)

    @jax.jit
    def step(params: Any, state: Any, data: Any, mask: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(total(params, data, mask), state, params)
        return optax.apply_updates(params, updates), state

    start = int(state[0].step)
    for batch in apj.batches(run, (X, Y), multiple=32, start=start):
        if batch.step == stop:
            break
        params, state = step(params, state, batch.data, batch.mask)
        apj.commit(run, state, params, batch.indices)
    return params, state
