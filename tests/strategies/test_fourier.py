"""The Fourier strategy: its matrices against the published ones, its streams, storage and errors."""

import json

import numpy as np
import pytest
from scipy.linalg import toeplitz

from antiphase._errors import InvalidArgument
from antiphase._record import from_json, to_json
from antiphase.strategies import Fourier
from antiphase.strategies._base import Strategy

DECODERS = ["direct", "optimal"]
SIZES = range(1, 41)


def complex_factors(n):
    """Return the unitary Fourier matrix F in 2n dimensions, and the principal square roots of the transform of v.

    The vector v is n ones followed by n zeros.
    """
    v = np.concatenate([np.ones(n), np.zeros(n)])
    k = np.arange(2 * n)
    F = np.exp(-2j * np.pi * np.outer(k, k) / (2 * n)) / np.sqrt(2 * n)
    transform = np.fft.fft(v)
    transform[2::2] = 0.0  # these entries are exactly 0; the root of a rounding error would be wrong
    return F, np.sqrt(transform)


@pytest.mark.parametrize("n", SIZES)
def test_encoder_is_the_real_form_of_the_published_one(n):
    F, root = complex_factors(n)
    C = (F.conj().T @ np.diag(root) @ F)[:, :n]
    assert abs(C.imag).max() < 1e-12
    np.testing.assert_allclose(Fourier(n).encoder(), C.real, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_direct_decoder_is_the_published_one(n):
    F, root = complex_factors(n)
    B = (F.conj().T @ np.diag(root) @ F)[:n]
    np.testing.assert_allclose(np.cumsum(Fourier(n).noising(), axis=0), B.real, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_optimal_decoder_is_the_pseudo_inverse(n):
    strategy = Fourier(n, decoder="optimal")
    np.testing.assert_allclose(strategy.noising(), np.linalg.pinv(strategy.encoder()), atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("n", SIZES)
def test_noising_is_a_left_inverse(n, decoder):
    strategy = Fourier(n, decoder=decoder)
    np.testing.assert_allclose(strategy.noising() @ strategy.encoder(), np.eye(n), atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_gram_column_is_the_first_column_of_the_toeplitz_gram_matrix(n):
    strategy = Fourier(n)
    C = strategy.encoder()
    X = toeplitz(strategy.gram_column())
    np.testing.assert_allclose(X, C.T @ C, atol=1e-12)
    np.testing.assert_allclose(strategy.inverse_column(), np.linalg.inv(X)[:, 0], atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 13])
def test_streams_agree_with_the_dense_matrices(n, decoder):
    rng = np.random.default_rng(n)
    strategy = Fourier(n, decoder=decoder)
    x, z = rng.normal(size=(n, 2, 3)), rng.normal(size=(2 * n, 2, 3))
    Cx, Nz = np.tensordot(strategy.encoder(), x, 1), np.tensordot(strategy.noising(), z, 1)
    assert [strategy.rows_at(t) for t in range(n)] == [2 * n] + [0] * (n - 1)
    assert strategy.rows == 2 * n
    assert strategy.memory_copies == n
    for apply in (Strategy.multiply, Fourier.multiply):
        np.testing.assert_allclose(apply(strategy, x), Cx, atol=1e-12)
    for apply in (Strategy.solve, Fourier.solve):
        np.testing.assert_allclose(apply(strategy, z), Nz, atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
def test_twenty_thousand_steps(decoder):
    x = np.random.default_rng(0).normal(size=20_000)
    strategy = Fourier(20_000, decoder=decoder)
    np.testing.assert_allclose(strategy.solve(strategy.multiply(x)), x, atol=1e-9)


@pytest.mark.parametrize("decoder", DECODERS)
def test_json_round_trip(decoder):
    strategy = Fourier(6, decoder=decoder)
    assert from_json(json.loads(json.dumps(to_json(strategy)))) == strategy


@pytest.mark.parametrize("steps", [0, -3, 2.5, True, float("inf"), "4", None])
def test_bad_steps(steps):
    with pytest.raises(InvalidArgument, match="'steps' parameter"):
        Fourier(steps)


@pytest.mark.parametrize("decoder", ["online", "", None])
def test_bad_decoder(decoder):
    with pytest.raises(InvalidArgument, match="'direct' or 'optimal'"):
        Fourier(4, decoder=decoder)


def test_wrong_lengths():
    with pytest.raises(InvalidArgument, match="needs 5 rows"):
        Fourier(5).multiply(np.ones(6))
    with pytest.raises(InvalidArgument, match="needs 10 rows"):
        Fourier(5).solve(np.ones(5))
