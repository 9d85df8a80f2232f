"""The table of theorems: what it covers works, what it does not cover raises, and the manual prints it."""

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

import antiphase as ap
from antiphase._accounting import (
    Budget,
    Mechanism,
    MonteCarlo,
    calibrate,
    compose,
    delta,
    epsilon,
    gdp,
    group_epsilon,
    page,
    zcdp,
)
from antiphase._accounting.theorems import THEOREMS, Adjacency
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.catalog import every_strategy

ADJACENCIES = get_args(Adjacency)
QUICK = MonteCarlo(slack=0.5, samples=1 << 14, workers=1)
PARTICIPATIONS = [
    ap.SingleParticipation(),
    ap.EveryStep(),
    ap.FixedEpochs(3, 4),
    ap.ShuffledEpochs(3, 4),
    ap.MinSeparation(3),
    ap.Poisson(0.1),
    ap.Poisson(0.1, max_batch=90),
    ap.CyclicPoisson(3, 0.1),
    ap.CyclicPoisson(3, 0.1, max_batch=90),
    ap.FixedSize(3, 10),
    ap.BallsInBins(3, 4),
    ap.BallsInBins(3, 4, max_batch=90),
    ap.PoissonMinSeparation(3, 0.1),
    ap.PoissonMinSeparation(3, 0.1, max_batch=90),
]


def covered(participation, adjacency, strategy):
    """Design, section 5.10, in words of its own."""
    diagonals = strategy.diagonals
    truncated = getattr(participation, "max_batch", None) is not None
    match participation:
        case ap.Poisson():
            return adjacency != "replace" and diagonals == 1
        case ap.CyclicPoisson():
            return adjacency != "replace" and diagonals is not None and diagonals <= participation.groups
        case ap.FixedSize():
            return adjacency == "replace" and diagonals is not None and diagonals <= participation.groups
        case ap.BallsInBins() | ap.PoissonMinSeparation():
            return adjacency == "zero-out" or (adjacency == "add-or-remove" and not truncated)
        case ap.EveryStep():
            return True
        case _:
            return adjacency != "add-or-remove"


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=repr)
def test_every_combination_works_or_raises(participation, adjacency):
    known = list(every_strategy(12))
    for name, strategy in known[:: 4 if adjacency == "add-or-remove" else 1]:  # which alone changes no sampled number
        mechanism = Mechanism(strategy, participation, 5.0, adjacency, examples=1000)
        if covered(participation, adjacency, strategy):
            bound = epsilon(mechanism, 1e-5, QUICK)
            assert bound.value > 0.0, name
            assert bound.kind in ("exact", "upper", "confident")
            assert bound.reference
        else:
            with pytest.raises(ap.NotProved) as error:
                epsilon(mechanism, 1e-5, QUICK)
            assert error.value.hint


def test_each_row_is_found_once():
    keys = [(t.participation, t.max_batch, t.adjacency, t.strategies) for t in THEOREMS]
    assert len(keys) == len(set(keys))
    for participation, adjacency in product(PARTICIPATIONS, ADJACENCIES):
        truncated = getattr(participation, "max_batch", None) is not None
        rows = [
            t.strategies
            for t in THEOREMS
            if t.participation is type(participation) and t.adjacency == adjacency and t.max_batch in (None, truncated)
        ]
        assert len(rows) == len(set(rows)) <= 2
        assert "any" not in rows[:-1]  # it stands last: for what the row before does not cover


def test_the_manual_prints_the_table():
    assert (Path(__file__).parents[2] / "docs" / "accounting.md").read_text() == page()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Identity(5), 1),
        (Toeplitz([1.0, 0.5, 0.0], 5), 2),
        (Toeplitz([1.0, 0.5], 5, column_normalized=True), 2),
        (Banded([[1.0, 0.0], [1.0, 0.0]]), 1),
        (Banded([[1.0, 0.5], [1.0, 0.0]]), 2),
        (BLT([0.5], [0.25], 5), 5),
        (BandedInverse([1.0, -0.5], 5), 5),
        (BandedInverse([2.0], 5), 1),
        (Dense([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 1.0]]), 2),
        (Dense([[1.0, 0.5], [0.0, 1.0]]), None),
        (Tree(4), None),
        (Fourier(4), None),
        (Stamped(Toeplitz([1.0, 0.5], 3), 2), 2),
        (Stamped(Tree(4), 2), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bands(strategy, expected):
    assert strategy.diagonals == expected


def test_hints_name_what_works():
    with pytest.raises(ap.NotProved, match=r"CyclicPoisson\(groups=2, ...\).*EveryStep\(\), which has no"):
        epsilon(Mechanism(Toeplitz([1.0, 0.5], 4), ap.Poisson(0.1), 1.0), 1e-5)
    with pytest.raises(ap.NotProved, match="FixedSize is covered for adjacency 'replace'"):
        epsilon(Mechanism(Identity(4), ap.FixedSize(1, 2), 1.0), 1e-5)
    with pytest.raises(
        ap.NotProved, match="add-or-remove adjacency is covered for BallsInBins, CyclicPoisson, EveryStep"
    ):
        epsilon(Mechanism(Identity(4), ap.FixedEpochs(2, 2), 1.0, "add-or-remove"), 1e-5)


def test_unamplified_random_participation_says_so():
    bound = epsilon(Mechanism(Fourier(4), ap.BallsInBins(2, 2), 1.0), 1e-5)
    assert (bound.kind, bound.method) == ("upper", "analytic Gaussian, without amplification")
    same = epsilon(Mechanism(Fourier(4), ap.FixedEpochs(2, 2), 1.0), 1e-5)
    assert (same.kind, same.method, same.value) == ("exact", "analytic Gaussian", bound.value)
    truncated = Mechanism(Identity(4), ap.BallsInBins(2, 2, max_batch=5), 1.0)
    for function in (zcdp, gdp, lambda mechanism: compose([mechanism], 1e-5)):
        assert "without amplification" in function(truncated).method
        assert "Denisov" in function(truncated).reference or "Dong" in function(truncated).reference


def test_the_kind_is_no_better_than_that_of_the_sensitivity():
    signed = Dense(next(s for name, s in every_strategy(12) if name == "dense-lower").matrix)
    mechanism = Mechanism(signed, ap.MinSeparation(2, 4), 1.0)
    assert mechanism.reduction.sensitivity.kind == "upper"
    assert epsilon(mechanism, 1e-5).kind == zcdp(mechanism).kind == "upper"


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "much", True])
def test_bad_epsilon(value):
    with pytest.raises(ap.InvalidArgument, match="'epsilon' parameter"):
        Budget(value, 1e-6)
    with pytest.raises(ap.InvalidArgument, match="'epsilon' parameter of delta"):
        delta(Mechanism(Identity(2), ap.EveryStep(), 1.0), value)


