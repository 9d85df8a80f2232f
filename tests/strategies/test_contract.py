"""Properties that every strategy must have, checked on every strategy of tests/catalog.py."""

import json

import numpy as np
import pytest

import antiphase as ap
from antiphase.strategies import Strategy
from tests.catalog import check_known, every_strategy

CASES = [(n, name) for n in (1, 2, 3, 6, 12) for name, _ in every_strategy(n)]


def made(n: int, name: str):
    return dict(every_strategy(n))[name]


@pytest.mark.parametrize(("n", "name"), CASES)
def test_noising_is_a_left_inverse(n, name):
    strategy = made(n, name)
    C, N = strategy.encoder(), strategy.noising()
    assert C.shape == (strategy.rows, n)
    assert N.shape == (n, strategy.rows)
    np.testing.assert_allclose(N @ C, np.eye(n), atol=1e-9)


@pytest.mark.parametrize(("n", "name"), CASES)
def test_multiply_and_solve_agree_with_the_matrices_and_invert_each_other(n, name):
    strategy = made(n, name)
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=(n, 2, 3)), rng.normal(size=(strategy.rows, 2, 3))
    np.testing.assert_allclose(strategy.multiply(x), np.tensordot(strategy.encoder(), x, axes=1), atol=1e-10)
    np.testing.assert_allclose(strategy.solve(z), np.tensordot(strategy.noising(), z, axes=1), atol=1e-9)
    np.testing.assert_allclose(strategy.solve(strategy.multiply(x)), x, atol=1e-9)
    if strategy.rows == n:
        np.testing.assert_allclose(strategy.multiply(strategy.solve(z)), z, atol=1e-8)


@pytest.mark.parametrize(("n", "name"), CASES)
def test_streams_give_the_same_as_the_matrices(n, name):
    strategy = made(n, name)
    rng = np.random.default_rng(2)
    x, z = rng.normal(size=(n, 4)), rng.normal(size=(strategy.rows, 4))
    encoding, noising = strategy.encoding_stream(), strategy.noising_stream()
    rows = np.concatenate([encoding.step(x[t]) for t in range(n)])
    np.testing.assert_allclose(rows, strategy.encoder() @ x, atol=1e-9)
    start, out = 0, []
    for t in range(n):
        stop = start + strategy.rows_at(t)
        out.append(noising.step(z[start:stop]))
        start = stop
    assert start == strategy.rows
    np.testing.assert_allclose(np.array(out), strategy.noising() @ z, atol=1e-9)


@pytest.mark.parametrize(("n", "name"), CASES)
def test_json_round_trip(n, name):
    strategy = made(n, name)
    again = ap.from_json(json.loads(json.dumps(ap.to_json(strategy))))
    assert again == strategy
    assert hash(again) == hash(strategy)
    np.testing.assert_array_equal(again.encoder(), strategy.encoder())


@pytest.mark.parametrize(("n", "name"), CASES)
def test_wrong_number_of_rows_is_refused(n, name):
    strategy = made(n, name)
    with pytest.raises(ap.InvalidArgument, match="rows"):
        strategy.multiply(np.zeros((n + 1, 2)))
    with pytest.raises(ap.InvalidArgument, match="rows"):
        strategy.solve(np.zeros((strategy.rows + 1, 2)))


@pytest.mark.parametrize("coefficients", [[1.0, 0.5j], np.array([1.0 + 0.0j])])
def test_complex_numbers_are_refused(coefficients):
    with pytest.raises(ap.InvalidArgument, match="real numbers"):
        ap.strategies.Toeplitz(coefficients, 4)


def test_large_arrays_round_trip_bit_for_bit():
    strategy = ap.strategies.Banded(np.random.default_rng(0).random((900, 1)) + 0.1)
    large = ap.strategies.Dense(np.tril(np.random.default_rng(0).random((60, 60))) + np.eye(60))
    for case in (strategy, large):
        assert ap.from_json(json.loads(json.dumps(ap.to_json(case)))) == case


def test_different_strategies_are_not_equal():
    a, b = ap.strategies.Toeplitz([1.0, 0.5], 4), ap.strategies.Toeplitz([1.0, 0.5], 5)
    assert a != b
    assert a != ap.strategies.Toeplitz([1.0, 0.5], 4, column_normalized=True)
    assert ap.strategies.Identity(3) != "identity"


@pytest.mark.parametrize(("n", "name"), CASES)
def test_diagonals_cover_all_of_c(n, name):
    """Sampling is amplified by this number: one diagonal too few would give an epsilon that is too small."""
    strategy = made(n, name)
    rows, columns = np.nonzero(strategy.encoder())
    if strategy.diagonals is None:
        return
    assert (rows >= columns).all()
    assert strategy.diagonals == (rows - columns).max() + 1


@pytest.mark.parametrize(("n", "name"), CASES)
def test_stated_columns_are_those_of_c(n, name):
    strategy = made(n, name)
    C, column, bands = strategy.encoder(), strategy.toeplitz_column(), strategy.band_columns()
    if column is not None:
        dense = sum((np.diag(np.full(n - k, c), -k) for k, c in enumerate(column[:n])), np.zeros((n, n)))
        np.testing.assert_allclose(C, dense, rtol=1e-12, atol=1e-14)
    if bands is not None:
        dense = np.zeros((n, n))
        for j in range(n):
            length = min(bands.shape[1], n - j)
            dense[j : j + length, j] = bands[j, :length]
        np.testing.assert_allclose(C, dense, rtol=1e-12, atol=1e-14)


def test_every_strategy_is_in_the_catalogue_and_in_both_tables():
    """Dense needs none for its error: dense algebra is what every other strategy falls back on."""
    from antiphase._error import table as error_table
    from antiphase._sensitivity import table as sensitivity_table

    public = {getattr(ap.strategies, name) for name in ap.strategies.__all__}
    kinds = {type(strategy) for _, strategy in every_strategy(6)}
    assert kinds == {kind for kind in public if issubclass(kind, Strategy)} - {Strategy}
    assert kinds == set(sensitivity_table.TABLE)
    assert kinds - {ap.strategies.Dense} == set(error_table.TABLE)


def test_a_name_that_is_not_in_the_catalogue_is_refused():
    """`make contract STRATEGY=name` would select only the tests that go through all strategies, and pass."""
    check_known("blt")
    check_known("Tree")
    with pytest.raises(SystemExit, match="STRATEGY=bltt occurs in no name in"):
        check_known("bltt")
