"""Never below the true value, to the last bit: against rational numbers, and decimals of sixty digits."""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting.mechanism import Mechanism
from antiphase._sensitivity import measured, sensitivity
from antiphase._sensitivity.rounding import outward
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

RNG = np.random.default_rng(16)
STEPS = 9


def exact_columns(strategy: Strategy) -> list[list[Fraction]]:
    """C by columns, as rational numbers."""
    n = strategy.steps
    match strategy:
        case BandedInverse():
            given = [Fraction(float(c)) for c in strategy.coefficients]
            first: list[Fraction] = []
            for t in range(n):
                past = sum((given[r] * first[t - r] for r in range(1, min(t, len(given) - 1) + 1)), Fraction(0))
                first.append((Fraction(int(t == 0)) - past) / given[0])
        case BLT():
            decay, scale = ([Fraction(float(v)) for v in values] for values in (strategy.decay, strategy.scale))
            first = [Fraction(1)]
            first += [sum((s * d**i for s, d in zip(scale, decay, strict=True)), Fraction(0)) for i in range(n - 1)]
        case _:
            return [[Fraction(float(v)) for v in column] for column in strategy.encoder().T]
    return [[Fraction(0)] * j + first[: n - j] for j in range(n)]


def exact_square(strategy: Strategy, participation) -> Fraction:
    """sum |X| on the worst pattern: the squared sensitivity where X >= 0, or is tridiagonal, on every pattern."""
    columns = exact_columns(strategy)
    best = Fraction(0)
    for pattern in participation.patterns(strategy.steps):
        chosen = [columns[j] for j in pattern]
        total = sum((abs(sum(a * b for a, b in zip(x, y, strict=True))) for x in chosen for y in chosen), Fraction(0))
        best = max(best, total)
    return best


def random_case(kind: str) -> Strategy:
    c = RNG.uniform(0.1, 1.0, 4)
    match kind:
        case "toeplitz":
            return Toeplitz(np.sort(c)[::-1], STEPS)
        case "toeplitz, rising":
            return Toeplitz(np.sort(c), STEPS)
        case "banded":
            columns = RNG.uniform(0.1, 1.0, (STEPS, 3))
            return Banded(np.where(np.arange(STEPS)[:, None] + np.arange(3) < STEPS, columns, 0.0))
        case "dense":
            return Dense(np.tril(RNG.uniform(0.1, 1.0, (STEPS, STEPS))))
        case "blt":
            return BLT(RNG.uniform(0.1, 1.0, 2), RNG.uniform(0.01, 0.3, 2), STEPS)
        case "banded inverse":
            return BandedInverse([1.0, -RNG.uniform(0.2, 0.5), -RNG.uniform(0.0, 0.2)], STEPS)
        case "stamped":
            return Stamped(Toeplitz(np.sort(c)[::-1][:3], 3), 3)
        case "signed":
            return Toeplitz(RNG.normal(size=3), STEPS)  # bands <= 2 x separation of every participation below
    raise AssertionError(kind)


KINDS = ["toeplitz", "toeplitz, rising", "banded", "dense", "blt", "banded inverse", "stamped", "signed"]
PARTICIPATIONS = [ap.SingleParticipation(), ap.FixedEpochs(3, 3), ap.MinSeparation(3), ap.MinSeparation(2, 2)]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_the_square_is_not_below_the_rational_one(kind, participation):
    below = 0
    for _ in range(40):
        strategy = random_case(kind)
        bound, nominal = measured(strategy, participation)
        exact = exact_square(strategy, participation)
        assert Fraction(bound.value) ** 2 >= exact
        assert bound.value <= nominal * (1 + 1e-13)
        if bound.kind == "exact":
            assert bound.value <= math.sqrt(exact) * (1 + 1e-9)
        below += Fraction(nominal) ** 2 < exact
    assert below > 0  # without the rounding some of them would be


