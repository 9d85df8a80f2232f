"""Never below the true value, to the last bit: against rational numbers, and decimals of sixty digits."""

import math
from dataclasses import fields, replace
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting.mechanism import Mechanism
from antiphase._sensitivity import measured, sensitivity
from antiphase._sensitivity.rounding import INTEGERS, outward
from antiphase._sensitivity.table import TABLE
from antiphase.strategies import (
    BLT,
    Buffers,
    Dense,
    Feedback,
    Fourier,
    Identity,
    MovingSum,
    Recursion,
    Restart,
    Stamped,
    Strategy,
    Toeplitz,
    Tree,
    TreeNodes,
    WholeMatrix,
)
from antiphase.strategies._toeplitz_gram import ToeplitzGram
from tests.catalog import every_strategy

RNG = np.random.default_rng(16)
STEPS = 9
DRAWS = 12


def varied(strategy: Strategy) -> Strategy:
    """The strategy with other numbers of the same signs, which use all their bits."""
    changed = {}
    for field in fields(strategy):
        value = getattr(strategy, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = value * RNG.uniform(0.9, 1.0, value.shape)
        elif isinstance(value, float):
            changed[field.name] = value * RNG.uniform(0.9, 1.0)
        elif isinstance(value, Strategy):
            changed[field.name] = varied(value)
    return replace(strategy, **changed)


def exact_columns(recursion: Recursion) -> list[list[Fraction]]:
    """The inverse of the N that the recursion applies, by columns, as rational numbers."""
    n = recursion.steps
    match recursion:
        case Feedback():  # T diag(1 / scales)
            unscaled = replace(recursion, scales=None).block(np.arange(n), np.arange(n))
            scales = np.ones(n) if recursion.scales is None else recursion.scales
            columns = zip(unscaled.T, scales, strict=True)
            return [[Fraction(float(v)) / Fraction(float(scale)) for v in column] for column, scale in columns]
        case MovingSum():
            given = [Fraction(float(c)) for c in recursion.coefficients]
            first: list[Fraction] = []
            for t in range(n):
                past = sum((given[r] * first[t - r] for r in range(1, min(t, len(given) - 1) + 1)), Fraction(0))
                first.append((Fraction(int(t == 0)) - past) / given[0])
        case Buffers():
            decay, scale = ([Fraction(float(v)) for v in values] for values in (recursion.decay, recursion.scale))
            first = [Fraction(1)]
            first += [sum((s * d**i for s, d in zip(scale, decay, strict=True)), Fraction(0)) for i in range(n - 1)]
        case Restart():
            inner = exact_columns(recursion.inner)
            zero = [Fraction(0)] * len(inner[0])
            return [
                zero * k + column + zero * (recursion.repeats - 1 - k)
                for k in range(recursion.repeats)
                for column in inner
            ]
        case WholeMatrix(strategy=strategy):  # its entries are stored, apart from those of Fourier: see `exact_gram`
            return [[Fraction(float(v)) for v in column] for column in strategy.encoder().T]
        case TreeNodes():
            return [[Fraction(float(v)) for v in column] for column in Tree(n).encoder().T]
        case _:
            raise AssertionError(recursion)
    return [[Fraction(0)] * j + first[: n - j] for j in range(n)]


def exact_gram(strategy: Strategy) -> list[list[Fraction]]:
    """C^T C in rational numbers; that of Fourier, whose entries are irrational, to fifty digits."""
    if isinstance(strategy, Stamped) and isinstance(strategy.strategy, Fourier):
        inner, size = exact_gram(strategy.strategy), strategy.strategy.steps
        steps = range(strategy.steps)
        return [[inner[i % size][j % size] * (i // size == j // size) for j in steps] for i in steps]
    if isinstance(strategy, Fourier):
        n = strategy.steps
        waves = [(j, 1 / sine(Fraction(j, 2 * n))) for j in range(1, 2 * n, 2)]
        column = [
            (n + sum(v * sine(Fraction(j * k, n) + Fraction(1, 2)) for j, v in waves)) / (2 * n) for k in range(n)
        ]
        return [[column[abs(i - j)] for j in range(n)] for i in range(n)]
    columns = exact_columns(strategy.recursion())
    return [[sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0)) for y in columns] for x in columns]


def sine(turns: Fraction) -> Fraction:
    """sin(pi x turns) to fifty digits."""
    x = digits(turns % 2 * Fraction("3.14159265358979323846264338327950288419716939937510582097494"))
    total, term, i = Fraction(0), x, 1
    while term:
        total += term
        term = digits(-term * x * x / ((i + 1) * (i + 2)))
        i += 2
    return total


def digits(x: Fraction) -> Fraction:
    return Fraction(round(x * 10**55), 10**55)


def squares(X: list[list[Fraction]], participation) -> tuple[Fraction, Fraction]:
    """Numbers that the squared sensitivity lies between: the largest sum of X with signs, and that of |X|."""
    low = high = Fraction(0)
    for pattern in participation.patterns(len(X)):
        high = max(high, sum((abs(X[i][j]) for i in pattern for j in pattern), Fraction(0)))
        for signs in product((1, -1), repeat=len(pattern) - 1):
            signed = list(zip((1, *signs), pattern, strict=True))
            low = max(low, sum((a * b * X[i][j] for a, i in signed for b, j in signed), Fraction(0)))
    return low, high


PARTICIPATIONS = [ap.SingleParticipation(), ap.FixedEpochs(3, 3), ap.MinSeparation(3), ap.MinSeparation(2, 2)]
STRATEGIES = dict(every_strategy(STEPS))
LONGER = dict(every_strategy(64))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_square_is_not_below_the_rational_one(name):
    given, below = STRATEGIES[name], 0
    for _ in range(1 if varied(given) == given else DRAWS):
        strategy = varied(given)
        X = exact_gram(strategy)
        for participation in PARTICIPATIONS:
            bound, nominal = measured(strategy, participation)
            low, high = squares(X, participation)
            assert Fraction(bound.value) ** 2 >= low
            assert bound.value <= nominal * (1 + 1e-12)
            if bound.kind == "exact":
                assert bound.value <= math.sqrt(high) * (1 + 1e-9)
            below += Fraction(nominal) ** 2 < low
    if TABLE[type(given.block)].rounding is not INTEGERS:
        assert below > 0  # without the rounding some of them would be


@pytest.mark.parametrize("name", LONGER)
def test_a_rule_counts_every_term(name):
    """Short sums stay within the margins of a rule that counts too little, so it is the count that is checked.

    The Gram matrix of Fourier has a closed form, whose rule does not depend on the length of a column.
    """
    block = LONGER[name].block
    row, C = TABLE[type(block)], block.encoder()
    if row.rounding is INTEGERS:
        assert (np.rint(C) == C).all()
        return
    for method in {method for names in row.methods.values() for method in names}:
        entries = row.rounding.entries(block, 3, method)
        if not isinstance(block, Fourier):
            assert entries.relative + entries.absolute >= np.count_nonzero(C, axis=0).max()
        if C.min() < 0.0:
            assert entries.relative == 0.0  # terms of both signs cancel, their rounding errors do not
        if isinstance(block.gram(), ToeplitzGram) and method in ("row-sum", "spectral"):
            transformed = row.rounding.transformed(block, method)
            assert transformed is not None, "long columns go through Fourier transforms"
            assert np.abs(transformed.column).sum() / transformed.divisor >= np.abs(C).sum(axis=0).max() * (1 - 1e-12)


@pytest.mark.parametrize("method", ["row-sum", "spectral"])
def test_bounds_by_name_are_rounded_too(method):
    for _ in range(20):
        strategy = Dense(np.tril(RNG.uniform(0.1, 1.0, (STEPS, STEPS))))
        low, _ = squares(exact_gram(strategy), ap.FixedEpochs(3, 3))
        assert Fraction(sensitivity(strategy, ap.FixedEpochs(3, 3), method).value) ** 2 >= low


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
