"""Times jax_privacy's per_query_error in float64, and prints JSON. Arguments: bands, then numbers of steps.

Stops after the first number of steps that takes longer than PATIENCE seconds.
"""

import json
import statistics
import sys
import time

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import banded  # noqa: E402  (the switch above must come first)

PATIENCE = 5.0


def timed(strategy: banded.ColumnNormalizedBanded) -> tuple[float, float]:
    start = time.perf_counter()
    errors = banded.per_query_error(strategy).block_until_ready()
    return time.perf_counter() - start, float(errors.mean()) ** 0.5


bands, *sizes = map(int, sys.argv[1:])
results = []
for n in sizes:
    strategy = banded.ColumnNormalizedBanded.default(n, bands)
    _, rms = timed(strategy)  # compiles
    seconds = statistics.median(timed(strategy)[0] for _ in range(3))
    results.append({"steps": n, "seconds": seconds, "rms": rms})
    if seconds > PATIENCE:
        break
print(json.dumps(results))
