"""The worst vector contributions to one pattern."""

from itertools import product

import numpy as np
import pytest

from antiphase import AntiphaseError, EveryStep, FixedEpochs
from antiphase._sensitivity import sensitivity
from antiphase._sensitivity.bracket import Bracket
from antiphase._sensitivity.semidefinite import worst_contributions
from antiphase.strategies import Dense
from tests.sensitivity.oracle import worst_vectors

COUNTEREXAMPLE = np.array([[2, 1, 1], [1, 2, -1], [1, -1, 2]]) / np.sqrt(24)  # multi-epoch, App. H.2


def best_signs(X):
    signs = np.array(list(product([-1.0, 1.0], repeat=len(X))))
    return float(np.einsum("si,ij,sj->s", signs, X, signs).max())


def test_counterexample_of_the_multi_epoch_paper():
    X = COUNTEREXAMPLE.T @ COUNTEREXAMPLE
    found, y = worst_contributions(X)
    assert best_signs(X) == pytest.approx(1.0, abs=1e-12)
    assert found.upper == pytest.approx(1.125, rel=1e-9)
    assert found.lower == pytest.approx(1.125, rel=1e-9)
    assert found.upper == pytest.approx(y.sum(), rel=1e-12)


def test_counterexample_as_a_strategy():
    """The matrix itself is singular; rows of a small multiple of the identity make it a strategy."""
    tiny = 1e-3
    bound = sensitivity(Dense(np.vstack([COUNTEREXAMPLE, tiny * np.eye(3)])), EveryStep())
    assert (bound.kind, bound.method) == ("exact", "semidefinite")
    assert bound.value**2 == pytest.approx(1.125 + 3 * tiny**2, rel=1e-9)


def test_a_published_contribution_is_covered():
    """The paper's own two-dimensional contribution reaches 1.1; the worst reaches 1.125."""
    G = np.array([[2, 1], [2, -1], [1, 2]]) / np.sqrt(5)
    assert np.linalg.norm(COUNTEREXAMPLE @ G) ** 2 == pytest.approx(1.1)
    assert np.linalg.norm(COUNTEREXAMPLE @ G) ** 2 < worst_contributions(COUNTEREXAMPLE.T @ COUNTEREXAMPLE)[0].upper


MAKERS = {
    "square": lambda rng, k: rng.normal(size=(k, k)),
    "low rank": lambda rng, k: rng.normal(size=(max(1, k // 3), k)),
    "unequal columns": lambda rng, k: rng.normal(size=(k, k)) * 10.0 ** rng.uniform(-5, 5, size=k),
    "integers": lambda rng, k: np.vstack([rng.integers(-1, 2, size=(k, k)), np.eye(k)]),
    "large": lambda rng, k: 1e9 * rng.normal(size=(k, k)),
    "small": lambda rng, k: 1e-9 * rng.normal(size=(k, k)),
    "orthogonal": lambda rng, k: np.linalg.qr(rng.normal(size=(k, k)))[0],
    "equal": lambda rng, k: np.ones((1, k)),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("k", [1, 2, 3, 7, 20])
def test_the_gap_closes(maker, k):
    C = MAKERS[maker](np.random.default_rng(k), k)
    X = C.T @ C
    found, y = worst_contributions(X)
    assert found.kind == "exact"
    assert found.lower <= found.upper * (1 + 1e-13)
    assert np.linalg.eigvalsh(np.diag(y) - X)[0] >= -1e-13 * np.trace(X)  # dual feasible: an upper bound by itself


@pytest.mark.parametrize("maker", ["square", "low rank", "integers"])
def test_agrees_with_coordinate_ascent(maker):
    for seed in range(4):
        C = MAKERS[maker](np.random.default_rng(seed), 6)
        truth = worst_vectors(C.T @ C)
        assert worst_contributions(C.T @ C)[0].upper == pytest.approx(truth.low, rel=1e-7)


def test_orthogonal_columns_give_the_trace():
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 9)))[0] * np.arange(1, 10)
    assert worst_contributions(Q.T @ Q)[0].upper == pytest.approx(np.sum(np.arange(1, 10) ** 2), rel=1e-9)


def test_vectors_beat_signs_for_a_random_matrix():
    C = np.random.default_rng(5).normal(size=(10, 10))
    assert worst_contributions(C.T @ C)[0].lower > best_signs(C.T @ C) * 1.001


def test_a_pattern_left_out_of_the_program_still_counts():
    """Even steps: X >= 0 and the worst, 6.75. Odd steps: a larger sum of |X|, 6.9, of which vectors reach less."""
    even = np.full((3, 3), 0.625) + np.diag(np.full(3, 0.375))
    odd = np.array([[1.0, -0.65, 0.65], [-0.65, 1.0, 0.65], [0.65, 0.65, 1.0]])
    odd[0, 0] = odd[1, 1] = odd[2, 2] = 1.31
    X = np.zeros((6, 6))
    X[::2, ::2], X[1::2, 1::2] = even, odd
    assert np.abs(odd).sum() > np.abs(even).sum() > worst_vectors(odd).high
    for method in (None, "semidefinite"):
        bound = sensitivity(Dense(np.linalg.cholesky(X).T), FixedEpochs(3, 2), method)
        assert bound.kind == "exact"
        assert bound.value**2 == pytest.approx(6.75, rel=1e-9)


def test_contradicting_numbers_are_refused():
    with pytest.raises(AntiphaseError, match="contradict"):
        Bracket(2.0, 1.9)
    with pytest.raises(AntiphaseError, match="contradict"):
        Bracket(float("nan"), 1.0)


def test_pruned_patterns_do_not_lower_the_answer():
    """Many similar patterns: the answer is the largest of all, each solved by itself."""
    rng = np.random.default_rng(2)
    k, b = 5, 40
    C = np.eye(k * b) + 0.3 * rng.normal(size=(k * b, k * b))
    X = C.T @ C
    each = [worst_contributions(X[r::b, r::b])[0].upper for r in range(b)]
    bound = sensitivity(Dense(C), FixedEpochs(k, b))
    assert (bound.kind, bound.method) == ("exact", "semidefinite")
    assert bound.value**2 == pytest.approx(max(each), rel=1e-9)
