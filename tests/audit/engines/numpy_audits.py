"""What audits of a loop in NumPy share: one call for one audit, with every participation that has a sampler."""

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
    return plan_for(ap.Mechanism(BANDED, ap.BallsInBins(3, 4), noise_std), CLIP, EXAMPLES, 30)


def released(directory, given=None, seed=1, **options):
    options = {"canaries": CANARIES, "quiet": QUIET, "secret": ap.Secret.insecure(seed), **options}
    return drive_numpy(plan() if given is None else given, directory, **options)


def audit(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    return evaluate(given, released(directory, given, seed, **options))
