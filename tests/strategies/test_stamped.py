"""`Stamped`, which repeats a base strategy: its matrices and streams, its optimal decoder, storage and errors."""

import json

import numpy as np
import pytest

from antiphase._errors import InvalidArgument
from antiphase._record import from_json, to_json
from antiphase._workload import Momentum, PrefixSum
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from antiphase.strategies._base import Strategy

BASES = [
    Identity(3),
    Dense([[2.0, 0.0], [1.0, 1.0]]),
    Dense([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
    Banded([[2.0, 1.0], [3.0, -0.5], [1.5, 0.0]]),
    Toeplitz([1.0, 0.5, 0.25], 4, column_normalized=True),
    BLT([0.9, 0.5], [0.1, 0.2], 4),
    BandedInverse([1.0, -0.5], 3),
    Tree(5),
    Tree(5, decoder="full"),
    Fourier(4),
    Fourier(4, decoder="optimal"),
    Stamped(Tree(3), 2),
]
OPTIMAL = [Toeplitz([1.0, 0.5], 3), BLT([0.9], [0.3], 4), Tree(6, decoder="full"), Fourier(5, decoder="optimal")]


def name(strategy):
    return f"{type(strategy).__name__}-{getattr(strategy, 'decoder', '')}"


@pytest.mark.parametrize("repeats", [1, 2, 5])
@pytest.mark.parametrize("base", BASES, ids=name)
def test_matrices_are_block_diagonal(base, repeats):
    stamped = Stamped(base, repeats)
    C, N = np.kron(np.eye(repeats), base.encoder()), np.kron(np.eye(repeats), base.noising())
    np.testing.assert_allclose(stamped.encoder(), C, atol=1e-13)
    np.testing.assert_allclose(stamped.noising(), N, atol=1e-13)
    np.testing.assert_allclose(N @ C, np.eye(stamped.steps), atol=1e-12)
    assert C.shape == (stamped.rows, stamped.steps)
    assert stamped.memory_copies == base.memory_copies


@pytest.mark.parametrize("base", BASES, ids=name)
def test_streams_agree_with_the_dense_matrices(base):
    rng = np.random.default_rng(1)
    stamped = Stamped(base, 3)
    x, z = rng.normal(size=(stamped.steps, 2, 2)), rng.normal(size=(stamped.rows, 2, 2))
    assert sum(stamped.rows_at(t) for t in range(stamped.steps)) == stamped.rows
    for apply in (Strategy.multiply, Stamped.multiply):
        np.testing.assert_allclose(apply(stamped, x), np.tensordot(stamped.encoder(), x, 1), atol=1e-12)
    for apply in (Strategy.solve, Stamped.solve):
        np.testing.assert_allclose(apply(stamped, z), np.tensordot(stamped.noising(), z, 1), atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 4, 6])
def test_online_tree_is_restarted_as_published(n):
    """App. D.4: B on the diagonal, and below it the last row of B, the finished block's noise, repeated."""
    base, repeats = Tree(n), 4
    B = np.cumsum(base.noising(), axis=0)
    below = np.tile(B[-1], (n, 1))
    expected = np.block([[B if i == j else below * (j < i) for j in range(repeats)] for i in range(repeats)])
    got = PrefixSum().matrix(n * repeats) @ Stamped(base, repeats).noising()
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("base", OPTIMAL, ids=name)
@pytest.mark.parametrize("workload", [PrefixSum(), Momentum(0.9, weight_decay=0.1)])
def test_optimal_bases_give_the_optimal_decoder(base, workload):
    """App. D.4: B = A (C (x) I)^+."""
    stamped = Stamped(base, 3)
    A = workload.matrix(stamped.steps)
    expected = A @ np.linalg.pinv(np.kron(np.eye(3), base.encoder()))
    np.testing.assert_allclose(A @ stamped.noising(), expected, atol=1e-10)


@pytest.mark.parametrize("base", BASES, ids=name)
def test_json_round_trip(base):
    stamped = Stamped(base, 3)
    again = from_json(json.loads(json.dumps(to_json(stamped))))
    assert again == stamped
    assert again != Stamped(base, 4)
    assert hash(again) == hash(stamped)


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True, float("nan"), None])
def test_bad_repeats(repeats):
    with pytest.raises(InvalidArgument, match="'repeats'"):
        Stamped(Tree(3), repeats)


@pytest.mark.parametrize("base", [None, 3, Tree, np.eye(2), PrefixSum()])
def test_bad_base(base):
    with pytest.raises(InvalidArgument, match="'strategy'"):
        Stamped(base, 2)


def test_wrong_lengths_and_steps_beyond_the_run():
    stamped = Stamped(Identity(2), 2)
    with pytest.raises(InvalidArgument, match="needs 4 rows"):
        stamped.multiply(np.ones(2))
    with pytest.raises(InvalidArgument, match="needs 4 rows"):
        stamped.solve(np.ones(5))
    stream = stamped.noising_stream()
    for _ in range(4):
        stream.step(np.ones((1, 1)))
    with pytest.raises(InvalidArgument, match="the run is over"):
        stream.step(np.ones((1, 1)))


@pytest.mark.parametrize("base", BASES)
def test_no_columns_at_all_are_solved(base):
    stamped = Stamped(base, 2)
    assert stamped.solve(np.zeros((stamped.rows, 0))).shape == (stamped.steps, 0)
