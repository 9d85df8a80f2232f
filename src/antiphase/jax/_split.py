"""The state of an optimizer divided into what may be kept with the model and what must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax  # type: ignore[import-untyped]

from antiphase._errors import InvalidArgument
from antiphase.jax._state import Hidden, NoiseState, noise_of, noise_states


def split(state: Any) -> tuple[Any, Any]:
    """(public, private): the state of an optimizer without its secrets, and these.

    Secret are the buffers of noise made on the device, and the sums that `optax.MultiSteps` holds before noise is added
    to them. Everything else is computed from gradients that have their noise: a state in which something else comes
    before the noise is refused, as by `commit`.

    **Guarantee**: the public part is as safe to show as the parameters. The private part belongs where the run's
    directory is, apart from the model.

    Args:
        state: of an Optax optimizer that begins with `add_noise`.

    >>> import jax.numpy as jnp, optax
    >>> public, private = split((NoiseState(jnp.int32(3), jnp.zeros(4, jnp.uint32), jnp.zeros(2, jnp.uint32), ()),))
    >>> int(public[0].step), private, join(public, private)[0].hidden
    (3, [()], ())
    """
    noise_of(state)
    return _parted(state)


def output_of(state: Any) -> Any:
    """The public part without the counts of micro-batches, which move on between two steps."""
    return _without_counts(split(state)[0])


def join(public: Any, private: Any) -> Any:
    """The inverse of `split`; refused where the two are of different steps or runs.

    Noise that goes on from the buffers of another step repeats, or does not cancel as planned; sums of another step
    count their examples twice.

    Args:
        public: the state without its secrets.
        private: these, from the same `split`.
    """
    noise_of(public)
    return _joined(public, private)


def _parted(state: Any) -> tuple[Any, list[Any]]:
    private: list[Any] = []

    def strip(part: Any) -> Any:
        if isinstance(part, NoiseState):
            private.append(part.hidden)
            return part._replace(hidden=None)
        inner, hidden = _parted(part.inner_opt_state)
        private.append({"at": _place(part), "sums": part.acc_grads, "inner": hidden})
        return part._replace(inner_opt_state=inner, acc_grads=None)

    return _map(strip, state), private


def _joined(public: Any, private: Any) -> Any:
    left = list(private)

    def fill(part: Any) -> Any:
        match left.pop(0) if left else None, part:
            case Hidden() as hidden, NoiseState() if _same(_position(hidden), _position(part)):
                return part._replace(hidden=hidden)
            case (), NoiseState():
                return part._replace(hidden=())
            case {"at": at, "sums": sums, "inner": inner}, optax.MultiStepsState() if _same(at, _place(part)):
                return part._replace(inner_opt_state=_joined(part.inner_opt_state, inner), acc_grads=sums)
        raise _foreign()

    joined = _map(fill, public)
    if left:
        raise _foreign()
    return joined


def _without_counts(public: Any) -> Any:
    def strip(part: Any) -> Any:
        return part if isinstance(part, NoiseState) else _without_counts(part.inner_opt_state)

    return _map(strip, public)


def _place(part: Any) -> list[Any]:
    """Where an accumulation stands, and with it the noise inside: the same in both parts of one checkpoint."""
    inside = [value for noise in noise_states(part.inner_opt_state) for value in _position(noise)]
    return [part.mini_step, part.gradient_step, *inside]


def _position(noise: NoiseState | Hidden) -> list[Any]:
    return [noise.step, noise.run, noise.mark]


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


def _foreign() -> InvalidArgument:
    return InvalidArgument(
        "The private part is not that of this state: it is of another optimizer, step or run.",
        hint="keep the two of one split together, such as in files named by the step",
    )


def _map(function: Callable[[Any], Any], state: Any) -> Any:
    """`function` on every noise state and accumulation, the rest unchanged."""

    def holds(part: Any) -> bool:
        return isinstance(part, (NoiseState, optax.MultiStepsState))

    return jax.tree.map(lambda part: function(part) if holds(part) else part, state, is_leaf=holds)
