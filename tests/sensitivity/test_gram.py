"""The Gram matrices by their diagonals, against C^T C."""

import numpy as np
import pytest

from antiphase import EveryStep, FixedEpochs, MinSeparation, ShuffledEpochs
from antiphase._sensitivity import column_norms, sensitivity, windows
from antiphase.strategies import Banded, Dense, Fourier, Stamped, Strategy, Toeplitz
from antiphase.strategies import _gram as gram_module
from antiphase.strategies import _toeplitz_gram as toeplitz
from antiphase.strategies._identity import Identity
from tests.catalog import every_strategy, every_variant, random_banded

TWELVE = dict(every_strategy(12))
VARIED = TWELVE | dict(every_variant(12))


def dense_gram(strategy):
    C = strategy.encoder()
    return C.T @ C


@pytest.mark.parametrize("name", TWELVE)
@pytest.mark.parametrize("steps", [1, 6, 12])
def test_diagonals(name, steps):
    strategy = dict(every_strategy(steps)).get(name)
    if strategy is None:
        assert name.startswith("stamped")  # one step cannot be split into blocks
        return
    X, G = dense_gram(strategy), strategy.gram()
    scale = np.abs(X).max()
    assert G.dense() == pytest.approx(X, abs=1e-13 * scale)
    assert np.abs(np.triu(X, G.bands)).max() <= 1e-14 * scale
    for start in range(0, steps, 5):
        stop = min(start + 5, steps)
        part = G.diagonals(start, stop)
        for i, r in np.ndindex(part.shape):
            truth = X[start + i, start + i + r] if start + i + r < steps else 0.0
            assert part[i, r] == pytest.approx(truth, abs=1e-13 * scale)


@pytest.mark.parametrize("name", VARIED)
def test_bounds_and_sums(name):
    strategy = VARIED[name]
    X, G = dense_gram(strategy), strategy.gram()
    scale = np.abs(X).max()
    envelope = G.envelope()
    for lag in range(G.bands):
        assert np.abs(np.diagonal(X, lag)).max() <= envelope[lag] + 1e-13 * X.max()
    bound = G.eigenvalue_bound()
    assert bound is None or bound >= np.linalg.eigvalsh(X)[-1] * (1 - 1e-12)
    for period in (1, 2, 5, 12):
        residues, absolute, plain = G.class_sums(period)
        for r, a, p in zip(residues, absolute, plain, strict=True):
            assert a == pytest.approx(np.abs(X[r::period, r::period]).sum(), rel=1e-12)
            assert p == pytest.approx(X[r::period, r::period].sum(), rel=1e-10, abs=1e-12)
        blocks = G.class_blocks(period, residues)
        for r, block in zip(residues, blocks, strict=True):
            here = X[r::period, r::period]
            assert block[: len(here), : len(here)] == pytest.approx(here, abs=1e-12 * scale)
            assert np.abs(block).sum() == pytest.approx(np.abs(here).sum())
        if G.first_is_worst:
            """Every other class is the first less something positive semidefinite, or a part of it."""
            for r in range(1, min(period, 12)):
                k = len(X[r::period])
                assert np.linalg.eigvalsh(X[::period, ::period][:k, :k] - X[r::period, r::period])[0] >= -1e-12 * scale
    assert not G.norms_decrease or (np.diff(np.diagonal(X)) <= 1e-12 * scale).all()


@pytest.mark.parametrize("name", VARIED)
def test_products(name):
    strategy = VARIED[name]
    weights = np.random.default_rng(0).random(12)
    squares = strategy.gram().squares(weights)
    if squares is not None:
        X = dense_gram(strategy)
        assert squares[0] == pytest.approx(weights @ X @ weights, rel=1e-12)
        assert squares[1] >= weights @ np.abs(X) @ weights * (1 - 1e-12)


@pytest.mark.parametrize("name", VARIED)
def test_column_norms(name):
    strategy = VARIED[name]
    assert column_norms(strategy) == pytest.approx(np.linalg.norm(strategy.encoder(), axis=0), rel=1e-12)


