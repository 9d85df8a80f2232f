"""Memory is what memory_copies promises, within 5 %, and a few megabytes of working space a thread."""

import tracemalloc

import numpy as np
import pytest

from antiphase.strategies import BLT, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.noise.streams import stream

ENTRIES = 1_000_000
WORKING_SPACE = 4_000_000  # bytes a thread
CASES = {
    "identity": Identity(20),
    "blt": BLT([0.9, 0.5, 0.3, 0.1], [0.1, 0.1, 0.1, 0.1], 20),
    "toeplitz": Toeplitz.square_root(20, 9),
    "dense": Dense(np.tril(Toeplitz.square_root(20).encoder())),
    "banded-inverse": BandedInverse.square_root(5, 20),
    "tree": Tree(20),
    "fourier": Fourier(12),
    "stamped": Stamped(Tree(8), 2),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_memory_is_as_promised(name, dtype):
    strategy, size = CASES[name], ENTRIES * np.dtype(dtype).itemsize
    buffer = np.zeros(ENTRIES, dtype)
    warm = stream(strategy, [(1000,)], dtype=dtype, threads=2)  # compiles
    warm.add_to([np.zeros(1000, dtype)])
    tracemalloc.start()
    try:
        made = stream(strategy, [(ENTRIES,)], dtype=dtype, threads=2)
        for _ in range(3):
            made.add_to([buffer])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    promised = strategy.memory_copies * size
    assert made.state_bytes <= 1.05 * promised
    assert peak <= 1.05 * promised + 2 * WORKING_SPACE
    if promised:
        assert peak > 0.9 * promised - size  # a dense ring holds one less than promised


def test_lookahead_beyond_the_bands_costs_what_is_said():
    strategy = Toeplitz.square_root(64, 4)
    assert stream(strategy, [(1280,)], lookahead=3).state_bytes == 3 * 1280 * 4
    assert stream(strategy, [(1280,)]).state_bytes == 3 * 1280 * 4
    assert stream(strategy, [(1280,)], lookahead=10).state_bytes == 10 * 1280 * 4


def test_drawing_again_needs_no_state():
    assert stream(BandedInverse.square_root(5, 20), [(1280,)], regenerate=True).state_bytes == 0
