"""Times jax_privacy's BLT optimiser, and prints JSON.

Arguments: steps, separation, participations, error ("max" or "mean").
"""

import json
import math
import sys
import time

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import buffered_toeplitz  # noqa: E402  (the switch above must come first)

n, separation, count = map(int, sys.argv[1:4])
start = time.perf_counter()
found = buffered_toeplitz.optimize(n=n, min_sep=separation, max_participations=count, error=sys.argv[4])
seconds = time.perf_counter() - start
function = buffered_toeplitz.LossFn.build_min_sep(n=n, min_sep=separation, max_participations=count, error=sys.argv[4])
loss = math.sqrt(float(function.loss(found)))
print(json.dumps({"seconds": seconds, "buffers": len(found.buf_decay), "loss": loss}))
