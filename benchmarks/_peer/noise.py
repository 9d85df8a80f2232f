"""Times jax_privacy's privatizers in float32, one step at a time. Argument: number of parameters.

For each line of the input, which names a privatizer, it runs one step and prints the seconds. The update is jitted and
its buffers are donated, as in a good training loop.
"""

import sys
import time

import jax
import numpy as np
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz

BLT_DECAY = (0.9999, 0.97, 0.8, 0.3)
BLT_SCALE = (0.01, 0.05, 0.1, 0.2)


def noising_matrix(name):
    if name == "identity":
        return streaming_matrix.identity()
    if name == "blt-4":
        decay, scale = (np.array(x, dtype=np.float32) for x in (BLT_DECAY, BLT_SCALE))
        return buffered_toeplitz.StreamingMatrixBuilder(buf_decay=decay, output_scale=scale).build_inverse()
    bands = int(name.removeprefix("toeplitz-"))
    return toeplitz.inverse_as_streaming_matrix(toeplitz.optimal_max_error_strategy_coefs(bands))


def start(name, parameters):
    privatizer = noise_addition.matrix_factorization_privatizer(noising_matrix(name), stddev=1.0, prng_key=7)
    update = jax.jit(privatizer.update, donate_argnums=(0, 1))
    gradient = jax.numpy.zeros(parameters, dtype=jax.numpy.float32)
    return update, *update(gradient, privatizer.init(gradient))


if __name__ == "__main__":
    current = None
    for line in sys.stdin:
        if line.strip() != current:
            current = line.strip()
            update, gradient, state = start(current, int(sys.argv[1]))
        begin = time.perf_counter()
        gradient, state = jax.block_until_ready(update(gradient, state))
        print(time.perf_counter() - begin, flush=True)
