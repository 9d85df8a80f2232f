"""`split` separates an optimizer state into a part to store with the model and a secret part. `join` undoes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument
from antiphase.jax._leaves import unwrapped
from antiphase.jax._state import NoiseState, PrivateNoiseState, noise_state_of, noise_states


def split(state: Any) -> tuple[Any, Any]:
    """Split an optimizer state into (public, private).

    The private part holds the buffers of noise made on the device, and the sums that `optax.MultiSteps` accumulates
    before noise is added. Everything else is computed from noisy gradients and is public. Like `commit`, `split` raises
    `Refused` if a transformation other than `optax.MultiSteps` comes before the noise.

    **Guarantee**: whoever may see the parameters in full precision may also see the public part. Do not show the public
    part to anyone who may see the parameters only in lower precision: it contains a hash of the exact bits of the noisy
    sums. Keep the private part with the run's directory, not with the model.

    Args:
        state: state of an Optax optimizer that starts with `add_correlated_noise`.

    >>> import jax.numpy as jnp, optax
    >>> public, private = split((NoiseState(jnp.int32(3), jnp.zeros(4, jnp.uint32), jnp.zeros(2, jnp.uint32), ()),))
    >>> int(public[0].step), private, join(public, private)[0].private
    (3, [()], ())
    """
    state = unwrapped(state)
    noise_state_of(state)
    return _split(state)


def committed_state(state: Any) -> Any:
    """Return a state's public part without the counters of `optax.MultiSteps`, which change at every micro-batch."""
    return _without_counters(split(state)[0])


def join(public: Any, private: Any) -> Any:
    """Return the optimizer state that `split` was called with. Raises `InvalidArgument` if the parts do not match.

    Parts of different steps or runs must not be joined. With the buffers of a different step, noise would repeat or not
    cancel as planned. With the accumulated gradients of a different step, examples would be counted twice.

    Args:
        public: public part, as returned by `split`.
        private: private part from the same call of `split`.
    """
    public = unwrapped(public)
    noise_state_of(public)
    return _join(public, private)


def _split(state: Any) -> tuple[Any, list[Any]]:
    private: list[Any] = []

    def strip(part: Any) -> Any:
        if isinstance(part, NoiseState):
            private.append(part.private)
            return part._replace(private=None)
        inner, inner_private = _split(part.inner_opt_state)
        private.append({"at": _accumulation_position(part), "sums": part.acc_grads, "inner": inner_private})
        return part._replace(inner_opt_state=inner, acc_grads=None)

    return _map(strip, state), private


def _join(public: Any, private: Any) -> Any:
    left = list(private)

    def fill(part: Any) -> Any:
        match left.pop(0) if left else None, part:
            case PrivateNoiseState() as found, NoiseState() if _same(_position(found), _position(part)):
                return part._replace(private=found)
            case (), NoiseState():
                return part._replace(private=())
            case {"at": at, "sums": sums, "inner": inner}, optax.MultiStepsState() if _same(
                at, _accumulation_position(part)
            ):
                return part._replace(inner_opt_state=_join(part.inner_opt_state, inner), acc_grads=sums)
        raise _mismatch()

    joined = _map(fill, public)
    if left:
        raise _mismatch()
    return joined


def _without_counters(public: Any) -> Any:
    def strip(part: Any) -> Any:
        return part if isinstance(part, NoiseState) else _without_counters(part.inner_opt_state)

    return _map(strip, public)


def _accumulation_position(part: Any) -> list[Any]:
    """Return what both parts of a `MultiSteps` state must share: its counters and the `_position` of its noise."""
    inside = [value for noise in noise_states(part.inner_opt_state) for value in _position(noise)]
    return [part.mini_step, part.gradient_step, *inside]


def _position(noise: NoiseState | PrivateNoiseState) -> list[Any]:
    return [noise.step, noise.run_id, noise.history_hash]


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _mismatch() -> InvalidArgument:
    return InvalidArgument(
        "The private part does not belong to this state: it is from another optimizer, step or run.",
        hint="join two parts from the same call of split; store them under the same step number",
    )


def _map(function: Callable[[Any], Any], state: Any) -> Any:
    """Return `state` with `function` applied to every noise state and `MultiSteps` state."""

    def holds(part: Any) -> bool:
        return isinstance(part, (NoiseState, optax.MultiStepsState))

    return jax.tree.map(lambda part: function(part) if holds(part) else part, state, is_leaf=holds)
