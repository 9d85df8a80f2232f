"""What audits of the Flower integration share: one call for one audit."""

import antiphase as ap
import antiphase.audit.flower as driver
from antiphase.audit import evaluate
from tests.audit.engines.models import BANDED, CLIP
from tests.audit.mechanisms import plan_for

CLIENTS, GOAL, SEPARATION = 48, 12, 4


def plan(noise_std=0.05, separation=SEPARATION):
    return plan_for(ap.Mechanism(BANDED, ap.MinSeparation(separation), noise_std), CLIP)


def released(directory, given=None, seed=1, **options):
    options = {"canaries": CLIENTS, "goal": GOAL, "quiet": 128, "secret": ap.Secret.insecure(seed), **options}
    return driver.drive(plan() if given is None else given, directory, **options)


def audit(directory, given=None, seed=1, **options):
    given = plan() if given is None else given
    return evaluate(given, released(directory, given, seed, **options))
