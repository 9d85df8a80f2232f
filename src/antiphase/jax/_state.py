"""The noise state in an optimizer's state, its history hash, and where in an optimizer the noise may be added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument, Refused

HASH_SALTS = (0x9E3779B9, 0x7F4A7C15)  # one for each 32-bit word of a history hash


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class PrivateNoiseState:
    """The state of noise made on a device, kept from one step to the next. Anyone who has it can subtract the noise.

    Attributes:
        step: the same as in the `NoiseState` that contains it.
        run_id: likewise.
        history_hash: likewise.
        buffers: what the strategy keeps for each leaf, such as its last outputs.
        key: two words in a simulation. None in a run, which provides its key at each step.
    """

    step: jax.Array
    run_id: jax.Array
    history_hash: jax.Array
    buffers: Any
    key: jax.Array | None

    def __repr__(self) -> str:
        """Leave out the secrets, since states are printed and logged."""
        return f"PrivateNoiseState(step={self.step}, ...)"


class NoiseState(NamedTuple):
    """State of `add_noise` in an optimizer.

    Attributes:
        step: the next step of the plan, int32; an optimizer step increments it.
        run_id: the 128 bits of the run's id; zero in a simulation.
        history_hash: a 64-bit hash of the initial parameters and the noisy sums of all steps so far, which lets the run
            recognise a state with another history.
        private: secret state of noise made on the device, not shown when printed; () if the host makes the noise; None
            after `split`.
    """

    step: jax.Array
    run_id: jax.Array
    history_hash: jax.Array
    private: Any


def run_id_words(run_id: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the id of a run as an array, to be kept in a state."""
    return np.frombuffer(bytes.fromhex(run_id), dtype=">u4").astype(np.uint32)


def check_run_id(words: Any, run_id: str) -> None:
    """Raise if a state belongs to another run."""
    if not np.array_equal(np.asarray(words), run_id_words(run_id)):
        raise Refused(
            "The optimizer state belongs to another run.",
            hint="resume from a checkpoint of this run, or make a new state with optimizer.init",
        )


def initial_hash(params: Any) -> jax.Array:
    """Return the history hash of the parameters that training starts from."""
    return next_hash(jnp.zeros(2, jnp.uint32), jax.tree.leaves(params))


def next_hash(history_hash: jax.Array, arrays: list[Any]) -> jax.Array:
    """Return the history hash after a step.

    Every word is mixed separately and the results are added, so that neither sharding nor the order of summation
    changes the hash. It detects mistakes, not forgery, and reveals no more than the noisy sums do. Two histories share
    a hash by chance with probability 2^-64.

    Args:
        history_hash: the two words before the step.
        arrays: the step's sums, with their noise.
    """
    for leaf in arrays:
        wide = jnp.asarray(leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32))
        bits = jax.lax.bitcast_convert_type(wide, jnp.uint32)
        sums = jnp.stack([_mix(bits ^ np.uint32(salt)).sum(dtype=jnp.uint32) for salt in HASH_SALTS])
        history_hash = _mix(history_hash * np.uint32(5) + sums + np.uint32(1))
    return history_hash


def hash_bytes(history_hash: Any) -> bytes:
    """Return a history hash as the bytes that the run stores."""
    return np.asarray(history_hash).astype("<u4").tobytes()


def _mix(words: jax.Array) -> jax.Array:
    """Mix the bits of each word, one to one (the finalizer of MurmurHash3)."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def noise_states(state: Any) -> list[NoiseState]:
    """Return all noise states in an optimizer state."""
    found = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, NoiseState))
    return [part for part in found if isinstance(part, NoiseState)]


def noise_state_of(state: Any) -> NoiseState:
    """Return the noise state of an optimizer, after checking that noise comes first, at every step, for every leaf.

    The structure of the state shows how the optimizer is composed. Only `optax.MultiSteps`, which sums, may come before
    the noise. Anything else there sees gradients without noise: it could store them, leave some out, or skip steps
    because of them.

    Args:
        state: state of the whole optimizer.
    """
    count = len(noise_states(state))
    if count != 1:
        raise InvalidArgument(
            f"The optimizer state has {count} noise states; it must have exactly one.",
            hint="use add_noise once in the chain, and pass the state of the whole optimizer",
        )
    part = state
    while not isinstance(part, NoiseState):
        if isinstance(part, optax.MultiStepsState):
            _check_not_skipping(part)
            _check_accumulators(part)
            part = part.inner_opt_state
        elif type(part) in (tuple, list) and part:
            part = part[0]
        else:
            raise Refused(
                "Noise must be added first, at every step and to all parameters. "
                f"Found {type(part).__name__} in the optimizer state where the state of add_noise should be.",
                hint="optax.chain(add_noise(run), ...): wrap only what comes after the noise",
            )
    return part


def _check_not_skipping(state: Any) -> None:
    """Raise if updates can be skipped: one example could then drop a micro-batch, which clipping cannot bound."""
    if jax.tree.leaves(state.skip_state):
        raise Refused(
            "The optimizer skips updates depending on gradients that have no noise yet.",
            hint="call optax.MultiSteps without should_skip_update_fn; clipped_sum already drops non-finite gradients",
        )


def _check_accumulators(state: Any) -> None:
    """Raise if gradients are summed in half precision, where one example can change how the others are rounded."""
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(state.acc_grads)}
    narrow = sorted(kind.name for kind in kinds if kind.itemsize < 4)
    if narrow:
        raise Refused(
            f"The optimizer accumulates gradients in {narrow[0]} before noise is added. In half precision, one example "
            "can change the sum by more than the clipping norm.",
            hint="call optax.MultiSteps with accumulator_dtype=jnp.float32",
        )
