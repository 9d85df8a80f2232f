"""Times jax_privacy's dense optimiser, and prints JSON. Arguments: steps, epochs, iterations."""

import json
import math
import sys
import time

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import dense, sensitivity  # noqa: E402  (the switch above must come first)

n, epochs, iterations = map(int, sys.argv[1:])
start = time.perf_counter()
C = dense.optimize(n, epochs=epochs, max_optimizer_steps=iterations, callback=lambda _: None).block_until_ready()
seconds = time.perf_counter() - start
error = math.sqrt(float(dense.per_query_error(strategy_matrix=C).mean()))
sens = float(sensitivity.fixed_epoch_sensitivity(C, epochs))
print(json.dumps({"seconds": seconds, "loss": sens * error}))
