"""A million steps, where a dense matrix is out of reach: values that are known in another way."""

import numpy as np
import pytest

from antiphase import EveryStep, FixedEpochs, MinSeparation, ShuffledEpochs, SingleParticipation
from antiphase._errors import NotProved
from antiphase._sensitivity import column_norms, sensitivity
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Stamped, Toeplitz, Tree

N = 1_000_000
C16 = 0.9 ** np.arange(16)


def column_sum(c, b, k):
    total = np.zeros(N)
    for m in range(k):
        width = min(len(c), N - m * b)
        total[m * b : m * b + width] += c[:width]
    return total @ total


@pytest.fixture(scope="module")
def banded():
    columns = np.tile(C16, (N, 1)) * np.random.default_rng(0).random((N, 1))
    columns[:, 0] += 0.1
    for r in range(1, 16):
        columns[N - r :, r] = 0.0
    return Banded(columns)


@pytest.mark.integration
def test_banded(banded):
    norms = np.linalg.norm(banded.columns, axis=1)
    np.testing.assert_allclose(column_norms(banded), norms)
    assert sensitivity(banded, SingleParticipation()).value == pytest.approx(norms.max())
    fixed = sensitivity(banded, FixedEpochs(20, N // 20))
    assert fixed.value**2 == pytest.approx((norms**2).reshape(20, -1).sum(axis=0).max())
    separated = sensitivity(banded, MinSeparation(N // 20, 10))
    assert (separated.kind, separated.method) == ("exact", "orthogonal")
    assert (norms**2).reshape(20, -1).max(axis=1)[::2].sum() <= separated.value**2 <= 10 * norms.max() ** 2
    assert sensitivity(banded, ShuffledEpochs(20, N // 20)).kind == "exact"


@pytest.mark.parametrize("limit", [None, 7, 40_000])
def test_toeplitz(limit):
    strategy, k = Toeplitz(C16, N), limit or 62_500
    bound = sensitivity(strategy, MinSeparation(16, limit))
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(k * (C16 @ C16), rel=2e-10)
    overlapping = sensitivity(strategy, MinSeparation(12, limit and min(limit, 40)))
    assert (overlapping.kind, overlapping.method) == ("exact", "earliest")
    if limit:
        assert overlapping.value**2 == pytest.approx(
            column_sum(C16, 12, min(limit, 40)), rel=2e-11 if limit == 7 else 2e-10
        )


def test_column_normalized_toeplitz():
    strategy = Toeplitz(C16, N, column_normalized=True)
    assert sensitivity(strategy, MinSeparation(16, 50_000)).value == pytest.approx(np.sqrt(50_000))
    assert sensitivity(strategy, FixedEpochs(1000, 1000)).value == pytest.approx(np.sqrt(1000))
    assert sensitivity(strategy, MinSeparation(6)).kind == "upper"


def test_blt():
    """One buffer of decay 1: c = 1, w, w, ..., and v_t = 1 or 0 plus w times the participations before t."""
    w, b, k = 0.01, 50_000, 20
    strategy = BLT([1.0], [w], N)
    before = np.arange(N) // b + (np.arange(N) % b > 0)
    truth = np.sum((w * before + (np.arange(N) % b == 0)) ** 2)
    for participation in (MinSeparation(b, k), MinSeparation(b), FixedEpochs(k, b)):
        bound = sensitivity(strategy, participation)
        assert bound.kind == "exact"
        assert bound.value**2 == pytest.approx(truth, rel=1e-11)
    assert sensitivity(strategy, SingleParticipation()).value ** 2 == pytest.approx(1 + w * w * (N - 1), rel=1e-11)


def test_banded_inverse():
    """C[i, j] = decay^(i - j): with participations far apart, k squared column norms."""
    bound = sensitivity(BandedInverse.geometric(0.9, N), MinSeparation(N // 10))
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(10 / (1 - 0.81), rel=1e-9)


def test_every_step():
    assert sensitivity(Toeplitz([1.0, 1.0], N), EveryStep()).value ** 2 == pytest.approx(4 * N - 3)
    assert sensitivity(Toeplitz(np.ones(N), N), EveryStep()).value ** 2 == pytest.approx(N * (N + 1) * (2 * N + 1) / 6)
    assert sensitivity(Stamped(Tree(1024), 64), EveryStep()).value ** 2 == pytest.approx(64 * 1024 * 2047)


def test_tree_and_fourier():
    bound = sensitivity(Tree(1 << 20), MinSeparation(400, 20))
    assert (bound.kind, bound.method) == ("exact", "subtrees")
    # 20 participations fit in 2^13 steps: 8 nodes above hold them all; nodes below hold ceil(2^h / 400) at most.
    assert bound.value**2 <= 20 * sum(min(20, -(-(1 << h) // 400)) for h in range(21))
    assert bound.value**2 >= 8 * 400 + sensitivity(Tree(1 << 12), MinSeparation(400, 11)).value ** 2
    assert sensitivity(Fourier(20_000), FixedEpochs(20, 1000)).kind == "exact"


def test_a_billion_steps_of_a_toeplitz_strategy():
    # Every pattern of these has all its columns whole but the last: k |c|^2 with a correction below 1e-9.
    n = 10**9
    strategy = Toeplitz.square_root(n, 32)
    square = float(strategy.coefficients @ strategy.coefficients)
    for participation, k in ((MinSeparation(1000), 10**6), (FixedEpochs(10, n // 10), 10)):
        found = sensitivity(strategy, participation)
        assert found.kind == "exact"
        assert found.value**2 == pytest.approx(k * square, rel=1e-8)
    assert sensitivity(strategy, MinSeparation(10)).value ** 2 >= 10**8 * square


def test_a_tree_needs_no_array_of_its_steps():
    """A plan file of a few lines can ask for a billion steps. Level h has n / 2^h nodes, each above 2^h steps."""
    n = 1 << 30
    assert sensitivity(Tree(n), EveryStep()).value ** 2 == pytest.approx(n * (2 * n - 1), rel=1e-13)
    assert sensitivity(Tree(n), EveryStep()).value ** 2 >= n * (2 * n - 1)
    assert sensitivity(Tree(n), SingleParticipation()).value ** 2 == pytest.approx(31)
    assert sensitivity(Stamped(Tree(n), 2), SingleParticipation()).value ** 2 == pytest.approx(31)
    assert sensitivity(Tree(n), MinSeparation(n, 1)).value ** 2 == pytest.approx(31)


@pytest.mark.parametrize("participation", [FixedEpochs(2, 5 * 10**8), ShuffledEpochs(2, 5 * 10**8)])
@pytest.mark.parametrize("strategy", [Tree(10**9), Stamped(Tree(5 * 10**8), 2)])
def test_a_tree_with_too_many_patterns_is_refused_at_once(strategy, participation):
    with pytest.raises(NotProved, match="steps are too many to examine one by one"):
        sensitivity(strategy, participation)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 13, 37, 64, 100])
def test_sums_over_the_nodes_of_a_tree(steps):
    C = Tree(steps).encoder()
    for period in (1, 2, 3, 5, 8, 13, steps, steps + 3):
        residues, absolute, plain = Tree(steps).gram().class_sums(period)
        wanted = [((C[:, r::period].sum(axis=1)) ** 2).sum() for r in range(min(period, steps))]
        assert residues.tolist() == list(range(min(period, steps)))
        assert absolute.tolist() == plain.tolist() == wanted
