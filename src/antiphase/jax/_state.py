"""The noise state in an optimizer state, its hash of past steps, and a check that the optimizer adds noise first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument, Refused

REFUSED_HASH = (0xFFFFFFFF, 0xFFFFFFFF)  # history hash after a step whose noise the run refused
REFUSED_INTEGER = -(1 << 63)  # replaces integer noise that the run refused; real noise is below 2^62 in absolute value
HASH_SALTS = (0x9E3779B9, 0x7F4A7C15)  # one for each 32-bit word of a history hash


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class PrivateNoiseState:
    """Secret state of noise generated on a device. Anyone who has this state can subtract the noise.

    Attributes:
        step: copy of `NoiseState.step`.
        run_id: copy of `NoiseState.run_id`.
        history_hash: copy of `NoiseState.history_hash`.
        buffers: one array per leaf (parameter array). It holds what the strategy's recursion needs from earlier steps,
            such as the last outputs.
        key: for `simulate_noise`, a key of two 32-bit words. For a run, None, because the run provides the key at each
            step.
    """

    step: jax.Array
    run_id: jax.Array
    history_hash: jax.Array
    buffers: Any
    key: jax.Array | None

    def __repr__(self) -> str:
        """Return a string without secrets, because states may be printed or logged."""
        return f"PrivateNoiseState(step={self.step}, ...)"


class NoiseState(NamedTuple):
    """State of `add_correlated_noise` in an optimizer.

    Attributes:
        step: index of the next step, from 0, int32. Each optimizer step adds one.
        run_id: the 128-bit id of the run, as four 32-bit words; zeros for `simulate_noise`.
        history_hash: a 64-bit hash of the initial parameters and the noisy sums of all steps so far, as two 32-bit
            words. With it, the run detects a state with a different history.
        private: a `PrivateNoiseState` if the device generates the noise; () if the host generates it; None in the
            public part returned by `split`.
    """

    step: jax.Array
    run_id: jax.Array
    history_hash: jax.Array
    private: Any


def run_id_words(run_id: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the id of a run as an array of four 32-bit words."""
    return np.frombuffer(bytes.fromhex(run_id), dtype=">u4").astype(np.uint32)


def check_run_id(words: Any, run_id: str) -> None:
    """Raise `Refused` if a state belongs to another run."""
    if not np.array_equal(np.asarray(words), run_id_words(run_id)):
        raise Refused(
            "The optimizer state belongs to another run.",
            hint="resume from a checkpoint of this run, or make a new state with optimizer.init",
        )


def initial_hash(params: list[Any]) -> jax.Array:
    """Return the history hash before the first step: the hash of a list of all arrays of the initial parameters."""
    return next_hash(jnp.zeros(2, jnp.uint32), params)


def refused_hash(history_hash: jax.Array, noise: list[Any]) -> jax.Array:
    """Return the history hash, or `REFUSED_HASH` if the noise shows that the run refused the step.

    The output of a refused step is NaN, but transformations after the noise may hide this. For example,
    `optax.apply_if_finite` skips the update.
    """
    return jnp.where(is_refused(noise), jnp.array(REFUSED_HASH, jnp.uint32), history_hash)


def is_refused(noise: list[Any]) -> jax.Array:
    """Return whether the run refused the step: an entry of the noise is NaN or, for integers, `REFUSED_INTEGER`."""

    def any_refused(array: Any) -> jax.Array:
        is_integer = jnp.issubdtype(jnp.result_type(array), jnp.integer)
        return (array == REFUSED_INTEGER if is_integer else jnp.isnan(array)).any()

    return jnp.stack([any_refused(array) for array in noise]).any()


def check_not_refused(history_hash: Any) -> None:
    """Raise `Refused` if a state comes from a step whose noise was refused."""
    if np.array_equal(np.asarray(history_hash), np.array(REFUSED_HASH, np.uint32)):
        raise Refused(
            "The run refused the noise of this step, or of a step before it, so the output of this step is NaN.",
            hint="the reason was logged when the step was computed; continue from the state before that step",
        )


