"""The binary tree under minimum separation."""

import numpy as np
import pytest

from antiphase import FixedEpochs, MinSeparation, NotProved, SingleParticipation
from antiphase._sensitivity import sensitivity, tree
from antiphase.strategies import Stamped, Tree


def brute_force(strategy, participation):
    """All entries of C are 0 or 1, so equal contributions are the worst."""
    C = strategy.encoder()
    return max(np.sum(C[:, list(p)].sum(axis=1) ** 2) for p in participation.patterns(strategy.steps))


def earliest(strategy, b, k):
    return np.sum(strategy.encoder()[:, : b * k : b].sum(axis=1) ** 2)


def squared(strategy, participation, method=None):
    return sensitivity(strategy, participation, method).value ** 2


def test_the_earliest_pattern_is_not_the_worst():
    bound = sensitivity(Tree(16), MinSeparation(3, 5))
    assert bound.kind == "exact"
    assert bound.value**2 == pytest.approx(57, rel=1e-14)
    assert earliest(Tree(16), 3, 5) == 55


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 19])
@pytest.mark.parametrize("b", [1, 2, 3, 4, 5, 7, 9])
def test_brute_force(steps, b):
    for k in (None, 1, 2, 3, 5):
        participation = MinSeparation(b, k)
        if participation.largest_count(steps) > 7 and steps > 12:
            continue
        truth = brute_force(Tree(steps), participation)
        bound = sensitivity(Tree(steps), participation, "subtrees")
        assert bound.kind == "exact"
        assert bound.value**2 == pytest.approx(truth, rel=1e-14)
        assert squared(Tree(steps), participation, "levels") >= truth * (1 - 1e-14)


@pytest.mark.parametrize(("steps", "repeats"), [(4, 4), (5, 3), (8, 2), (3, 5), (1, 6)])
@pytest.mark.parametrize("b", [1, 2, 3, 5, 6])
def test_stamped_brute_force(steps, repeats, b):
    strategy = Stamped(Tree(steps), repeats)
    for k in (None, 2, 3, 4):
        participation = MinSeparation(b, k)
        truth = brute_force(strategy, participation)
        assert squared(strategy, participation, "subtrees") == pytest.approx(truth, rel=1e-14)
        for name in ("levels", "blocks", "row-sum"):
            assert squared(strategy, participation, name) >= truth * (1 - 1e-14)


@pytest.mark.parametrize(("steps", "b", "k"), [(2048, 400, 6), (2052, 342, 6), (2000, 100, 20), (1024, 40, 20)])
def test_sizes_in_use_are_exact(steps, b, k):
    """At least the earliest and the fixed-epoch patterns, at most the two bounds."""
    bound = sensitivity(Tree(steps), MinSeparation(b, k))
    assert (bound.kind, bound.method) == ("exact", "subtrees")
    epochs = sensitivity(Tree(steps), FixedEpochs(-(-steps // b), b)).value
    assert bound.value >= (epochs if k == -(-steps // b) else 0.0)
    assert bound.value**2 >= earliest(Tree(steps), b, k)
    for name in ("levels", "row-sum"):
        assert bound.value <= sensitivity(Tree(steps), MinSeparation(b, k), name).value


def test_a_pattern_found_by_search_is_covered():
    """Random hill climbing over patterns stays below the answer, and comes near it."""
    rng, n, b, k = np.random.default_rng(0), 200, 9, 8
    C = Tree(n).encoder()
    best = 0.0
    for _ in range(20):
        pattern = np.arange(k) * b + rng.integers(0, n - k * b)
        for _ in range(300):
            i = rng.integers(k)
            low = pattern[i - 1] + b if i else 0
            high = pattern[i + 1] - b if i < k - 1 else n - 1
            trial = pattern.copy()
            trial[i] = rng.integers(low, high + 1)
            if np.sum(C[:, trial].sum(axis=1) ** 2) >= np.sum(C[:, pattern].sum(axis=1) ** 2):
                pattern = trial
        best = max(best, np.sum(C[:, pattern].sum(axis=1) ** 2))
    value = squared(Tree(n), MinSeparation(b, k))
    assert best <= value
    assert value <= 1.1 * best


def test_tables_that_grow_too_large_fall_back_to_a_bound(monkeypatch):
    monkeypatch.setattr(tree, "LARGEST_WORK", 1000)
    monkeypatch.setattr(tree._Forest.__init__, "__defaults__", (1000, 1000))
    bound = sensitivity(Tree(64), MinSeparation(3))
    assert bound.kind == "upper"
    with pytest.raises(NotProved, match="too large"):
        sensitivity(Tree(64), MinSeparation(3), "subtrees")


def test_single_participation_counts_the_levels():
    assert squared(Tree(9), SingleParticipation()) == pytest.approx(5)
    assert squared(Tree(1 << 20), MinSeparation(1, 1)) == pytest.approx(21)
