"""Random matrices with mixed signs under random participations, against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase import EveryStep, FixedEpochs, MinSeparation, ShuffledEpochs
from antiphase._sensitivity import sensitivity
from antiphase.strategies import BLT, Banded, Dense, Toeplitz
from tests.sensitivity.oracle import squared_sensitivity

QUICK = settings(max_examples=80, deadline=None, derandomize=True)
SEED = st.integers(0, 2**32 - 1)


@st.composite
def participations(draw, steps):
    b = draw(st.integers(1, steps))
    epochs = -(-steps // b)
    limit = draw(st.none() | st.integers(1, 4))
    options = [FixedEpochs(epochs, b), EveryStep(), MinSeparation(b, limit)]
    if b**epochs <= 60:
        options.append(ShuffledEpochs(epochs, b))
    return draw(st.sampled_from(options))


def check(strategy, participation):
    truth = squared_sensitivity(strategy, participation)
    bound = sensitivity(strategy, participation)
    assert bound.value**2 >= truth.low * (1 - 1e-9)
    if bound.kind == "exact":
        assert bound.value**2 <= truth.high * (1 + 1e-7)
    return bound


@given(st.data(), st.integers(1, 7), SEED)
@QUICK
def test_dense(data, steps, seed):
    matrix = np.random.default_rng(seed).normal(size=(steps + data.draw(st.integers(0, 2)), steps))
    participation = data.draw(participations(steps))
    bound = check(Dense(matrix), participation)
    if isinstance(participation, FixedEpochs | EveryStep):
        assert bound.kind == "exact"


@given(st.integers(3, 12), st.integers(1, 6), st.floats(-0.5, 1.0), SEED)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_dense_fixed_epochs(steps, period, shift, seed):
    """Patterns of unequal length, some non-negative and some not."""
    matrix = np.random.default_rng(seed).normal(size=(steps, steps)) + shift
    assert check(Dense(matrix), FixedEpochs(-(-steps // period), period)).kind == "exact"


@given(st.data(), st.integers(2, 8), SEED)
@QUICK
def test_banded(data, steps, seed):
    bands = data.draw(st.integers(1, steps))
    columns = np.random.default_rng(seed).normal(size=(steps, bands))
    j, r = np.ogrid[:steps, :bands]
    participation = data.draw(participations(steps))
    bound = check(Banded(np.where(j + r < steps, columns, 0.0)), participation)
    if isinstance(participation, MinSeparation) and bands <= 2 * participation.separation:
        assert bound.kind == "exact"
    if isinstance(participation, ShuffledEpochs) and bands <= participation.steps_per_epoch + 1:
        assert bound.kind == "exact"


@given(st.data(), st.integers(2, 9), st.booleans(), SEED)
@QUICK
def test_toeplitz(data, steps, column_normalized, seed):
    coefficients = np.random.default_rng(seed).normal(size=data.draw(st.integers(1, steps)))
    check(Toeplitz(coefficients, steps, column_normalized), data.draw(participations(steps)))


@given(st.data(), st.integers(1, 9), SEED)
@QUICK
def test_decreasing_toeplitz_is_exact(data, steps, seed):
    coefficients = np.sort(np.random.default_rng(seed).random(steps))[::-1] + 0.01
    b, k = data.draw(st.integers(1, steps)), data.draw(st.none() | st.integers(1, 4))
    assert check(Toeplitz(coefficients, steps), MinSeparation(b, k)).kind == "exact"


@given(st.data(), st.integers(1, 9), st.booleans(), SEED)
@QUICK
def test_blt(data, steps, signed, seed):
    rng = np.random.default_rng(seed)
    d = data.draw(st.integers(1, 3))
    scale = rng.normal(size=d) if signed else rng.random(d) / d
    participation = data.draw(participations(steps))
    bound = check(BLT(rng.random(d), scale, steps), participation)
    if not signed and not isinstance(participation, ShuffledEpochs):
        assert bound.kind == "exact"