def next_hash(history_hash: jax.Array, arrays: list[Any]) -> jax.Array:
    """Return the history hash after a step.

    Each 32-bit word of the arrays is mixed separately, and the results are added modulo 2^32. The hash therefore does
    not depend on sharding or on the order of summation. It detects mistakes, not forgery, and reveals no more than the
    noisy sums do. Two different histories have the same hash by chance with probability 2^-64.

    Args:
        history_hash: history hash before the step, two words.
        arrays: noisy sums of the step, one array per leaf.
    """
    for leaf in arrays:
        kind = jnp.result_type(leaf)
        wide = leaf if kind == jnp.int64 else jnp.asarray(leaf, jnp.promote_types(kind, jnp.float32))
        bits = jax.lax.bitcast_convert_type(wide, jnp.uint32)
        sums = jnp.stack([_mix(bits ^ np.uint32(salt)).sum(dtype=jnp.uint32) for salt in HASH_SALTS])
        history_hash = _mix(history_hash * np.uint32(5) + sums + np.uint32(1))
    return history_hash


def hash_bytes(history_hash: Any) -> bytes:
    """Return a history hash as the bytes that the run stores."""
    return np.asarray(history_hash).astype("<u4").tobytes()


def _mix(words: jax.Array) -> jax.Array:
    """Mix the bits of each word with a one-to-one function, the finalizer of MurmurHash3."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def noise_states(state: Any) -> list[NoiseState]:
    """Return all noise states in an optimizer state."""
    found = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, NoiseState))
    return [part for part in found if isinstance(part, NoiseState)]


def noise_state_of(state: Any) -> NoiseState:
    """Return the noise state in an optimizer state. Raise an error unless noise is added first, to all parameters.

    The structure of the state shows how the optimizer is composed. Only `optax.MultiSteps`, which sums gradients, may
    come before the noise. Any other transformation there would see gradients without noise: it could store them, omit
    some of them, or skip steps depending on them.

    Args:
        state: state of the whole optimizer.
    """
    count = len(noise_states(state))
    if count != 1:
        raise InvalidArgument(
            f"The optimizer state has {count} noise states; it must have exactly one.",
            hint="use add_correlated_noise once in the chain, and pass the state of the whole optimizer",
        )
    part = state
    while not isinstance(part, NoiseState):
        if isinstance(part, optax.MultiStepsState):
            _check_not_skipping(part)
            _check_accumulators(part)
            part = part.inner_opt_state
        elif type(part) in (tuple, list) and part:
            part = part[0]
        elif type(part) is OrderedDict and part:  # of optax.named_chain; JAX sorts plain dicts by key
            part = next(iter(part.values()))
        else:
            raise Refused(
                "Noise must be added first, at every step and to all parameters. "
                f"Found {type(part).__name__} where the state of add_correlated_noise should be.",
                hint="use optax.chain(add_correlated_noise(run), ...), and wrap only transformations after the noise",
            )
    return part


def _check_not_skipping(state: Any) -> None:
    """Raise `Refused` if `MultiSteps` can skip updates: one example could then remove a whole micro-batch."""
    if jax.tree.leaves(state.skip_state):
        raise Refused(
            "The optimizer decides from gradients without noise whether to skip an update.",
            hint="call optax.MultiSteps without should_skip_update_fn; clipped_sum already drops non-finite gradients",
        )


def _check_accumulators(state: Any) -> None:
    """Raise `Refused` if gradients are summed in half precision: one example can change how the others are rounded."""
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(state.acc_grads)}
    narrow = sorted(kind.name for kind in kinds if kind.itemsize < 4)
    if narrow:
        raise Refused(
            f"The optimizer accumulates gradients in {narrow[0]} before noise is added. In half precision, one example "
            "can change the sum by more than the clipping norm.",
            hint="call optax.MultiSteps with accumulator_dtype=jnp.float32",
        )


def check_no_accumulation(state: Any) -> None:
    """Raise `Refused` if `optax.MultiSteps` accumulates gradients before lattice noise: it would round exact sums."""
    found = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, optax.MultiStepsState))
    if any(isinstance(part, optax.MultiStepsState) for part in found):
        raise Refused(
            "The optimizer accumulates gradients with optax.MultiSteps, which rounds the exact sums of a lattice.",
            hint="pass the whole batch to clipped_sum, which computes one gradient at a time; or add the int64 sums "
            "of several calls before optimizer.update",
        )
