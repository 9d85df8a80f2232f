"""Stores errors of host callbacks until `commit` or `report` can raise them.

If a host callback raises an error on one device, the other devices wait in their next collective until XLA aborts the
process. With several devices, the callback therefore logs the error and returns. The output of the step is then NaN,
and the next `commit` or `report` raises the error. With a single device, the callback raises the error, and JAX wraps
it in an error of its own.
"""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

import jax

from antiphase._errors import Refused
from antiphase._run import Run, is_closed

_deferred: WeakKeyDictionary[Run, dict[int, Exception]] = WeakKeyDictionary()


def must_defer() -> bool:
    """Return True if errors must be deferred because other devices may wait for the one that runs the callback."""
    return jax.device_count() > 1


def explained(run: Run, step: int, error: Exception) -> Exception:
    """Return the error to report for a step whose noise could not be made. If the run was closed, the error says so."""
    if not is_closed(run):
        return error
    return Refused(
        f"The run was closed before the noise of step {step} was made, so the step has no output.",
        hint="JAX computes in the background: commit the step, or call jax.block_until_ready on its outputs, before "
        "you close the run. To repeat the step, open the run again",
    )


def defer_error(run: Run, step: int, error: Exception) -> None:
    """Log the error of a step and store it for `raise_deferred`."""
    _deferred.setdefault(run, {})[step] = error
    logging.getLogger("antiphase").error(
        "The noise of step %d was refused, so the output of the step is NaN: %s", step, error
    )


def clear_error(run: Run, step: int) -> None:
    """Delete the deferred error of a step after its noise was made successfully."""
    _deferred.get(run, {}).pop(step, None)


def raise_deferred(run: Run, step: int) -> None:
    """Raise the deferred error of a step, if there is one."""
    error = _deferred.get(run, {}).get(step)
    if error is not None:
        raise error
