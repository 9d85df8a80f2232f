"""Batches of a fixed size are outside the theorem: an exact counterexample, and the refusal."""

from itertools import product

import numpy as np
import pytest

from antiphase import BallsInBins, PoissonMinSeparation
from antiphase._errors import NotProved
from antiphase._montecarlo import bins_gram, delta, dominating_pair
from antiphase.strategies import Identity
from tests.montecarlo.oracle import integrated_delta


def truncated_delta(noise: float, epsilon: float) -> float:
    """Two examples, two bins, batches of one: x = 1 is zeroed out, y = -1 is not. By a grid over both batch sums.

    Both examples draw a bin; where they meet, a fair coin decides which of them the batch keeps.
    """
    with_x: dict[tuple[int, int], float] = {}
    without: dict[tuple[int, int], float] = {}
    for x, y, keeps_x in product((0, 1), (0, 1), (True, False)):
        sums, zeroed = [0, 0], [0, 0]
        if x != y or keeps_x:
            sums[x] += 1
        if x != y or not keeps_x:
            sums[y] -= 1
            zeroed[y] -= 1
        with_x[tuple(sums)] = with_x.get(tuple(sums), 0.0) + 0.125
        without[tuple(zeroed)] = without.get(tuple(zeroed), 0.0) + 0.125
    axis = np.linspace(-1.0 - 8.0 * noise, 1.0 + 8.0 * noise, 801)
    first, second = (density(axis, noise, mixture) for mixture in (with_x, without))
    return float(np.maximum(first - np.exp(epsilon) * second, 0.0).sum() * (axis[1] - axis[0]) ** 2)


def density(axis: np.ndarray, noise: float, mixture: dict[tuple[int, int], float]) -> np.ndarray:
    def normal(mean):
        return np.exp(-((axis - mean) ** 2) / (2.0 * noise**2)) / np.sqrt(2.0 * np.pi * noise**2)

    return sum(p * np.outer(normal(a), normal(b)) for (a, b), p in mixture.items())


@pytest.mark.parametrize(("noise", "epsilon"), [(1.0, 4.0), (2.0, 2.0)])
def test_truncation_breaks_the_amplified_guarantee_even_under_zero_out(noise, epsilon):
    amplified = max(integrated_delta(bins_gram(Identity(2), BallsInBins(1, 2)), noise, epsilon, points=801))
    assert truncated_delta(noise, epsilon) > 1.5 * amplified
    assert delta(Identity(2), BallsInBins(1, 2), noise, epsilon).value == pytest.approx(amplified, rel=5e-3)


@pytest.mark.parametrize("participation", [BallsInBins(1, 2, max_batch=1), PoissonMinSeparation(2, 0.1, max_batch=1)])
def test_truncated_batches_are_refused(participation):
    with pytest.raises(NotProved, match="max_batch"):
        dominating_pair(Identity(2), participation, 1.0)
