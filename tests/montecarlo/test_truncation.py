"""Batches of a fixed size: an exact counterexample to the plain theorem, and what is charged instead."""

import math
from itertools import combinations, permutations, product

import numpy as np
import pytest

from antiphase import BallsInBins, PoissonMinSeparation
from antiphase._accounting import Mechanism
from antiphase._accounting import delta as accounted_delta
from antiphase._accounting.amplified import overflow_probability
from antiphase._errors import NotProved
from antiphase._montecarlo import bins_gram, delta, dominating_pair
from antiphase.strategies import Identity
from tests.montecarlo.oracle import integrated_delta

Mixture = dict[tuple[int, ...], float]


def mixtures(examples: int, bins: int, largest: int, adjacency: str) -> tuple[Mixture, Mixture]:
    """Batch sums with and without one example x = 1 among others of -1, over all bins and all kept subsets."""
    with_x: Mixture = {}
    without: Mixture = {}
    for drawn in product(range(bins), repeat=examples):
        members = [[i for i in range(examples) if drawn[i] == bin_] for bin_ in range(bins)]
        chance = bins**-examples
        add_up(with_x, chance, members, largest, lambda i: 1 if i == 0 else -1)
        if adjacency == "add-or-remove":
            members = [[i for i in group if i != 0] for group in members]
        add_up(without, chance, members, largest, lambda i: 0 if i == 0 else -1)
    return with_x, without


def add_up(mixture: Mixture, chance: float, members: list[list[int]], largest: int, value) -> None:
    kept = [list(combinations(group, min(largest, len(group)))) for group in members]
    for choice in product(*kept):
        sums = tuple(sum(map(value, group)) for group in choice)
        mixture[sums] = mixture.get(sums, 0.0) + chance / math.prod(map(len, kept))


def truncated_delta(
    noise: float, epsilon: float, examples: int = 2, largest: int = 1, adjacency: str = "zero-out"
) -> float:
    """The larger direction for two bins in one epoch, by a grid over both batch sums."""
    axis = np.linspace(-examples - 8.0 * noise, 1.0 + 8.0 * noise, 801)
    first, second = (density(axis, noise, mixture) for mixture in mixtures(examples, 2, largest, adjacency))
    cell = (axis[1] - axis[0]) ** 2
    return max(float(np.maximum(p - np.exp(epsilon) * q, 0.0).sum() * cell) for p, q in permutations((first, second)))


def density(axis: np.ndarray, noise: float, mixture: Mixture) -> np.ndarray:
    def normal(mean):
        return np.exp(-((axis - mean) ** 2) / (2.0 * noise**2)) / np.sqrt(2.0 * np.pi * noise**2)

    return sum(p * np.outer(normal(a), normal(b)) for (a, b), p in mixture.items())


@pytest.mark.parametrize(("noise", "epsilon"), [(1.0, 4.0), (2.0, 2.0)])
def test_truncation_breaks_the_amplified_guarantee_even_under_zero_out(noise, epsilon):
    amplified = max(integrated_delta(bins_gram(Identity(2), BallsInBins(1, 2)), noise, epsilon, points=801))
    assert truncated_delta(noise, epsilon) > 1.5 * amplified
    assert delta(Identity(2), BallsInBins(1, 2), noise, epsilon).value == pytest.approx(amplified, rel=5e-3)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
@pytest.mark.parametrize(("examples", "largest"), [(2, 1), (3, 2), (4, 3), (5, 3)])
def test_the_charge_for_overflow_covers_the_truth(examples, largest, adjacency):
    """All bins, all kept subsets, enumerated: the amplified delta alone is too small."""
    noise, epsilon = 1.0, 4.0
    truth = truncated_delta(noise, epsilon, examples, largest, adjacency)
    plain = max(integrated_delta(bins_gram(Identity(2), BallsInBins(1, 2)), noise, epsilon, points=801))
    # The larger of two neighbouring data sets has `examples`; under zero-out both do.
    stated = examples - (adjacency == "add-or-remove")
    mechanism = Mechanism(Identity(2), BallsInBins(1, 2, largest), noise, adjacency, examples=stated)
    overflow = overflow_probability(mechanism.reduction.setting)
    others = np.array(list(product((0, 1), repeat=examples - 1)))
    exact = np.mean(np.maximum(others.sum(axis=1), (1 - others).sum(axis=1)) >= largest)
    assert exact <= overflow
    assert truth <= plain + exact
    if adjacency == "add-or-remove" or examples == 2:  # more others that stay hide an example that is zeroed out
        assert truth > plain
    assert truth <= accounted_delta(mechanism, epsilon).value


@pytest.mark.parametrize("participation", [BallsInBins(1, 2, max_batch=1), PoissonMinSeparation(2, 0.1, max_batch=1)])
def test_truncated_batches_are_refused(participation):
    with pytest.raises(NotProved, match="max_batch"):
        dominating_pair(Identity(2), participation, 1.0)
