"""Times jax_privacy's samples of the privacy loss of balls-in-bins. Arguments: steps, bins, noise, samples, bands.

Prints JSON with the seconds for both directions, the increase of the peak memory in bytes, and delta at epsilon = 0.5.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation


def reset_peak() -> int:
    """Reset the peak memory of this process, and return its current memory in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """Return the peak memory of this process since the last reset, in bytes."""
    return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


steps, bins, noise, samples, bands = (float(x) for x in sys.argv[1:])
i = np.arange(1, int(bands))
column = np.concatenate([[1.0], np.cumprod((i - 0.5) / i)])
strategy = batch_selection.BallsInBinsSampling(iterations=int(steps), cycle_length=int(bins))
before, start, deltas = reset_peak(), time.perf_counter(), []
for positive in (True, False):
    losses, _ = sample_generation.get_privacy_loss_sample(
        strategy, noise, column, seed=1, positive_sample=positive, num_samples=int(samples)
    )
    deltas.append(delta_calculation.delta_from_epsilon_and_samples(0.5, losses))
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "memory": peak() - before, "deltas": deltas}))
