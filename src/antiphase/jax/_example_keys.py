"""Random keys of the examples, from the run's secret, for dropout, augmentation and other randomness in a loss.

With keys from `jax.random.split`, row i of a batch would get the i-th key. Leaving out one example moves all later
examples to other rows, where they get different keys. Their gradients then change too, so the sum of the clipped
gradients changes by far more than the clipping norm. Someone who knows the key that was split can detect this change.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase import _check
from antiphase._errors import Refused
from antiphase._run import Run, secret_of
from antiphase._traceback import without_locals

LABEL = "antiphase jax example keys"
WORDS = 2  # number of 32-bit words in a Threefry key
KEY_SIZES = (2, 4)  # numbers of words in the keys of JAX's generators
_THREEFRY = jax.extend.random.threefry_prng_impl
# Same algorithm as JAX's default generator, but a type of its own, so that `check_keys` recognises keys from a run.
GENERATOR = jax.extend.random.define_prng_impl(
    key_shape=_THREEFRY.key_shape,
    seed=_THREEFRY.seed,
    split=_THREEFRY.split,
    random_bits=_THREEFRY.random_bits,
    fold_in=_THREEFRY.fold_in,
    name="antiphase_example_keys",
    tag="example",
)


def example_keys(run: Run, step: int, indices: ArrayLike) -> jax.Array:
    """Return a random key for each example of a step, to pass to `clipped_sum` with the batch.

    `batches` returns the same keys, as `batch.keys`. Use this function if you read the batches of the run yourself.

    **Guarantee**: a key depends only on the run's secret, the step and the index of the example. It does not depend on
    the row of the example or on other examples. Without the secret, keys cannot be distinguished from independent
    random bits. Keys are secret: do not log or store them.

    Args:
        run: open run.
        step: index of the step, from 0.
        indices: indices of the examples in the data set, one for each row of the batch. Rows of padding may have any
            index.
    """
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < run.steps:
        hint = "count steps from 0, as run.batch(step) does"
        raise _check.invalid("example_keys", "step", f"an integer from 0 to {run.steps - 1}", step, hint)
    rows = np.asarray(indices)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or (rows.size and rows.min() < 0):
        got = f"shape {rows.shape}, dtype {rows.dtype}"
        hint = "pass the indices of run.batch(step), or of antiphase.jax.pad"
        raise _check.invalid("example_keys", "indices", "a vector of indices, 0 or larger", got, hint)
    return typed(key_words(run, int(step), rows))


@without_locals
def key_words(run: Run, step: int, indices: NDArray[Any]) -> NDArray[np.uint32]:
    """Return the bits of the keys of `example_keys`, shape (indices, 2): the first half of AES-256(step, index)."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    blocks = np.empty((indices.size, 2), ">u8")
    blocks[:, 0], blocks[:, 1] = step, indices
    key = secret_of(run).derive(LABEL, run.run_id)
    data = Cipher(AES(key), ECB()).encryptor().update(blocks.tobytes())
    return np.frombuffer(data, "<u4").astype(np.uint32).reshape(indices.size, 4)[:, :WORDS]


def typed(words: Any) -> jax.Array:
    """Return keys made of the given bits, as an array with the type that `check_keys` accepts."""
    return jax.random.wrap_key_data(jnp.asarray(words), impl=GENERATOR)


def check_keys(arrays: list[Any]) -> None:
    """Raise `Refused` if the examples have random keys that do not come from a run, or arrays that look like such keys.

    Args:
        arrays: arrays of a batch, with the examples along the first axis.
    """
    for array in arrays:
        if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            is_foreign, what = jax.random.key_impl(array) != GENERATOR, "random keys that do not come from the run"
        else:
            is_foreign = array.dtype == jnp.uint32 and array.ndim in (2, 3) and array.shape[-1] in KEY_SIZES
            what = (
                f"an array of uint32 of shape {array.shape}, which looks like random keys that do not come from the run"
            )
        if is_foreign:
            raise Refused(
                f"The batch contains {what}. If keys are assigned to rows, leaving out one example changes the keys "
                "of all later examples. The sum then changes by much more than the clipping norm.",
                hint="pass batch.keys of antiphase.jax.batches, or antiphase.jax.example_keys(run, step, indices); "
                "convert data that are not keys to a different dtype",
            )
