"""float32 buffers over a million steps, beside the same recursion in float64 fed with the same z."""

import numpy as np
import pytest
from numba import njit

from antiphase._kernels import correlate
from antiphase.strategies import BLT

STEPS = 1_000_000
ENTRIES = 8
STRETCHES = 10
NEAR_ONE = 1.0 - 1e-9


@njit
def advance(decay, scale, state, loss, weight, buffers, z):
    """The largest |y32 - y64| while the rows of z go through the kernel and through plain float64."""
    worst = 0.0
    for t in range(z.shape[0]):
        y32, y64 = z[t].copy(), z[t].astype(np.float64)
        correlate.buffers_step(state, loss, weight, np.float32(1.0), y32)
        for j in range(len(decay)):
            y64 -= scale[j] * buffers[j]
        for j in range(len(decay)):
            buffers[j] = decay[j] * buffers[j] + y64
        worst = max(worst, np.abs(y32 - y64).max())
    return worst


def differences(blt):
    """The largest difference in each tenth of the steps."""
    rng, buffers = np.random.default_rng(1), np.zeros((blt.buffers, ENTRIES))
    state = np.zeros((1, blt.buffers, correlate.LANES), np.float32)
    loss, weight = tuple(np.float32(1 - blt.decay)), tuple(np.float32(blt.scale))
    draws = (rng.standard_normal((STEPS // STRETCHES, ENTRIES), np.float32) for _ in range(STRETCHES))
    return np.array([advance(blt.decay, blt.scale, state, loss, weight, buffers, z) for z in draws])


@pytest.mark.parametrize(
    ("decay", "inverse_decay"),
    [
        pytest.param([NEAR_ONE, 0.9999, 0.99, 0.8], [1 - 1e-6, 0.999, 0.9, 0.3], marks=pytest.mark.integration),
        ([NEAR_ONE, 0.9999, 0.99, 0.8], [1 - 1e-8, 0.9998, 0.9, 0.1]),
        pytest.param([NEAR_ONE], [0.999], marks=pytest.mark.slow),
        pytest.param([NEAR_ONE], [1 - 1e-7], marks=pytest.mark.slow),
        pytest.param([NEAR_ONE, 0.99], [0.9999, 0.9], marks=pytest.mark.slow),
    ],
)
def test_a_million_steps_with_a_decay_next_to_one(decay, inverse_decay):
    """The difference is a few spacings of float32 near 4 (2.4e-7 to 4.8e-7), and does not grow with the steps."""
    worst = differences(BLT.from_decays(decay, inverse_decay, STEPS))
    assert worst.max() < 2e-6
    assert worst[-1] < 2 * worst[0]
