"""The number of bands that was published for the best amplified banded mechanism, within one power of two."""

import math

import pytest

import antiphase as ap

SAMPLED = ["poisson", "cyclic-poisson"]

# Choquette-Choo et al. 2023 (amplified banded), Table 3: n = 1024, delta = 1e-6; (epsilon, epochs): bands.
BANDS = {
    (0.03125, 1): 2,
    (0.03125, 4): 1,
    (0.0625, 1): 4,
    (0.125, 1): 8,
    (0.125, 8): 1,
    (0.25, 2): 4,
    (0.25, 8): 2,
    (0.5, 1): 16,
    (0.5, 4): 4,
    (0.5, 16): 2,
    (1.0, 1): 32,
    (1.0, 8): 4,
    (1.0, 32): 2,
    (2.0, 1): 64,
    (2.0, 4): 16,
    (2.0, 64): 2,
    (4.0, 1): 128,
    (4.0, 8): 16,
    (4.0, 128): 2,
    (8.0, 1): 1024,
    (8.0, 2): 512,
    (8.0, 8): 32,
    (8.0, 256): 2,
    (16.0, 4): 256,
    (16.0, 16): 64,
    (16.0, 64): 8,
    (16.0, 512): 2,
    (16.0, 1024): 1,
}
QUICK = {(0.125, 1), (1.0, 8), (8.0, 1), (8.0, 8), (16.0, 512)}


def chosen_bands(problem: ap.Problem) -> int:
    found = ap.plan(problem, ["toeplitz"], pipelines=SAMPLED)
    return 1 + found.mechanism.strategy.memory_copies


@pytest.mark.integration
@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[] if cell in QUICK else [pytest.mark.slow]) for cell in BANDS], ids=str
)
def test_bands_of_1024_steps(cell):
    epsilon, epochs = cell
    problem = ap.Problem(1024, ap.Budget(epsilon, 1e-6), examples=1024, batch_size=epochs, objective="rms")
    assert abs(math.log2(chosen_bands(problem) / BANDS[cell])) <= 1.0


@pytest.mark.integration
@pytest.mark.parametrize(("epsilon", "bands"), [(0.5, 2), (1.0, 4), (2.0, 8), (4.0, 16), (8.0, 32)])
def test_bands_of_twenty_epochs_of_a_hundred_steps(epsilon, bands):
    """Choquette-Choo et al. 2025 (near-exact amplification), Fig. 29, banded with Poisson sampling."""
    problem = ap.Problem(2000, ap.Budget(epsilon, 1e-5), examples=50_000, batch_size=500, objective="rms")
    assert abs(math.log2(chosen_bands(problem) / bands)) <= 1.0
