"""One mechanism for every participation, at a given epsilon: what the audits of this folder are tried on."""

import math
from functools import cache

import antiphase as ap

BANDED = ap.strategies.Toeplitz([1.0, 0.5, 0.25], 16)
CASES = {
    "single": (ap.strategies.Toeplitz([1.0, 0.5, 0.25], 16), ap.SingleParticipation(), "zero-out", None),
    "every step": (ap.strategies.Identity(16), ap.EveryStep(), "zero-out", None),
    "fixed epochs": (ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], 16), ap.FixedEpochs(4, 4), "zero-out", None),
    "shuffled epochs": (BANDED, ap.ShuffledEpochs(4, 4), "zero-out", None),
    "min separation": (BANDED, ap.MinSeparation(4), "zero-out", None),
    "min separation, replace": (BANDED, ap.MinSeparation(4), "replace", None),
    "poisson": (ap.strategies.Identity(16), ap.Poisson(0.25), "zero-out", None),
    "cyclic poisson": (BANDED, ap.CyclicPoisson(4, 0.5), "zero-out", None),
    "fixed size": (BANDED, ap.FixedSize(4, 50), "replace", 400),
    "balls in bins": (BANDED, ap.BallsInBins(4, 4), "zero-out", None),
    "poisson min separation": (BANDED, ap.PoissonMinSeparation(4, 0.5), "zero-out", None),
}
RANDOM = ("poisson", "cyclic poisson", "fixed size", "balls in bins", "poisson min separation")


def rounded_up(value):
    """The next number with at most three decimals. Noise is derived from the fingerprint of a plan, so the last digits
    of a calibration, which differ between machines, would give each kind of machine noise of its own. An audit flags a
    right mechanism under up to 6 % of all noise."""
    return math.ceil(1000.0 * value) / 1000.0


@cache
def mechanism(name, epsilon=4.0, delta=1e-5):
    """Calibrated to epsilon, or, if batches are random, with half the noise that this takes without amplification."""
    strategy, participation, adjacency, examples = CASES[name]
    budget = ap.Budget(epsilon, delta)
    noise_std = ap.calibrate(strategy, participation.worst_case, budget, adjacency).mechanism.noise_std
    if name in RANDOM:
        noise_std /= 2
    return ap.Mechanism(strategy, participation, rounded_up(noise_std), adjacency, examples)


def plan_for(given, clip_norm=1.0, examples=None, batch_size=None, delta=1e-5):
    """A plan by hand around a mechanism."""
    guarantee = ap.epsilon(given, delta)
    problem = ap.Problem(
        steps=given.strategy.steps,
        budget=ap.Budget(rounded_up(max(guarantee.value, 1.0)), delta),
        examples=examples,
        batch_size=batch_size,
        participation=given.participation,
        clip_norm=clip_norm,
    )
    return ap.Plan(problem, given, guarantee, error=1.0)
