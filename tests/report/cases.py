"""Small plans and runs to report on."""

import warnings
from dataclasses import replace
from pathlib import Path

with warnings.catch_warnings():  # typer before 0.21, which Flower asks for, uses a name that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

import antiphase as ap
from antiphase._cli.app import app
from antiphase.strategies import Strategy, Toeplitz

STEPS = 24


def command(*arguments: object):
    """What `antiphase` with these arguments prints."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def made_plan(
    strategy: Strategy | None = None, participation: ap.MinSeparation | ap.FixedEpochs | ap.CyclicPoisson | None = None
) -> ap.Plan:
    strategy = strategy or Toeplitz([1.0, 0.5, 0.25], STEPS)
    participation = participation or ap.MinSeparation(6)
    mechanism = ap.Mechanism(strategy, participation, 3.0)
    guarantee = ap.epsilon(mechanism, 1e-6)
    budget = ap.Budget(max(8.0, guarantee.value), 1e-6)
    problem = ap.Problem(strategy.steps, budget, examples=48, participation=participation, unit="device")
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def searched_plan() -> ap.Plan:
    problem = ap.Problem(STEPS, ap.Budget(2.0, 1e-6), participation=ap.FixedEpochs(4, 6))
    return ap.plan(problem, ["identity", "toeplitz", "blt", "tree"])


def made_run(directory: Path, plan: ap.Plan, steps: int, label: str = "first model") -> None:
    with ap.Run.open(plan, directory, leaves=[(2,)], examples=48) as run:
        for step in range(steps):
            run.batch(step)
            run.commit(step, ap.digest(run.gradient_noise(step)))
        if steps:
            run.publish(label)


def with_less_noise(plan: ap.Plan, share: float) -> ap.Mechanism:
    return replace(plan.mechanism, noise_std=share * plan.mechanism.noise_std)
