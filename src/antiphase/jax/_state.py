"""The state of the noise in an optimizer, and where in the state of the optimizer it may stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument, Refused


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Hidden:
    """What noise made on a device needs from one step to the next: whoever has it can subtract the noise.

    Attributes:
        step: the step it is for, as in the `NoiseState` it belongs to.
        run: the run it is of, likewise.
        mark: of the sums before that step, likewise.
        buffers: for each leaf what the strategy remembers, such as its last outputs.
        key: two words in a simulation; None in a run, which gives its key out step by step.
    """

    step: jax.Array
    run: jax.Array
    mark: jax.Array
    buffers: Any
    key: jax.Array | None

    def __repr__(self) -> str:
        """Without the secrets: states are printed and logged."""
        return f"Hidden(step={self.step}, ...)"


class NoiseState(NamedTuple):
    """Where the noise of a run stands.

    Attributes:
        step: the next step of the plan, int32; it moves on once a step of the optimizer.
        run: the 128 bits of the run's id; zero in a simulation.
        mark: 64 bits that stand for the first parameters and the noisy sums of all steps so far: a state is not taken
            for one of other sums.
        hidden: secret and not shown where noise is made on the device; () where the run on the host makes it; None
            once it is split off.
    """

    step: jax.Array
    run: jax.Array
    mark: jax.Array
    hidden: Any


def run_words(run_id: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The id of a run as an array, so that it can be part of a state."""
    return np.frombuffer(bytes.fromhex(run_id), dtype=">u4").astype(np.uint32)


def check_run(words: Any, run_id: str) -> None:
    """Refuse the state of another run."""
    if not np.array_equal(np.asarray(words), run_words(run_id)):
        raise Refused(
            "The state of the optimizer belongs to another run.",
            hint="resume from a checkpoint of this run, or make a new state with init",
        )


def noise_states(state: Any) -> list[NoiseState]:
    """All noise states in the state of an optimizer."""
    found = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, NoiseState))
    return [part for part in found if isinstance(part, NoiseState)]


def noise_of(state: Any) -> NoiseState:
    """The noise state of an optimizer that adds the noise first, in every step and to everything.

    The state shows how transformations were put together. Before the noise only `optax.MultiSteps` may come, which adds
    up; anything else there sees gradients without noise, and may keep them, pass some by or skip steps because of them.

    Args:
        state: of the whole optimizer.
    """
    count = len(noise_states(state))
    if count != 1:
        raise InvalidArgument(
            f"The state has {count} states of noise; a step needs exactly one.",
            hint="put add_noise into the chain once, and pass the state of the whole optimizer",
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
                "Noise must come first, in every step, for all parameters. "
                f"Found {type(part).__name__} where the state of add_noise should be.",
                hint="optax.chain(add_noise(run), ...): put wrappers around what comes after the noise",
            )
    return part


def _check_not_skipping(state: Any) -> None:
    """Skipping for what a gradient holds lets one example decide over the whole micro-batch, beyond any clipping."""
    if jax.tree.leaves(state.skip_state):
        raise Refused(
            "The optimizer skips updates by looking at gradients that have no noise yet.",
            hint="call optax.MultiSteps without should_skip_update_fn; clipped_sum drops gradients that are not finite",
        )


def _check_accumulators(state: Any) -> None:
    """Sums in half precision are rounded by more than the clipping norm, each according to single examples."""
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(state.acc_grads)}
    narrow = sorted(kind.name for kind in kinds if kind.itemsize < 4)
    if narrow:
        raise Refused(
            f"The optimizer adds up gradients in {narrow[0]} before they have noise: one example can move the sum by "
            "more than the clipping norm.",
            hint="call optax.MultiSteps with accumulator_dtype=jnp.float32",
        )
