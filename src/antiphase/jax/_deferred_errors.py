"""Errors that a compiled program cannot raise, kept until `commit` or `report` can.

If a host callback raises on one device, the other devices wait in their next collective until XLA aborts the process.
So with several devices the program continues with NaN in place of the noise. The error is logged, and the next `commit`
or `report` raises it. With a single device the callback raises, and JAX wraps the error in its own.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import jax

from antiphase._run import Run

_deferred: WeakKeyDictionary[Run, dict[int, Exception]] = WeakKeyDictionary()


def must_defer() -> bool:
    """Return whether other devices might wait for the one that runs the callback."""
    return jax.local_device_count() > 1


def defer_error(run: Run, step: int, error: Exception) -> None:
    """Log the error of a step and keep it for `raise_deferred`."""
    _deferred.setdefault(run, {})[step] = error
    logging.getLogger("antiphase").error("The noise of step %d was refused, so its output is NaN: %s", step, error)


def clear_error(run: Run, step: int) -> None:
    """Drop the deferred error of a step that now has its noise."""
    _deferred.get(run, {}).pop(step, None)


def raise_deferred(run: Run, step: int) -> None:
    """Raise the deferred error of a step, if there is one."""
    error = _deferred.get(run, {}).get(step)
    if error is not None:
        raise error
