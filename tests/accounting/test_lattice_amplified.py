"""Balls in bins and Poisson sampling with a minimum separation on a lattice: theorem 3 of docs/lattice-noise.md."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting import gaussian
from antiphase._accounting.amplified import COUPLED_TAIL, coupling_of
from antiphase.strategies import Identity, Toeplitz
from tests.accounting.test_lattice_enumeration import EPSILONS, Adversary, Case, log_probability, run

FEW = ap.MonteCarlo(seed=5, slack=0.3)
CASES = {
    "balls in bins": (Toeplitz([1.0, 0.5, 0.25], 12), ap.BallsInBins(3, 4)),
    "minimum separation": (Toeplitz([1.0, 0.5], 12), ap.PoissonMinSeparation(3, 0.3)),
}


def mechanism_for(name, noise_std=1.5, bits=36):
    strategy, participation = CASES[name]
    lattice = ap.Lattice(-bits, 2**bits, 10_000)
    return ap.Mechanism(strategy, participation, noise_std, lattice=lattice)


def test_what_is_called_negligible_is():
    """delta' of the coupling is below e^-800, and e^50 delta' below 1e-12 x 1e-200."""
    for mu in (1e-9, 1e-4, 0.1, 1.0):
        assert gaussian.log_delta(mu, COUPLED_TAIL) < -800.0
    assert math.log(1e-12) + math.log(1e-200) > -800.0 + 50.0


@pytest.mark.parametrize("name", CASES)
def test_a_fine_lattice_costs_next_to_nothing(name):
    fine = mechanism_for(name)
    coupling, plain = coupling_of(fine), replace(fine, lattice=None)
    assert 0.0 < coupling.epsilon < 1e-4
    with_lattice, without = ap.epsilon(fine, 1e-5, FEW), ap.epsilon(plain, 1e-5, FEW)
    assert with_lattice.value < 1.03 * without.value  # different seeds
    assert (
        with_lattice.value < 0.95 * ap.epsilon(replace(fine, participation=fine.participation.worst_case), 1e-5).value
    )
    assert ap.delta(fine, 2.0, FEW).value < 1.2 * ap.delta(plain, 2.0, FEW).value
    claim = with_lattice.value * 1.05
    assert ap.verify(fine, claim, 1e-5, sampling=FEW).value == 1e-5


@pytest.mark.integration
@pytest.mark.parametrize("name", CASES)
def test_a_coarse_lattice_has_no_amplification(name):
    """If epsilon' would be large, the bound without amplification is smaller."""
    coarse = mechanism_for(name, bits=8)
    unamplified = replace(coarse, participation=coarse.participation.worst_case)
    assert ap.epsilon(coarse, 1e-5, FEW).value == ap.epsilon(unamplified, 1e-5).value
    assert ap.delta(coarse, 2.0, FEW).value == ap.delta(unamplified, 2.0).value


def test_calibration_meets_the_budget():
    budget = ap.Budget(2.0, 1e-5)
    strategy, participation = CASES["balls in bins"]
    lattice = ap.Lattice(-36, 2**36, 10_000)
    found = ap.calibrate(strategy, participation, budget, sampling=FEW, lattice=lattice)
    assert found.mechanism.lattice == lattice
    assert found.guarantee.value <= 2.0
    plain = ap.calibrate(strategy, participation, budget, sampling=FEW)
    assert found.mechanism.noise_std < 1.02 * plain.mechanism.noise_std


def test_without_correlation_nothing_is_rounded():
    given = ap.Mechanism(Identity(8), ap.BallsInBins(2, 4), 1.0, lattice=ap.Lattice(0, 3, 10**6))
    assert coupling_of(given).epsilon == 0.0


@pytest.mark.integration
@pytest.mark.parametrize("strategy", [Toeplitz([1.0, -0.5, 0.75, 0.375], 4), Toeplitz([1.0, 0.5, 0.25], 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_3_by_enumeration(strategy, seed):
    """Two bins of two steps, grids so coarse that rounding matters: P, Q and P* of the proof, all outputs.

    P* has real means, so its probabilities of integers are differences of the normal distribution at real numbers.
    """
    from scipy.stats import norm

    case = Case(strategy, ap.EveryStep(), 1, 2, 3, (-12, 11))
    with_example, middle, without = 0.0, 0.0, None
    for pattern in itertools.product((0, 1), (2, 3)):  # one step of each epoch
        adversary = Adversary(case, pattern, seed)
        adversary._ball = Adversary(case, (0, 1, 2, 3), seed)._ball
        (log_q, log_p), moved, exact = run(case, adversary, 0)
        z = np.stack(np.meshgrid(*[np.arange(-12, 12)] * 4, indexing="ij")).reshape(4, -1)
        real = (z - exact[:, 0]) / case.sigma
        star = np.prod(norm.cdf(real + 1 / case.sigma) - norm.cdf(real), axis=0)
        assert np.abs(moved - exact).max() < 1.0
        assert np.array_equal(log_q, log_probability(z, case.sigma).sum(axis=0))
        with_example, middle, without = with_example + np.exp(log_p) / 4, middle + star / 4, np.exp(log_q)
    eta = math.sqrt(3) / case.sigma  # K = 1, d = 1, three rows
    for e in EPSILONS:
        real = max(_hockey_stick(middle, without, e), _hockey_stick(without, middle, e))
        for small in (0.01, 0.3, 1.0):
            other = gaussian.delta(eta, small)
            limit = max(math.exp(small) * real + other, real + math.exp(e) * other) + 1e-6  # outside the window
            assert _hockey_stick(with_example, without, e + small) <= limit
            assert _hockey_stick(without, with_example, e + small) <= limit
            assert _hockey_stick(with_example, middle, small) <= other + 1e-6


def _hockey_stick(p, q, epsilon):
    return float(np.maximum(0.0, p - math.exp(epsilon) * q).sum())
