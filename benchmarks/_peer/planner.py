"""Times jax_privacy's choice of the number of bands under amplification, and prints JSON.

Arguments: steps, examples, batch size.
"""

import json
import math
import sys
import time

import jax
import jax.numpy as jnp
from jax_privacy.matrix_factorization import toeplitz

steps, examples, batch_size = map(int, sys.argv[1:])
start = time.perf_counter()
coefficients, noise = toeplitz.optimize_coefs_for_amplifications(
    steps, dataset_size=examples, expected_batch_size=batch_size, epsilon=1.0, delta=1e-5
)
seconds = time.perf_counter() - start
with jax.enable_x64():
    c = jnp.asarray(coefficients, jnp.float64)
    error = math.sqrt(float(jnp.mean(toeplitz.per_query_error(strategy_coef=c, n=steps))))
print(json.dumps({"seconds": seconds, "bands": len(coefficients), "error": error * float(noise)}))
