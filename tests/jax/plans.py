"""What the tests of the JAX integration share: plans made by hand, runs, and the noise that an optimizer adds."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.strategies import Strategy

CLIP = 0.5


def plan_for(strategy: Strategy, noise_std: float = 3.0, clip_norm: float = CLIP, **options: Any) -> ap.Plan:
    participation = options.pop("participation", None) or ap.MinSeparation(4)
    mechanism = ap.Mechanism(strategy, participation, noise_std)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(min(max(8.0, guarantee.value), 1e10), 1e-6)
    deviation = "hardly any noise, for a test" if guarantee.value > 1e10 else ""
    problem = ap.Problem(steps=strategy.steps, budget=budget, participation=participation, clip_norm=clip_norm)
    return ap.Plan(problem, mechanism, guarantee, error=1.0, deviation=deviation)


def run_for(plan: ap.Plan, directory: Path, params: Any, **options: Any) -> ap.Run:
    secret = options.pop("secret", ap.Secret.insecure(8))
    return ap.Run.open(plan, directory, leaves=apj.leaves(params), secret=secret, **options)


def check_refused(run: ap.Run, update: Any, arguments: tuple[Any, ...], match: str) -> None:
    """A step that is refused raises outside of `jit`; inside, it is NaN on all devices and `commit` raises."""
    with pytest.raises(ap.AntiphaseError, match=match):
        update(*arguments)
    updates, state = jax.jit(update)(*arguments)
    assert np.isnan(flat(updates)).all()
    with pytest.raises(ap.AntiphaseError, match=match):
        apj.commit(run, state, updates)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(tree)])


def added(optimizer: optax.GradientTransformation, run: ap.Run, params: Any, *, micro: int = 1) -> np.ndarray:
    """What the optimizer adds to gradients of zero, a row a step; `micro` calls make a step."""
    nothing = jax.tree.map(jnp.zeros_like, params)
    update, state, rows = jax.jit(optimizer.update), optimizer.init(params), []
    for _ in range(run.steps):
        total = 0.0
        for _ in range(micro):
            updates, state = update(nothing, state, params)
            total = total + flat(updates)
        rows.append(total)
        apj.commit(run, state, updates)
    return np.stack(rows)


def whitened(noise: np.ndarray, plan: ap.Plan) -> np.ndarray:
    """The noise of all steps times the inverse root of what its covariance should be: white, if it is."""
    matrix = plan.mechanism.strategy.noising()
    scale = plan.mechanism.noise_std * plan.problem.clip_norm
    return np.linalg.solve(np.linalg.cholesky(matrix @ matrix.T), noise) / scale


def departures(noise: np.ndarray, plan: ap.Plan) -> dict[str, float]:
    """How far, in standard deviations, noise of shape (steps, parameters) is from sigma^2 clip^2 N N^T.

    Of w, which should be white: its mean, its variance, its product with itself some steps before, and the largest
    correlation of two steps and of two parameters, less what the largest of so many normals comes to.
    """
    w = whitened(noise, plan)
    found = {"mean": w.mean() * np.sqrt(w.size), "variance": (np.square(w).mean() - 1.0) * np.sqrt(w.size / 2.0)}
    for lag in (1, 2, 3):
        product = w[lag:] * w[:-lag]
        found[f"lag {lag}"] = product.mean() * np.sqrt(product.size)
    for name, rows in (("steps", w), ("parameters", w.T)):
        count, size = rows.shape
        largest = np.abs(np.triu(rows @ rows.T, 1)).max() / np.sqrt(size)
        found[f"largest between {name}"] = max(largest - np.sqrt(2.0 * np.log(count**2)), 0.0)
    return found


def is_right(noise: np.ndarray, plan: ap.Plan) -> bool:
    """Whether everything is within five standard deviations: right noise fails once in a million times."""
    return max(abs(value) for value in departures(noise, plan).values()) < 5.0