@pytest.mark.parametrize("value", [0.0, 1.0, -1e-9, 1.5, float("nan"), None])
def test_bad_delta(value):
    mechanism = Mechanism(Identity(2), ap.EveryStep(), 1.0)
    with pytest.raises(ap.InvalidArgument, match="'delta' parameter"):
        Budget(1.0, value)
    for call in (
        lambda: epsilon(mechanism, value),
        lambda: compose([mechanism], value),
        lambda: group_epsilon(mechanism, 2, value),
    ):
        with pytest.raises(ap.InvalidArgument, match="'delta' parameter"):
            call()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "big"])
def test_bad_noise(value):
    with pytest.raises(ap.InvalidArgument, match="'noise_std' parameter"):
        Mechanism(Identity(2), ap.EveryStep(), value)


def test_bad_settings():
    good = (Identity(2), ap.EveryStep())
    with pytest.raises(ap.InvalidArgument, match="'adjacency' parameter of Mechanism"):
        Mechanism(*good, 1.0, "swap")
    with pytest.raises(ap.InvalidArgument, match="'adjacency' parameter of calibrate"):
        calibrate(*good, Budget(1.0, 1e-6), "swap")
    with pytest.raises(ap.InvalidArgument, match="'strategy' parameter"):
        Mechanism([[1.0]], ap.EveryStep(), 1.0)
    with pytest.raises(ap.InvalidArgument, match="'participation' parameter"):
        Mechanism(Identity(2), "shuffled", 1.0)
    with pytest.raises(ap.InvalidArgument, match="'examples' parameter"):
        Mechanism(*good, 1.0, examples=0)
    with pytest.raises(ap.InvalidArgument, match="'budget' parameter"):
        calibrate(*good, (1.0, 1e-6))
    with pytest.raises(ap.InvalidArgument, match="'mechanisms' parameter"):
        compose([], 1e-6)
    with pytest.raises(ap.InvalidArgument, match="'size' parameter"):
        group_epsilon(Mechanism(*good, 1.0), 0, 1e-6)
    for steps in (0, 3):
        with pytest.raises(ap.InvalidArgument, match="'steps' parameter"):
            Mechanism(*good, 1.0).first(steps)


def test_examples_are_asked_for_where_they_matter():
    for participation, adjacency in ((ap.FixedSize(1, 2), "replace"), (ap.Poisson(0.1, max_batch=3), "zero-out")):
        with pytest.raises(ap.InvalidArgument, match="'examples' parameter"):
            epsilon(Mechanism(Identity(2), participation, 1.0, adjacency), 1e-6)
    with pytest.raises(ap.InvalidArgument, match="'batch_size' parameter"):
        epsilon(Mechanism(Identity(2), ap.FixedSize(3, 4), 1.0, "replace", examples=11), 1e-6)


def test_more_steps_than_the_participation_has():
    with pytest.raises(ap.InvalidArgument, match="'epochs' parameter"):
        epsilon(Mechanism(Identity(9), ap.FixedEpochs(2, 4), 1.0), 1e-6)


@pytest.mark.parametrize("function", [zcdp, gdp])
def test_concentrated_and_gaussian_privacy_are_for_one_gaussian_only(function):
    with pytest.raises(ap.NotProved, match="EveryStep"):
        function(Mechanism(Identity(4), ap.Poisson(0.1), 1.0))
    assert function(Mechanism(Identity(4), ap.EveryStep(), 2.0)).kind == "exact"
    assert function(Mechanism(Identity(4), ap.EveryStep(), 2.0)).value == pytest.approx({zcdp: 0.5, gdp: 1.0}[function])
    replace = Mechanism(Identity(4), ap.EveryStep(), 2.0, "replace")
    assert function(replace).value == pytest.approx({zcdp: 2.0, gdp: 2.0}[function])


def test_records_round_trip():
    mechanism = Mechanism(Toeplitz([1.0, 0.5], 4), ap.CyclicPoisson(2, 0.1, 5), 1.5, "add-or-remove", 100)
    found = calibrate(Identity(4), ap.EveryStep(), Budget(1.0, 1e-6))
    for value in (Budget(1.0, 1e-6), mechanism, found):
        assert ap.from_json(ap.to_json(value)) == value
