"""Gram matrices of modes against dense |C|."""

import numpy as np
import pytest

from antiphase import BallsInBins
from antiphase._errors import InvalidArgument, NotProved
from antiphase._montecarlo import MonteCarlo, bins_gram, delta
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Toeplitz
from tests.catalog import NOT_CAUSAL, every_strategy, random_banded
from tests.montecarlo.oracle import integrated_delta, modes


@pytest.mark.parametrize("steps", [1, 2, 5, 12])
@pytest.mark.parametrize("bins", [1, 2, 3, 4, 12, 13])
def test_every_strategy_against_dense_columns(steps, bins):
    refused = set()
    for name, strategy in every_strategy(steps):
        participation = BallsInBins(-(-steps // bins), bins)
        try:
            found = bins_gram(strategy, participation)
        except NotProved:
            refused.add(name)
            continue
        rows = modes(strategy, bins)
        np.testing.assert_allclose(found, rows @ rows.T, rtol=1e-12, atol=1e-14, err_msg=name)
    assert all(name.startswith(NOT_CAUSAL) for name in refused)
    assert steps < 2 or refused >= {"dense-tall", "fourier-direct"}


@pytest.mark.parametrize(
    "strategy",
    [
        BLT([0.99, 0.5], [0.05, 0.2], 800),
        Toeplitz.square_root(800),
        Toeplitz(Toeplitz.square_root(800, 40).coefficients, 800, column_normalized=True),
        BandedInverse.square_root(4, 800),
        random_banded(np.random.default_rng(0), 800, 20, signed=True),
    ],
    ids=lambda s: type(s).__name__,
)
def test_large_cases_with_a_truncated_last_epoch(strategy):
    rows = modes(strategy, 70)
    np.testing.assert_allclose(bins_gram(strategy, BallsInBins(12, 70)), rows @ rows.T, rtol=1e-10, atol=1e-12)


def test_more_steps_than_the_epochs_hold_are_refused():
    with pytest.raises(InvalidArgument, match="epochs"):
        bins_gram(Identity(5), BallsInBins(2, 2))


def test_negative_entries_count_by_their_size():
    """The matrix of near-exact amplification, App. J: with contributions of opposite sign the two modes have a
    positive product, so accounting for C as it stands would be too small."""
    strategy, participation = Dense([[1.0, 0.0], [-1.0, 1.0]]), BallsInBins(1, 2)
    gram = bins_gram(strategy, participation)
    assert gram.tolist() == [[2.0, 1.0], [1.0, 1.0]]
    attack = np.array([[1.0, -1.0], [0.0, -1.0]])  # the example contributes 1 in step 0 and -1 in step 1
    attained = max(integrated_delta(attack @ attack.T, 1.0, 1.0))
    signed = max(integrated_delta(np.array([[2.0, -1.0], [-1.0, 1.0]]), 1.0, 1.0))
    found = delta(strategy, participation, 1.0, 1.0, sampling=MonteCarlo(seed=1)).value
    assert signed < 0.9 * attained < attained <= found < 1.05 * attained


def test_signs_may_make_the_unamplified_bound_smaller():
    """sens(C) is sqrt(2 - 2 * 0.9) here while the mode of |C| has squared norm 2 + 2 * 0.9."""
    strategy = Toeplitz([1.0, -0.9], 2)
    gram = bins_gram(strategy, BallsInBins(2, 1))
    with_signs = bins_pair(gram, 1.0, sensitivity=0.9).upper(1.0).value
    assert with_signs < 0.5 * bins_pair(gram, 1.0).upper(1.0).value


def test_zero_rows_for_bins_beyond_the_last_step():
    gram = bins_gram(Banded([[1.0, 0.5], [1.0, 0.0]]), BallsInBins(1, 4))
    assert gram.tolist() == [[1.25, 0.5, 0, 0], [0.5, 1.0, 0, 0], [0] * 4, [0] * 4]
