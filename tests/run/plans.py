"""Small plans that are made without the planner, and a deterministic training step that can be replayed."""

import numpy as np

import antiphase as ap
from antiphase._accounting import Budget, Mechanism, epsilon
from antiphase._plan import Plan, curve_steps
from antiphase._problem import Problem
from antiphase.strategies import BLT, Banded, BandedInverse, Identity, Stamped, Strategy, Toeplitz, Tree

STEPS = 12
LEAVES = [(3, 2), (5,)]

STRATEGIES: dict[str, Strategy] = {
    "identity": Identity(STEPS),
    "banded": Banded(Toeplitz([1.0, 0.5, 0.25], STEPS).columns()),
    "toeplitz": Toeplitz([1.0, 0.5, 0.25], STEPS),
    "blt": BLT([0.9, 0.5], [0.1, 0.2], STEPS),
    "banded-inverse": BandedInverse([1.0, -0.5, -0.125], STEPS),
    "tree": Tree(STEPS),
    "stamped": Stamped(Tree(4), 3),
}


def plan_for(strategy: Strategy, participation: ap.MinSeparation | None = None, noise_std: float = 3.0) -> Plan:
    participation = participation or ap.MinSeparation(4)
    mechanism = Mechanism(strategy, participation, noise_std)
    guarantee = epsilon(mechanism, 1e-6)
    budget = Budget(max(8.0, guarantee.value), 1e-6)
    problem = Problem(steps=strategy.steps, budget=budget, examples=40, batch_size=10, participation=participation)
    return Plan(problem, mechanism, guarantee, error=1.0)


def candidate_of(plan: Plan, name: str) -> ap.Candidate:
    """Return the `Candidate` that the planner would list for the mechanism of the plan."""
    mechanism, bound = plan.mechanism, plan.guarantee
    return ap.Candidate(
        family="unknown",
        name=name,
        error=plan.error,
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.effective_noise_multiplier,
        epsilon=bound.value,
        kind=bound.kind,
        memory_copies=mechanism.strategy.memory_copies,
        seconds=0.1,
        participation=mechanism.participation,
        per_step=(1.0,) * len(curve_steps(plan.steps)),
    )


def take(run, step: int, model: list[np.ndarray], data_seed: int = 0) -> list[np.ndarray]:
    """Return the model after one step, with an artificial gradient that depends on batch, model and `data_seed`.

    The noise of the run is added to the gradient.
    """
    indices, mask = run.batch(step)
    noise = run.gradient_noise(step)
    pull = np.sin(indices[mask] + data_seed).sum()
    return [m - 0.1 * (np.cos(m) * pull + n.astype(np.float64)) for m, n in zip(model, noise, strict=True)]


def train(run, model: list[np.ndarray], stop: int, start: int | None = None, data_seed: int = 0) -> list[np.ndarray]:
    for step in range(run.committed if start is None else start, stop):
        model = take(run, step, model, data_seed)
        run.commit(step, ap.digest(model))
    return model


def fresh_model() -> list[np.ndarray]:
    return [np.zeros(shape) for shape in LEAVES]
