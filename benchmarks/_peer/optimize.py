"""Runs one case of jax_privacy's optimisers in this process, and prints time and memory as JSON."""

import json
import resource
import statistics
import sys
import time

import jax
import jax.numpy as jnp
from jax_privacy.matrix_factorization import banded, toeplitz


def banded_gradient(n: int, bands: int) -> dict:
    """Time value and gradient of the mean squared error, in float64 as in jax_privacy's optimiser."""
    with jax.enable_x64():
        start = time.perf_counter()
        C = jax.tree.map(jnp.float64, banded.ColumnNormalizedBanded.default(n, bands))
        function = jax.jit(jax.value_and_grad(lambda C: jnp.mean(banded.per_query_error(C)))).lower(C).compile()
        value, _ = jax.block_until_ready(function(C))
        first = time.perf_counter() - start
        times = []
        for _ in range(3):
            start = time.perf_counter()
            jax.block_until_ready(function(C))
            times.append(time.perf_counter() - start)
    memory = function.memory_analysis()
    arrays = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    return {"first": first, "seconds": statistics.median(times), "value": float(value), "arrays": arrays / 2**20}


def toeplitz_solve(n: int, bands: int) -> dict:
    start = time.perf_counter()
    c = toeplitz.optimize_banded_toeplitz(n, bands)
    with jax.enable_x64():
        value = float(jnp.sqrt(toeplitz.loss(jnp.asarray(c, jnp.float64), n)))
    return {"seconds": time.perf_counter() - start, "value": value}


CASES = {"banded-gradient": banded_gradient, "toeplitz": toeplitz_solve}

if __name__ == "__main__":
    result = CASES[sys.argv[1]](*map(int, sys.argv[2:]))
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(result))
