import numpy as np
import pytest
from scipy.linalg import toeplitz

from antiphase import schedules
from antiphase._error.fourier import fourier_variances
from antiphase._errors import InvalidArgument
from antiphase._workload import Momentum, PrefixSum
from antiphase.strategies import Fourier

DECODERS = ["direct", "optimal"]


def workloads(n):
    rates = 0.1 + np.random.default_rng(n).random(n)
    return [
        PrefixSum(),
        Momentum(0.9),
        Momentum(0.9, weight_decay=0.2),
        Momentum(0.5, learning_rates=np.full(n, 0.25), weight_decay=0.2),
        Momentum(0.0, learning_rates=rates),
        Momentum(0.5, learning_rates=rates, weight_decay=0.3),
    ]


def transform_norm(n):
    """||v^DFT||_1 as the sum of the magnitudes of the transform of n ones and n zeros."""
    return np.abs(np.fft.fft(np.repeat([1.0, 0.0], n))).sum()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("n", [*range(1, 34), 64, 100])
def test_against_dense_algebra(n, decoder):
    strategy = Fourier(n, decoder=decoder)
    N = strategy.noising()
    for workload in workloads(n):
        B = workload.matrix(n) @ N
        np.testing.assert_allclose(fourier_variances(strategy, workload), (B**2).sum(axis=1), rtol=1e-10)


@pytest.mark.integration
@pytest.mark.parametrize("decoder", DECODERS)
def test_against_dense_algebra_for_a_long_run(decoder):
    n = 1500
    strategy = Fourier(n, decoder=decoder)
    X, S = toeplitz(strategy.gram_column()), PrefixSum().matrix(n)
    for workload in (PrefixSum(), Momentum(0.95), Momentum(0.95, learning_rates=schedules.linear(n))):
        A = workload.matrix(n)
        if decoder == "optimal":
            expected = np.einsum("ij,ji->i", A, np.linalg.solve(X, A.T))
        else:
            W = np.linalg.solve(S.T, A.T).T
            expected = np.einsum("ij,jk,ik->i", W, X, W, optimize=True)
        np.testing.assert_allclose(fourier_variances(strategy, workload), expected, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 100, 20_000])
def test_direct_prefix_sums_have_constant_variance(n):
    np.testing.assert_allclose(fourier_variances(Fourier(n), PrefixSum()), transform_norm(n) / (2 * n), rtol=1e-9)


@pytest.mark.parametrize("n", [3, 10, 33])
def test_optimal_decoder_is_never_worse(n):
    for workload in workloads(n):
        direct = fourier_variances(Fourier(n), workload)
        optimal = fourier_variances(Fourier(n, decoder="optimal"), workload)
        assert (optimal <= direct * (1 + 1e-12)).all()


@pytest.mark.parametrize("n", [1, 2, 5, 16, 99, 2000])
def test_corollary_j1(n):
    """Cor. J.1 is four times the mean squared error of the real mechanism at the same zCDP.

    With rho = sens^2 kappa^2 / (2 sigma^2), sens^2 = g_0 (every column of C) and variance g_0 in every step, the mean
    squared error is kappa^2 loss^2 / (2 rho), loss^2 = g_0^2 = (||v||_1 / 2n)^2. The corollary has
    kappa^2 ||v||_1^2 / (2 rho n^2): a factor 2 since it counts the imaginary part of the complex noise too, which is
    not released, and a factor 2 since its Eq. 43 takes ||v||_1 for the trace of the top left n x n block of
    F* |Sigma| F, which is n ||v||_1 / 2n. The sum runs over a = 0, ..., n - 1, all odd frequencies below 2n (Eq. 46
    stops half-way).
    """
    rho, kappa = 0.3, 1.7
    a = np.arange(n)
    total = n + (1.0 / np.sin(np.pi * (2 * a + 1) / (2 * n))).sum()
    corollary = kappa**2 / (2 * rho * n**2) * total**2
    strategy = Fourier(n)
    squared_columns = strategy.multiply(np.eye(n, 1)) ** 2
    loss_squared = squared_columns.sum() * fourier_variances(strategy, PrefixSum()).mean()
    np.testing.assert_allclose(4.0 * kappa**2 * loss_squared / (2 * rho), corollary, rtol=1e-10)
    np.testing.assert_allclose(total, transform_norm(n), rtol=1e-10)


def test_trace_behind_corollary_j1():
    n = 16
    k = np.arange(2 * n)
    F = np.exp(-2j * np.pi * np.outer(k, k) / (2 * n)) / np.sqrt(2 * n)
    magnitudes = np.abs(np.fft.fft(np.repeat([1.0, 0.0], n)))
    block = (F.conj().T @ np.diag(magnitudes) @ F)[:n, :n]
    np.testing.assert_allclose(np.trace(block).real, transform_norm(n) / 2, rtol=1e-12)


# Choquette-Choo et al. 2023 (multi-epoch), Table 1: sens^2 ||B||_F^2, prefix sum, (k, b) = (20, 100), n = 2000, with
# the spectral bound k max_pi lambda_max(X[pi, pi]) of Thm 2.1 for sens^2.
STAMPS = [1, 2, 5, 10, 20]
DIRECT = ["2.3e+06", "1.8e+06", "1.6e+06", "1.9e+06", "2.5e+06"]
OPTIMAL = ["2.2e+06", "1.5e+06", "1.1e+06", "1.2e+06", "1.7e+06"]


def squared_spectral_bound(g, repeats):
    block = len(g)
    largest = 0.0
    for first in range(100):
        t = np.arange(first, block * repeats, 100)
        same = t[:, None] // block == t // block
        X = np.where(same, g[np.abs(t[:, None] - t) % block], 0.0)
        largest = max(largest, np.linalg.eigvalsh(X)[-1])
    return 20 * largest


@pytest.mark.parametrize(("decoder", "column"), [("direct", DIRECT), ("optimal", OPTIMAL)])
@pytest.mark.parametrize("row", range(5))
def test_table_1(decoder, column, row):
    repeats = STAMPS[row]
    strategy = Fourier(2000 // repeats, decoder=decoder)
    base = fourier_variances(strategy, PrefixSum())
    total = sum((base + i * base[-1]).sum() for i in range(repeats))
    assert f"{squared_spectral_bound(strategy.gram_column(), repeats) * total:.1e}" == column[row]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("rates", [np.ones(5), np.linspace(0.1, 1.0, 5)])
def test_a_schedule_of_another_length_is_refused(decoder, rates):
    with pytest.raises(InvalidArgument, match="learning_rates"):
        fourier_variances(Fourier(4, decoder=decoder), Momentum(0.9, learning_rates=rates))
