"""Noise multipliers and epsilons that papers have printed."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting import Budget, Mechanism, calibrate, epsilon, zcdp
from antiphase.strategies import BLT, Identity, Toeplitz

STEPS, USERS, BATCH = 2052, 342_477, 1000
RATE = BATCH / USERS
# Choquette-Choo et al. 2023 (amplified banded) scale C to sensitivity 1 under (6, 342): unit columns need sqrt(6) more.
UNIT = math.sqrt(6.0)


@pytest.mark.parametrize(
    ("target", "noise", "multi_epoch"),
    [
        (1, 4.22468, 4.76079),
        (2, 2.23048, 2.51352),
        (4, 1.19352, 1.34498),
        (8, 0.65294, 0.73579),
        (16, 0.36861, 0.41539),
    ],
)
def test_amplified_banded_table_4(target, noise, multi_epoch):
    participation = ap.MinSeparation(342, 6)
    found = calibrate(Identity(STEPS), participation, Budget(target, 1e-6)).mechanism.noise_std / UNIT
    assert found == pytest.approx(noise, abs=6e-6)
    assert epsilon(Mechanism(Identity(STEPS), participation, noise * UNIT), 1e-6).value == pytest.approx(
        target, rel=2e-5
    )
    # The multi-epoch matrices have 1.127 times that sensitivity by the bound of Alg. 4.
    assert multi_epoch / found == pytest.approx(1.127, abs=2e-4)


@pytest.mark.parametrize(("target", "noise"), [(1, 0.37313), (2, 0.30481), (4, 0.25136), (8, 0.20567), (16, 0.16876)])
def test_amplified_banded_table_5_sgd(target, noise):
    found = epsilon(Mechanism(Identity(STEPS), ap.Poisson(RATE), noise * UNIT), 1e-6)
    assert found.value == pytest.approx(target, rel=2e-3)


@pytest.mark.parametrize(
    ("target", "bands", "noise"), [(1, 9, 0.79118), (2, 18, 0.64708), (4, 32, 0.52224), (8, 64, 0.43490)]
)
def test_amplified_banded_table_5_banded(target, bands, noise):
    strategy = Toeplitz(np.ones(bands), STEPS, column_normalized=True)
    found = epsilon(Mechanism(strategy, ap.CyclicPoisson(bands, RATE * bands), noise * UNIT), 1e-6)
    assert found.value == pytest.approx(target, rel=2e-3)


@pytest.mark.parametrize(("rho", "expected"), [(0.52, 6.69), (0.24, 4.35)])
def test_amplified_banded_appendix_k(rho, expected):
    def at(value: float) -> float:
        mechanism = Mechanism(Identity(1), ap.SingleParticipation(), 1.0 / math.sqrt(2.0 * value))
        assert zcdp(mechanism).value == pytest.approx(value)
        return epsilon(mechanism, 1e-10).value

    assert at(rho - 0.005) - 0.005 <= expected <= at(rho + 0.005) + 0.005


@pytest.mark.parametrize(("target", "noise"), [(17.648, 0.341), (8.841, 0.600), (2.000, 2.231)])
def test_multi_epoch_table_3_matrix_factorization(target, noise):
    found = calibrate(Identity(1), ap.SingleParticipation(), Budget(target, 1e-6)).mechanism.noise_std
    assert math.ceil(1000.0 * found) / 1000.0 == pytest.approx(noise, abs=1e-12)


@pytest.mark.parametrize(
    ("target", "sgd", "gd"), [(17.648, 0.402, 15.518), (8.824, 0.491, 27.493), (2.0, 0.757, 106.023)]
)
def test_multi_epoch_table_3_others(target, sgd, gd):
    """An older accountant was used there, which asked for up to 5 % more noise."""
    budget = Budget(target, 1e-6)
    for participation, noise in ((ap.Poisson(RATE), sgd), (ap.EveryStep(), gd)):
        found = calibrate(Identity(STEPS), participation, budget).mechanism.noise_std
        assert 0.95 * noise <= found <= 1.002 * noise


BLT_100 = (
    (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
    (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
)
BLT_400 = (
    (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
    (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)
BLT_1000 = (
    (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
    (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
)


@pytest.mark.parametrize(
    ("parameters", "rounds", "noise", "separation", "participations", "expected", "within"),
    [
        (BLT_400, 1280, 7.379, 300, 4, 3.46, 0.003),
        (BLT_400, 2350, 7.379, 447, 5, 3.93, 0.003),
        (BLT_1000, 2000, 8.681, 2001, 1, 1.25, 0.003),
        (BLT_1000, 2000, 16.1, 1181, 2, 0.98, 0.003),
        (BLT_100, 430, 3.12, 92, 4, 10.19, 0.01),  # the number of rounds is approximate
        (BLT_100, 320, 5.5, 49, 6, 8.19, 0.01),
    ],
    ids=["es-ES", "id-ID", "pt-BR", "pt-BR-large", "pt-PT", "pt-PT-large"],
)
def test_buffered_toeplitz_table_2(parameters, rounds, noise, separation, participations, expected, within):
    strategy = BLT(*parameters, rounds)
    found = epsilon(Mechanism(strategy, ap.MinSeparation(separation, participations), noise), 1e-10)
    assert found.kind == "exact"
    assert found.value == pytest.approx(expected, rel=within)
