"""Derivatives of delta for the Gram matrix, against differences of integrals."""

import math

import numpy as np
import pytest

from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.samples import randomness
from antiphase._montecarlo.slopes import delta_slopes
from tests.montecarlo.oracle import integrated_delta

CASES = [
    (np.array([[1.0, 0.5], [0.5, 0.8]]), 0.9, 1.5, 1001),
    (np.array([[1.0, 0.1], [0.1, 1.0]]), 1.5, 0.7, 1001),
    (np.array([[1.0, 0.3, 0.1], [0.3, 0.9, 0.2], [0.1, 0.2, 0.7]]), 1.2, 1.0, 81),
]


def differences(gram: np.ndarray, epsilon: float, points: int, direction: int, h: float = 1e-3) -> np.ndarray:
    """d delta / dK_ij with (i, j) and (j, i) as two entries."""
    out = np.empty_like(gram)
    for i, j in np.ndindex(gram.shape):
        step = np.zeros_like(gram)
        step[i, j] += h / 2.0
        step[j, i] += h / 2.0
        low, high = (integrated_delta(gram + s * step, 1.0, epsilon, points)[direction] for s in (-1.0, 1.0))
        out[i, j] = (high - low) / (2.0 * h)
    return out


@pytest.mark.integration
@pytest.mark.parametrize(("gram", "noise", "epsilon", "points"), CASES)
@pytest.mark.parametrize("direction", [0, 1], ids=["remove", "add"])
def test_slopes_are_differences_of_integrals(gram, noise, epsilon, points, direction):
    pair = bins_pair(gram, noise)
    found = delta_slopes(pair, epsilon, 1 << 16, randomness(1), adding=direction == 1)
    whole = gram / noise**2
    value = integrated_delta(whole, 1.0, epsilon, points)[direction]
    assert math.exp(found.log_delta) == pytest.approx(value, rel=0.02)
    np.testing.assert_allclose(found.by_gram * value, differences(whole, epsilon, points, direction), rtol=0.05)
    by_noise = [integrated_delta(gram, f * noise, epsilon, points)[direction] for f in (0.99, 1.01)]
    assert found.by_log_noise == pytest.approx(math.log(by_noise[1] / by_noise[0]) / math.log(1.01 / 0.99), rel=0.03)


def test_more_in_common_means_more_delta():
    """Every derivative is positive: why |C| is needed, and why bins that share little amplify."""
    rng = np.random.default_rng(0)
    root = rng.random((6, 9))
    found = delta_slopes(bins_pair(root @ root.T, 3.0), 1.0, 4096, randomness(3), adding=False)
    assert (found.by_gram > 0.0).all()
    assert found.by_log_noise < 0.0
