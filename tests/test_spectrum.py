"""The Lanczos quadrature against dense eigenvalues."""

import numpy as np
import pytest

import antiphase as ap
from antiphase._spectrum import curvatures_from_spectrum, lanczos_quadrature


def symmetric(size, seed=0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(size, size)))[0]
    eigenvalues = np.geomspace(1e-3, 2.0, size) * np.where(np.arange(size) % 5 == 0, -1.0, 1.0)
    return (Q * eigenvalues) @ Q.T, eigenvalues


def test_full_lanczos_gives_every_moment_of_the_probe():
    """With as many iterations as rows the quadrature is exact for the quadratic form of its probe."""
    H, _ = symmetric(12)
    nodes, weights = lanczos_quadrature(lambda v: H @ v, 12, iterations=12, probes=1, rng=np.random.default_rng(3))
    probe = np.random.default_rng(3).choice([-1.0, 1.0], 12) / np.sqrt(12)
    power = probe.copy()
    for k in range(8):
        assert weights @ nodes**k == pytest.approx(probe @ power, rel=1e-9, abs=1e-12)
        power = H @ power


def test_many_probes_estimate_the_spectral_moments():
    """Hutchinson's variance of one probe is at most 2 |H^2|_F^2 / n^2; 400 probes leave 5 standard errors of room."""
    size = 60
    H, eigenvalues = symmetric(size)
    rng = np.random.default_rng(1)
    nodes, weights = lanczos_quadrature(lambda v: H @ v, size, iterations=15, probes=400, rng=rng)
    assert weights.sum() == pytest.approx(1.0)
    for k in (1, 2, 3):
        spread = np.sqrt(2.0 * (eigenvalues ** (2 * k)).sum() / 400) / size
        assert abs(weights @ nodes**k - (eigenvalues**k).mean()) < 5 * spread


def test_lanczos_stops_where_the_krylov_space_ends():
    nodes, weights = lanczos_quadrature(lambda v: 0.0 * v, 7, iterations=5, probes=3, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(nodes, 0.0)
    assert weights.sum() == pytest.approx(1.0)


def options(**changed):
    usual = {"learning_rate": 0.5, "clip_factor": 1.0, "iterations": 30, "probes": 2, "seed": 0, "steps": "last"}
    return {"owner": "curvatures", **usual, **changed}


def test_curvatures_are_rate_times_eigenvalue_weighted_by_eigenvalue():
    H = np.diag([0.0, 0.0, 1.0, 2.0])
    found = curvatures_from_spectrum(lambda v: H @ v, 4, **options(learning_rate=0.25, clip_factor=0.5))
    values = np.unique(found.values.round(9))
    np.testing.assert_allclose(values, [0.125, 0.25])
    shares = [found.shares[np.isclose(found.values, h)].sum() for h in values]
    np.testing.assert_allclose(shares, [1 / 3, 2 / 3])  # signs: each direction has the same density in every probe


def test_curvatures_beyond_the_stable_range_are_cut_to_it():
    found = curvatures_from_spectrum(lambda v: 100.0 * v, 3, **options())
    assert found.values.max() < 2.0
    assert ap.error(ap.strategies.Identity(5), ap.PrefixSum(), found).value > 0


@pytest.mark.parametrize(
    ("multiply", "message"), [(lambda v: -v, "no direction of positive"), (lambda v: v * np.nan, "finite")]
)
def test_useless_spectra_are_refused(multiply, message):
    with pytest.raises(ap.AntiphaseError, match=message):
        curvatures_from_spectrum(multiply, 4, **options())