def test_long_columns_have_a_transformed_envelope(monkeypatch):
    monkeypatch.setattr(toeplitz, "MOST_EXACT_BANDS", 4)
    for strategy in (Toeplitz.square_root(30), Toeplitz(np.cos(np.arange(30.0)), 30, column_normalized=True)):
        X, envelope = dense_gram(strategy), strategy.gram().envelope()
        assert all(np.abs(np.diagonal(X, lag)).max() <= envelope[lag] for lag in range(30))


def test_largest_eigenvalue_of_long_toeplitz_matrices():
    """The symbol bounds every size from above, closely for long ones."""
    for strategy in (Toeplitz([1.0, -0.7, 0.3], 400), Fourier(40)):
        bound, truth = strategy.gram().eigenvalue_bound(), np.linalg.eigvalsh(dense_gram(strategy))[-1]
        assert truth <= bound
    bound = Toeplitz([1.0, -0.7, 0.3], 400).gram().eigenvalue_bound()
    assert bound == pytest.approx(4.0, rel=2e-3)


PAIRS = [
    MinSeparation(3),
    MinSeparation(3, 4),
    MinSeparation(2, 3),
    MinSeparation(4, 5),
    ShuffledEpochs(8, 5),
    ShuffledEpochs(20, 2),
    ShuffledEpochs(3, 16),
]


@pytest.mark.parametrize("participation", PAIRS, ids=str)
@pytest.mark.parametrize("bands", [1, 3, 6, 7])
def test_small_windows_change_nothing(monkeypatch, participation, bands):
    strategy = random_banded(np.random.default_rng(bands), 40, bands, signed=True)
    whole = sensitivity(strategy, participation)
    monkeypatch.setattr(windows, "LARGEST_WINDOW", 2 * bands * bands + bands)
    assert len(list(windows.windows(strategy.gram()))) > 3
    assert sensitivity(strategy, participation) == whole


@pytest.mark.parametrize("participation", [EveryStep(), FixedEpochs(12, 2), FixedEpochs(4, 6)], ids=str)
@pytest.mark.parametrize("name", ["toeplitz-full", "toeplitz-full-normalized", "tree-full", "stamped-2-tree"])
def test_the_way_through_c_gives_the_same(monkeypatch, participation, name):
    strategy = dict(every_strategy(24))[name]
    whole = sensitivity(strategy, participation)
    monkeypatch.setattr(gram_module, "MOST_GRAM_ENTRIES", 0)
    other = sensitivity(strategy, participation)
    assert other.kind == whole.kind == "exact"
    assert other.value == pytest.approx(whole.value, rel=1e-12)


@pytest.mark.parametrize("participation", PAIRS, ids=str)
def test_bounds_by_envelope_hold(monkeypatch, participation):
    """What is used where X has too many entries is never below what is used where it has few."""
    monkeypatch.setattr(windows, "LARGEST_WINDOW", 0)
    rng = np.random.default_rng(0)
    for strategy in (random_banded(rng, 40, 6, signed=True), Fourier(40), Stamped(Fourier(20), 2)):
        rough = sensitivity(strategy, participation)
        monkeypatch.undo()
        fine = sensitivity(strategy, participation)
        monkeypatch.setattr(windows, "LARGEST_WINDOW", 0)
        assert rough.value >= fine.value * (1 - 1e-12)


class Doubled(Strategy):
    """A strategy that the library does not know: twice the identity."""

    steps = 4
    memory_copies = 0

    def encoding_stream(self):
        return Identity(4).encoding_stream()

    def recursion(self):
        return Identity(4).recursion()

    def encoder(self):
        return 2.0 * np.eye(4)


def test_an_unknown_strategy_is_taken_as_dense():
    assert sensitivity(Doubled(), EveryStep()).value == pytest.approx(4.0)


def test_dense_with_a_band_is_seen_as_banded():
    banded = Banded([[1.0, 0.5], [1.0, 0.5], [1.0, 0.0]])
    assert Dense(banded.encoder()).gram().bands == 2
    assert sensitivity(Dense(banded.encoder()), MinSeparation(2)).method == "orthogonal"
