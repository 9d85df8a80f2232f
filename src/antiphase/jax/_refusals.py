"""Refusals inside a compiled program.

A callback that raises ends the program on one device, while the others wait for it in their next collective until XLA
aborts the process. So where there are several devices the program goes on with NaN in place of the noise, and the
refusal is logged and raised as what it is by the next `commit` or `report`. On a single device the callback raises, and
JAX wraps the error in its own.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import jax

from antiphase._run import Run

_refused: WeakKeyDictionary[Run, dict[int, Exception]] = WeakKeyDictionary()


def must_not_raise() -> bool:
    """Whether other devices might wait for the one that asks."""
    return jax.local_device_count() > 1


def remember(run: Run, step: int, error: Exception) -> None:
    """Keep the refusal of a step for `raise_refusal`, and tell the user at once."""
    _refused.setdefault(run, {})[step] = error
    logging.getLogger("antiphase").error("The noise of step %d was refused, so its output is NaN: %s", step, error)


def forget(run: Run, step: int) -> None:
    """The step has its noise now."""
    _refused.get(run, {}).pop(step, None)


def raise_refusal(run: Run, step: int) -> None:
    """Raise what a step of a compiled program was refused for, if it was."""
    error = _refused.get(run, {}).get(step)
    if error is not None:
        raise error
