"""The Gaussian mechanism against many digits, and its exponential envelope against a search."""

import mpmath as mp
import numpy as np
import pytest

from antiphase._montecarlo.gaussian import log_divergence, log_envelope


@pytest.mark.parametrize("rho", [1e-8, 1e-4, 0.01, 1.0, 9.0, 400.0])
def test_log_divergence_against_sixty_digits(rho):
    with mp.workdps(60):
        r = mp.sqrt(mp.mpf(rho))
        for e in (-30.0, -1.0, -1e-3, 0.0, 1e-3, 0.3, 2.0, 10.0):
            exact = mp.log(mp.ncdf(r / 2 - e / r) - mp.exp(e) * mp.ncdf(-r / 2 - e / r))
            assert float(log_divergence(e, rho)) == pytest.approx(float(exact), rel=1e-10, abs=1e-10)


def test_without_a_distance_the_divergence_is_that_of_equal_means():
    np.testing.assert_allclose(np.exp(log_divergence([-2.0, -0.1], 0.0)), -np.expm1([-2.0, -0.1]))
    assert log_divergence(0.5, 0.0) == -np.inf


@pytest.mark.parametrize("rho", [0.0, 1e-10, 1e-3, 0.5, 8.0])
@pytest.mark.parametrize("slope", [0.0, 1e-3, 0.7, 5.0, 40.0])
def test_the_envelope_touches_the_divergence_from_above(rho, slope):
    e = np.linspace(-40.0, 40.0 + slope * rho + 10.0 * np.sqrt(rho), 100_001)
    highest = float((slope * e + log_divergence(e, rho)).max())
    assert highest <= log_envelope(slope, rho) <= highest + 1e-3