@pytest.mark.parametrize("method", ["row-sum", "spectral"])
def test_bounds_by_name_are_rounded_too(method):
    for _ in range(20):
        strategy = random_case("dense")
        exact = exact_square(strategy, ap.FixedEpochs(3, 3))
        assert Fraction(sensitivity(strategy, ap.FixedEpochs(3, 3), method).value) ** 2 >= exact


@pytest.mark.parametrize("steps", [200, 1000])
def test_long_buffers(steps):
    """1.7e-15 below the true value was seen at 1,000 steps."""
    for _ in range(3):
        strategy = BLT(RNG.uniform(0.5, 1.0, 3), RNG.uniform(0.01, 0.2, 3), steps)
        with localcontext() as context:
            context.prec = 60
            state = [Decimal(1)] * 3
            decay, scale = ([Decimal(float(v)) for v in values] for values in (strategy.decay, strategy.scale))
            square = Decimal(1)
            for _ in range(steps - 1):
                square += sum(s * x for s, x in zip(scale, state, strict=True)) ** 2
                state = [d * x for d, x in zip(decay, state, strict=True)]
            value = sensitivity(strategy, ap.SingleParticipation()).value
            assert square <= Decimal(value) ** 2 <= square * (1 + Decimal("1e-11"))


def test_a_long_column():
    """Fichtenberger's coefficients, whose squares are added up in one long sum."""
    strategy = Toeplitz.square_root(3000)
    exact = sum((Fraction(float(c)) ** 2 for c in strategy.coefficients), Fraction(0))
    value = sensitivity(strategy, ap.SingleParticipation()).value
    assert exact <= Fraction(value) ** 2 <= exact * (1 + Fraction(1, 10**11))


def test_whole_numbers_are_not_raised():
    assert sensitivity(Identity(8), ap.FixedEpochs(4, 2)).value == 2.0
    assert sensitivity(Tree(8), ap.SingleParticipation()).value == 2.0
    root = sensitivity(Tree(16), ap.SingleParticipation()).value
    assert Fraction(root) ** 2 >= 5 > Fraction(math.nextafter(root, 0.0)) ** 2
    assert sensitivity(Fourier(1), ap.SingleParticipation()).value >= 1.0


@pytest.mark.parametrize("square", [2.0, 3.0, 1e-200, 1.0 + 2.0**-52])
def test_outward_is_the_next_root(square):
    root = outward(square, 0)
    assert Fraction(root) ** 2 >= Fraction(square)
    assert Fraction(math.nextafter(root, 0.0)) ** 2 < Fraction(square)


def test_noise_is_calibrated_as_before_and_accounted_for_outward():
    """A plan made again after an upgrade is the same plan; its epsilon is derived with the raised sensitivity."""
    strategy, budget = Toeplitz.square_root(40, 8), ap.Budget(2.0, 1e-6)
    found = ap.calibrate(strategy, ap.MinSeparation(5), budget)
    reduction = found.mechanism.reduction
    assert reduction.sensitivity.value > reduction.nominal
    before = reduction.before_rounding().release(found.mechanism.noise_std).epsilon(1e-6)
    assert before < found.guarantee.value <= budget.epsilon
    assert found.guarantee.value == ap.epsilon(found.mechanism, 1e-6).value


def test_a_plan_that_was_stated_before_rounding_is_loaded(tmp_path):
    strategy = Toeplitz.square_root(200)
    mechanism = Mechanism(strategy, ap.MinSeparation(5, 9), 30.0)
    stated = mechanism.reduction.before_rounding().release(30.0).epsilon(1e-6)
    problem = ap.Problem(200, ap.Budget(stated, 1e-6), participation=ap.MinSeparation(5, 9))
    plan = ap.Plan(problem, mechanism, ap.Bound(stated, "exact", "", ""), 1.0)
    plan.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == replace(plan, guarantee=ap.epsilon(mechanism, 1e-6))
