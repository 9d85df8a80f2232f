"""Guarantees that the papers print, from the mechanisms they describe."""

import math

import pytest

import antiphase as ap
from antiphase.strategies import BLT, Identity, Toeplitz

USERS, STEPS, BATCH = 342_477, 2052, 1000
SCALE = math.sqrt(6)  # the papers scale C to sensitivity 1 under (6, 342); here columns have norm 1

# Choquette-Choo et al. 2023 (amplified banded), Table 5: epsilon -> (sigma of DP-SGD, bands and sigma of banded).
CENTRAL = {
    1: (0.37313, 9, 0.79118),
    2: (0.30481, 18, 0.64708),
    4: (0.25136, 32, 0.52224),
    8: (0.20567, 64, 0.43490),
    16: (0.16876, 0, 0.36861),
}


@pytest.mark.parametrize("epsilon", CENTRAL)
def test_poisson_rows_of_table_5(epsilon):
    sigma = CENTRAL[epsilon][0]
    mechanism = ap.Mechanism(Identity(STEPS), ap.Poisson(BATCH / USERS), sigma * SCALE)
    assert math.isclose(ap.epsilon(mechanism, 1e-6).value, epsilon, rel_tol=2e-3)


@pytest.mark.parametrize("epsilon", [1, 2, 4, 8])
def test_banded_rows_of_table_5(epsilon):
    _, bands, sigma = CENTRAL[epsilon]
    strategy = Toeplitz(Toeplitz.square_root(bands).coefficients, STEPS, column_normalized=True)
    participation = ap.CyclicPoisson(bands, bands * BATCH / USERS)
    mechanism = ap.Mechanism(strategy, participation, sigma * SCALE)
    assert math.isclose(ap.epsilon(mechanism, 1e-6).value, epsilon, rel_tol=2e-3)


FEDERATED = {1: 4.22468, 2: 2.23048, 4: 1.19352, 8: 0.65294, 16: 0.36861}


@pytest.mark.parametrize("epsilon", FEDERATED)
def test_rows_of_table_4(epsilon):
    """Unit columns in 342 bands, six participations at separation 342: noise sigma sqrt(6)."""
    strategy = Toeplitz(Toeplitz.square_root(342).coefficients, STEPS, column_normalized=True)
    found = ap.calibrate(strategy, ap.MinSeparation(342, 6), ap.Budget(epsilon, 1e-6))
    assert math.isclose(found.mechanism.noise_std / SCALE, FEDERATED[epsilon], rel_tol=3e-5)


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 4.76079), (2, 2.51352), (4, 1.34498), (8, 0.73579), (16, 0.41539)])
def test_multi_epoch_rows_of_table_4_are_the_row_sum_factor_higher(epsilon, sigma):
    assert math.isclose(sigma / FEDERATED[epsilon], 1.127, rel_tol=5e-4)


@pytest.mark.parametrize(("rho", "low", "high"), [(0.52, 0.515, 0.525), (0.24, 0.235, 0.245)])
def test_concentrated_privacy_of_the_production_run(rho, low, high):
    """The printed epsilon lies between those of the roundings of the printed rho."""
    printed = {0.52: 6.69, 0.24: 4.35}[rho]

    def epsilon(value):
        return ap.epsilon(ap.Mechanism(Identity(1), ap.EveryStep(), 1 / math.sqrt(2 * value)), 1e-10).value

    assert epsilon(low) <= printed + 0.005
    assert epsilon(high) >= printed - 0.005


# Choquette-Choo et al. 2023 (multi-epoch), Table 3.
@pytest.mark.parametrize(("epsilon", "sigma"), [(17.648, 0.341), (8.841, 0.600), (2.000, 2.231)])
def test_matrix_factorisation_column_of_table_3(epsilon, sigma):
    found = ap.calibrate(Identity(1), ap.EveryStep(), ap.Budget(epsilon, 1e-6)).mechanism.noise_std
    assert abs(found - sigma) <= 6e-4


@pytest.mark.parametrize(("epsilon", "sigma"), [(17.648, 0.402), (8.824, 0.491), (2.000, 0.757)])
def test_dp_sgd_column_of_table_3(epsilon, sigma):
    found = ap.calibrate(Identity(STEPS), ap.Poisson(BATCH / USERS), ap.Budget(epsilon, 1e-6)).mechanism.noise_std
    assert math.isclose(found, sigma, rel_tol=0.05)


@pytest.mark.parametrize(("epsilon", "sigma"), [(17.648, 15.518), (8.824, 27.493), (2.000, 106.023)])
def test_gradient_descent_column_of_table_3(epsilon, sigma):
    found = ap.calibrate(Identity(STEPS), ap.EveryStep(), ap.Budget(epsilon, 1e-6)).mechanism.noise_std
    assert math.isclose(found, sigma, rel_tol=0.05)


PARAMETERS = {
    100: (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    400: (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    1000: (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
    ),
}

# McMahan, Xu and Zhang 2024, Table 2: name -> (parameters, sigma, rounds, separation, participations, rho, epsilon).
PRODUCTION = {
    "es-ES": (400, 7.379, 1280, 300, 4, 0.16, 3.46, 0.003),
    "id-ID": (400, 7.379, 2350, 447, 5, 0.20, 3.93, 0.003),
    "pt-BR": (1000, 8.681, 2000, 2001, 1, 2.23e-2, 1.25, 0.003),
    "pt-BR, larger noise": (1000, 16.1, 2000, 1181, 2, 1.40e-2, 0.98, 0.003),
    "pt-PT": (100, 3.12, 430, 92, 4, 1.11, 10.19, 0.01),
    "pt-PT, larger noise": (100, 5.5, 320, 49, 6, 0.75, 8.19, 0.01),
}


@pytest.mark.parametrize("name", PRODUCTION)
def test_production_runs(name):
    which, sigma, rounds, separation, count, rho, epsilon, tolerance = PRODUCTION[name]
    strategy = BLT(*PARAMETERS[which], rounds)
    mechanism = ap.Mechanism(strategy, ap.MinSeparation(separation, count), sigma)
    assert ap.sensitivity(strategy, mechanism.participation).kind == "exact"
    assert math.isclose(ap.zcdp(mechanism).value, rho, rel_tol=0.05)
    assert math.isclose(ap.epsilon(mechanism, 1e-10).value, epsilon, rel_tol=tolerance)
