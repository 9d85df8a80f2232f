"""NumPy and the compiled noise stream compute N z for every strategy.

The expected result is the dense left inverse N of the dense encoder, in float64. It is computed without any recursion.
tests/jax and tests/torch check the recursions of JAX and PyTorch.
"""

import numpy as np
import pytest

from antiphase._noise.choose import choose
from antiphase._noise.correlator import Part, Scratch
from antiphase.strategies import Banded, Stamped, Toeplitz
from tests.catalog import OTHER_LEFT_INVERSES, every_strategy, every_variant

STEPS = 12
STRATEGIES = dict(every_strategy(STEPS)) | {
    "stamped-banded": Stamped(Banded(Toeplitz([1.0, 0.5], 4).columns()), 3),
    "stamped-twice": Stamped(Stamped(Toeplitz([2.0, 0.5], 2, column_normalized=True), 2), 3),
}
VARIANTS = dict(every_variant(STEPS))
# The compiled streams of these strategies hold one buffer less than `memory_copies`.
HOLDS_ONE_LESS = {"dense-lower", "stamped-2-dense", "stamped-3-dense"}


def by_numpy(strategy, z):
    stream, start, out = strategy.noising_stream(), 0, []
    for t in range(strategy.steps):
        stop = start + strategy.rows_at(t)
        out.append(stream.step(z[start:stop]))
        start = stop
    assert start == strategy.rows
    return np.array(out)


def by_numba(strategy, z):
    entries = z.shape[1]
    correlator = choose(strategy.recursion(), 1.0, entries, np.dtype(np.float64))
    out = np.empty((strategy.steps, entries))

    def white(row, into):
        into[:] = z[row] if row < len(z) else 0.0

    for t in range(strategy.steps):
        correlator.begin(t)
        correlator.make(Part(0, entries), white, Scratch(), out[t])
        correlator.end()
    return out


@pytest.mark.parametrize("interpret", [by_numpy, by_numba])
@pytest.mark.parametrize("name", STRATEGIES)
def test_impulses_give_a_left_inverse_of_the_encoder(name, interpret):
    strategy = STRATEGIES[name]
    made, encoder = interpret(strategy, np.eye(strategy.rows)), strategy.encoder()
    np.testing.assert_allclose(made @ encoder, np.eye(STEPS), atol=1e-11)
    if not name.startswith(OTHER_LEFT_INVERSES):
        np.testing.assert_allclose(made, np.linalg.pinv(encoder), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(made, strategy.noising(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_compiled_stream_agrees_with_numpy_for_other_arguments(name):
    """Those of the catalogue may leave out a part of a recursion, such as a second buffer."""
    strategy = VARIANTS[name]
    wanted = strategy.noising()
    made = by_numba(strategy, np.eye(strategy.rows))
    np.testing.assert_allclose(made, wanted, rtol=1e-9, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_recursion_says_its_rows_and_whether_it_is_causal(name):
    strategy = STRATEGIES[name]
    recursion = strategy.recursion()
    assert (recursion.steps, recursion.rows) == (strategy.steps, strategy.rows)
    completed = np.cumsum([strategy.rows_at(t) for t in range(STEPS)])
    not_drawn = np.arange(strategy.rows) >= completed[:, None]
    assert not strategy.noising()[not_drawn].any()
    drawn_at = np.searchsorted(completed, np.arange(strategy.rows), side="right")
    later = np.arange(STEPS) > drawn_at[:, None]
    assert recursion.is_causal == (not strategy.encoder()[later].any())


@pytest.mark.parametrize("name", STRATEGIES)
def test_memory_copies_are_the_buffers_of_the_noise_stream(name):
    """Plans are chosen by this number. A lower-triangular Dense states one more than its stream holds."""
    strategy, entries = STRATEGIES[name], 256
    correlator = choose(strategy.recursion(), 1.0, entries, np.dtype(np.float64))
    held = correlator.state.size // entries
    assert held == strategy.memory_copies - (name in HOLDS_ONE_LESS)
