"""The table of methods, the page that prints it, methods by name, and wrong use."""

from pathlib import Path

import numpy as np
import pytest

from antiphase import (
    AntiphaseError,
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    FixedSize,
    InvalidArgument,
    MinSeparation,
    NotProved,
    Poisson,
    PoissonMinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase._sensitivity import page, sensitivity
from antiphase.strategies import BLT, Banded, Dense, Fourier, Identity, Stamped, Toeplitz, Tree

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_manual_is_the_table():
    committed = (ROOT / "docs" / "sensitivity.md").read_text()
    assert committed == page(), "write antiphase._sensitivity.page() to docs/sensitivity.md"


def test_known_values():
    assert sensitivity(Identity(6), EveryStep()).value ** 2 == pytest.approx(6)
    assert sensitivity(Identity(7), MinSeparation(2)).value ** 2 == pytest.approx(4)
    assert sensitivity(Identity(7), FixedEpochs(4, 2)).value ** 2 == pytest.approx(4)
    assert sensitivity(Toeplitz([1.0, 1.0], 4), EveryStep()).value ** 2 == pytest.approx(13)
    assert sensitivity(Toeplitz([1.0, 1.0], 6), ShuffledEpochs(2, 3)).value ** 2 == pytest.approx(6)
    assert sensitivity(Toeplitz([3.0, 4.0], 9), SingleParticipation()).value == pytest.approx(5)


def test_the_order_of_participations():
    """More patterns, more sensitivity: single <= fixed epochs <= shuffled <= every step; min-separation in between."""
    strategy = Toeplitz.square_root(24, 8)
    single = sensitivity(strategy, SingleParticipation()).value
    fixed = sensitivity(strategy, FixedEpochs(4, 6)).value
    separated = sensitivity(strategy, MinSeparation(6)).value
    shuffled = sensitivity(strategy, ShuffledEpochs(4, 6)).value
    assert single < fixed <= separated < shuffled < sensitivity(strategy, EveryStep()).value


@pytest.mark.parametrize(
    ("random", "worst"),
    [
        (Poisson(0.1), EveryStep()),
        (CyclicPoisson(3, 0.5), MinSeparation(3)),
        (FixedSize(3, 5), MinSeparation(3)),
        (BallsInBins(4, 3), FixedEpochs(4, 3)),
        (PoissonMinSeparation(4, 0.5), MinSeparation(4)),
    ],
    ids=str,
)
def test_random_participation_at_its_worst_case(random, worst):
    strategy = Toeplitz([1.0, 0.7, 0.2], 12)
    assert sensitivity(strategy, random) == sensitivity(strategy, worst)


@pytest.mark.parametrize(
    ("strategy", "participation", "method", "works"),
    [
        (Toeplitz([1.0, 0.5, 0.2], 9), FixedEpochs(5, 2), "orthogonal", "nonnegative"),
        (Dense(np.array([[3.0, 1, 1], [1, 3, -1], [1, -1, 3]])), EveryStep(), "nonnegative", "semidefinite"),
        (Toeplitz([1.0, -0.5, 0.4, 0.3, 0.2], 200), EveryStep(), "semidefinite", "spectral"),
        (Toeplitz([0.5, 1.0, 0.2], 9), MinSeparation(1, 3), "earliest", "row-sum"),
        (Banded([[1.0, 0.5], [1.0, 0.5], [1.0, 0.0]]), MinSeparation(1), "orthogonal", "dynamic-program"),
        (Fourier(9), MinSeparation(1, 5), "dynamic-program", "row-sum"),
        (Stamped(Fourier(6), 2), MinSeparation(2, 5), "subtrees", "blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_method_whose_condition_fails_names_one_that_works(strategy, participation, method, works):
    with pytest.raises(NotProved, match=rf"The method '{method}' does not apply here") as error:
        sensitivity(strategy, participation, method)
    assert error.value.hint == f"use method={works!r}, which applies"
    assert sensitivity(strategy, participation, works) == sensitivity(strategy, participation)


def test_a_method_for_another_strategy():
    with pytest.raises(NotProved, match="'subtrees' does not support BLT under MinSeparation"):
        sensitivity(BLT([0.5], [0.2], 4), MinSeparation(2), "subtrees")


def test_an_unknown_method_is_refused():
    with pytest.raises(InvalidArgument, match=r"'method' parameter of sensitivity must be one of orthogonal, nonneg"):
        sensitivity(Identity(4), EveryStep(), "guess")


def test_the_spectral_bound_is_per_pattern():
    """k x the largest eigenvalue of X on a residue class (Thm 2.1), not of the whole X."""
    strategy, k, b = Fourier(12), 4, 3
    C = strategy.encoder()
    truth = max(k * np.linalg.norm(C[:, r::b], 2) ** 2 for r in range(b))
    bound = sensitivity(strategy, FixedEpochs(k, b), "spectral")
    assert bound.kind == "upper"
    assert bound.value**2 == pytest.approx(truth, rel=1e-12)
    assert truth < k * np.linalg.norm(C, 2) ** 2 * 0.9


def test_many_signed_participations_fall_back_to_bounds():
    strategy = Toeplitz([1.0, -0.9, 0.5, 0.4], 3000)
    bounds = {name: sensitivity(strategy, EveryStep(), name).value for name in ("row-sum", "spectral")}
    best = sensitivity(strategy, EveryStep())
    assert best.kind == "upper"
    assert best.value == min(bounds.values())
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(3000, 50))
    assert np.linalg.norm(strategy.multiply(signs), axis=0).max() < best.value


@pytest.mark.parametrize("participation", [FixedEpochs(2, 3), ShuffledEpochs(2, 3), BallsInBins(2, 3)], ids=str)
def test_steps_that_do_not_fit(participation):
    with pytest.raises(InvalidArgument, match="enough for 7 steps") as error:
        sensitivity(Tree(7), participation)
    assert "hint: use epochs=3" in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [(np.eye(3), EveryStep()), (Identity(3), "every step"), (None, EveryStep()), (Identity(3), None)],
    ids=["matrix", "string", "no strategy", "no participation"],
)
def test_wrong_use(arguments):
    with pytest.raises(AntiphaseError, match="parameter of sensitivity must be"):
        sensitivity(*arguments)
