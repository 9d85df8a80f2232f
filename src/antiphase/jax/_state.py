"""The state of the noise in an optimizer, and its division into what may be kept with the model and what must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument


class Hidden(NamedTuple):
    """What a device source keeps: whoever has it can subtract the noise.

    Attributes:
        key: two words of the generator's key.
        buffers: for each leaf what the strategy remembers, such as its last outputs.
    """

    key: jax.Array
    buffers: Any


class NoiseState(NamedTuple):
    """Where the noise of a run stands.

    Attributes:
        step: the next step of the plan, int32; it moves on once a step of the optimizer.
        run: the 128 bits of the run's id; zero in a simulation.
        hidden: `Hidden` where noise is made on the device, () where the run on the host makes it, None once it is
            split off.
    """

    step: jax.Array
    run: jax.Array
    hidden: Any


def run_words(run_id: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The id of a run as an array, so that it can be part of a state."""
    return np.frombuffer(bytes.fromhex(run_id), dtype=">u4").astype(np.uint32)


def split(state: Any) -> tuple[Any, Any]:
    """(public, private): the state of an optimizer without its secrets, and these.

    Secret are the key and the buffers of noise made on the device, and the sums that `optax.MultiSteps` holds before
    noise is added to them. Everything else is computed from gradients that have their noise.

    **Guarantee**: the public part is as safe to show as the parameters. The private part belongs where the run's
    directory is, apart from the model.

    Args:
        state: of any Optax optimizer with `add_noise` in it.

    >>> import jax.numpy as jnp, optax
    >>> public, private = split((NoiseState(jnp.int32(3), jnp.zeros(4, jnp.uint32), ()), optax.EmptyState()))
    >>> int(public[0].step), private, join(public, private)[0].hidden
    (3, [()], ())
    """
    private: list[Any] = []

    def strip(part: Any) -> Any:
        if isinstance(part, NoiseState):
            private.append(part.hidden)
            return part._replace(hidden=None)
        inner, hidden = split(part.inner_opt_state)
        private.append({"acc_grads": part.acc_grads, "inner": hidden})
        return part._replace(inner_opt_state=inner, acc_grads=None)

    return _map(strip, state), private


def join(public: Any, private: Any) -> Any:
    """The inverse of `split`.

    Args:
        public: the state without its secrets.
        private: these, from the same `split`.
    """
    left = list(private)

    def fill(part: Any) -> Any:
        if not left:
            raise InvalidArgument("The private part is not that of this state.", hint="keep the two of one split")
        hidden = left.pop(0)
        if isinstance(part, NoiseState):
            return part._replace(hidden=hidden)
        return part._replace(inner_opt_state=join(part.inner_opt_state, hidden["inner"]), acc_grads=hidden["acc_grads"])

    joined = _map(fill, public)
    if left:
        raise InvalidArgument("The private part is not that of this state.", hint="keep the two of one split")
    return joined


def noise_states(state: Any) -> list[NoiseState]:
    """All noise states in the state of an optimizer."""
    found = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, NoiseState))
    return [part for part in found if isinstance(part, NoiseState)]


def _map(function: Callable[[Any], Any], state: Any) -> Any:
    """`function` on every noise state and accumulation, the rest unchanged."""

    def holds(part: Any) -> bool:
        return isinstance(part, (NoiseState, optax.MultiStepsState))

    return jax.tree.map(lambda part: function(part) if holds(part) else part, state, is_leaf=holds)
