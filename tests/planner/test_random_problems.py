"""Random problems: no family by hand beats the plan, and a plan stored and accounted again promises the same."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase.strategies import Fourier, Identity, Stamped, Tree

pytestmark = pytest.mark.integration  # searches that take long

OPTIMISED = ("banded", "banded-inverse", "blt", "dense", "toeplitz")


@st.composite
def participations(draw):
    epochs, per_epoch = draw(st.integers(1, 4)), draw(st.integers(2, 9))
    kind = draw(st.sampled_from(["fixed", "shuffled", "separated", "single", "every", "poisson", "cyclic", "size"]))
    steps = epochs * per_epoch - draw(st.integers(0, per_epoch - 1))
    made = {
        "fixed": ap.FixedEpochs(epochs, per_epoch),
        "shuffled": ap.ShuffledEpochs(epochs, per_epoch),
        "separated": ap.MinSeparation(per_epoch),
        "single": ap.SingleParticipation(),
        "every": ap.EveryStep(),
        "poisson": ap.Poisson(0.1),
        "cyclic": ap.CyclicPoisson(per_epoch, 0.3),
        "size": ap.FixedSize(per_epoch, 20),
    }
    return steps, made[kind]


@st.composite
def problems(draw):
    steps, participation = draw(participations())
    beta = draw(st.sampled_from([0.0, 0.9]))
    return ap.Problem(
        steps=steps,
        budget=ap.Budget(draw(st.floats(0.3, 10.0)), draw(st.sampled_from([1e-6, 1e-9]))),
        examples=600,
        participation=participation,
        workload=ap.Momentum(beta) if beta else ap.PrefixSum(),
        adjacency="replace" if isinstance(participation, ap.FixedSize) else "zero-out",
        memory_copies=draw(st.one_of(st.none(), st.integers(0, 12))),
        objective=draw(st.sampled_from(["rms", "max"])),
    )


def by_hand(problem):
    """What a user would get from each family with its defaults: name, error."""
    promise = problem.participation
    made = {
        "identity": lambda: Identity(problem.steps),
        "tree": lambda: Tree(problem.steps),
        "full tree": lambda: Tree(problem.steps, "full"),
        "fourier": lambda: Fourier(problem.steps, "optimal"),
        "stamped": lambda: Stamped(Tree(problem.steps // 2), 2),
    }
    if problem.steps % 2 or problem.steps == 2:
        del made["stamped"]
    for family in OPTIMISED:
        made[family] = lambda family=family: _optimised(family, problem)
    for name, make in made.items():
        try:
            strategy = make()
            mechanism = ap.calibrate(strategy, promise, problem.budget, problem.adjacency, problem.examples).mechanism
        except ap.AntiphaseError:
            continue
        if problem.memory_copies is None or strategy.memory_copies <= problem.memory_copies:
            size = ap.error(strategy, problem.workload)
            yield name, mechanism.noise_std * (size.rms if problem.objective == "rms" else size.max)


def _optimised(family, problem):
    participation = problem.participation
    if isinstance(participation, (ap.Poisson, ap.CyclicPoisson, ap.FixedSize)):
        participation = ap.SingleParticipation()  # what sampling amplifies is the largest column norm
    options = {}
    if family in ("banded", "toeplitz") and isinstance(problem.participation, (ap.CyclicPoisson, ap.FixedSize)):
        options = {"bands": min(problem.steps, problem.participation.groups)}
    return ap.optimize(
        family,
        steps=problem.steps,
        participation=participation,
        workload=problem.workload,
        objective=problem.objective,
        **options,
    ).strategy


def check(problem):
    found = ap.plan(problem)
    hand = list(by_hand(problem))
    for name, error in hand:
        assert found.error <= error * (1.0 + 1e-9), name
    assert hand
    assert problem.memory_copies is None or found.mechanism.strategy.memory_copies <= problem.memory_copies
    check_stored(found)


def check_stored(found):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plan.json"
        found.save(path)
        again = ap.Plan.load(path)
    assert again == found
    assert again.fingerprint == found.fingerprint
    assert again.guarantee == found.guarantee
    budget = found.problem.budget
    assert math.isclose(ap.epsilon(again.mechanism, budget.delta).value, found.guarantee.value, rel_tol=1e-12)
    assert 0.999 * budget.epsilon <= found.guarantee.value <= budget.epsilon


ANY_TIME = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@given(problems())
@settings(max_examples=8, **ANY_TIME)
def test_a_few_random_problems(problem):
    check(problem)


@pytest.mark.slow
@given(problems())
@settings(max_examples=100, **ANY_TIME)
def test_many_random_problems(problem):
    check(problem)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove", "replace"])
def test_an_open_participation_is_never_worse_than_any_pipeline(adjacency):
    problem = ap.Problem(
        steps=40,
        budget=ap.Budget(3.0, 1e-6),
        examples=600,
        batch_size=60,
        adjacency=adjacency,
        memory_copies=4,
        objective="rms",  # "training" expects another learning rate, and so counts other curvatures, for each pipeline
    )
    best = ap.plan(problem, ["identity", "toeplitz", "blt"])
    check_stored(best)
    for pipeline in ("poisson", "cyclic-poisson", "fixed-size", "fixed-epochs"):
        try:
            alone = ap.plan(problem, ["identity", "toeplitz", "blt"], pipelines=[pipeline])
        except ap.NotProved:
            continue
        assert best.error <= alone.error * (1.0 + 1e-12)
