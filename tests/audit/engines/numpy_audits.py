"""What audits of a loop in NumPy share: one call for one audit, with every participation that has a sampler."""

from dataclasses import replace

import antiphase as ap
from antiphase.audit import drive_numpy, evaluate
from tests.audit.engines.models import BANDED, CANARIES, CLIP, EXAMPLES, QUIET, STEPS, plan
from tests.audit.mechanisms import plan_for

PLANS = {
    "min separation": plan(),
    "fixed epochs": plan(ap.FixedEpochs(3, 4)),
    "shuffled epochs": plan(ap.ShuffledEpochs(3, 4)),
    "poisson": plan(ap.Poisson(0.25), ap.strategies.Identity(STEPS)),
    "cyclic poisson": plan(ap.CyclicPoisson(4, 0.9), batch_size=27),
}


def bins_plan(noise_std=0.5):
    """Epsilon is about 22.5, from samples that are new each time. Noise follows from the plan, so the plan states 25:
    with new noise each time, a right loop would be flagged in up to 6 % of all runs."""
    sampled = plan_for(ap.Mechanism(BANDED, ap.BallsInBins(3, 4), noise_std), CLIP, EXAMPLES, 30)
    guarantee = replace(sampled.guarantee, value=25.0, method="certified sampling", entropy="0" * 64)
    budget = ap.Budget(25.0, sampled.problem.budget.delta)
    return replace(sampled, problem=replace(sampled.problem, budget=budget), guarantee=guarantee)


def released(directory, given=None, seed=1, **options):
    options = {"canaries": CANARIES, "quiet": QUIET, "secret": ap.Secret.insecure(seed), **options}
    return drive_numpy(plan() if given is None else given, directory, **options)


def audit(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    return evaluate(given, released(directory, given, seed, **options))
