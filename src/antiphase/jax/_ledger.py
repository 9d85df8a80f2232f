"""Committing a step of training to the run's ledger, and the report on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from antiphase._errors import InvalidArgument, Refused
from antiphase._run import PrivacyReport, Run, digest
from antiphase.jax._link import made_elsewhere
from antiphase.jax._state import Hidden, NoiseState, noise_states, run_words

DEVICE = (
    "Noise was made on the device, by Threefry with a 64-bit key: statistically sound, but no cipher stands behind it."
)


def commit(run: Run, state: Any, params: Any, indices: ArrayLike | None = None) -> None:
    """Record in the ledger the step that led to these parameters; waits until they are computed.

    A step that was committed before with the same parameters is a replay and costs nothing. With `optax.MultiSteps`
    call it after an update, not after the micro-batches before the first one.

    Args:
        run: that of `add_noise`.
        state: of the optimizer, after the step.
        params: after the step.
        indices: the examples that were used; refused where they are not the run's own batch. Without them nothing
            checks that the guarantee's batches were used.
    """
    noise = _only(state)
    if not np.array_equal(np.asarray(noise.run), run_words(run.run_id)):
        raise Refused("The state of the optimizer belongs to another run.", hint="commit to the run of add_noise")
    step = int(noise.step) - 1
    if step < 0:
        raise Refused("No step has been taken: no noise was added yet.", hint="commit after optimizer.update")
    if indices is not None:
        _check_batch(run, step, indices)
    code = digest(jax.tree.leaves(params))
    if isinstance(noise.hidden, Hidden):
        made_elsewhere(run, step)
    run.commit(step, code)


def report(run: Run, state: Any) -> PrivacyReport:
    """The report of the run, with what the state of the optimizer says about where its noise came from.

    Args:
        run: that of `add_noise`.
        state: of the optimizer.
    """
    made = run.report()
    if isinstance(_only(state).hidden, Hidden):
        made = replace(made, remarks=(*made.remarks, DEVICE))
    return made


def _only(state: Any) -> NoiseState:
    found = noise_states(state)
    if len(found) != 1:
        raise InvalidArgument(
            f"The state has {len(found)} states of noise; a step needs exactly one.",
            hint="put add_noise into the chain once, and pass the state of the whole optimizer",
        )
    return found[0]


def _check_batch(run: Run, step: int, indices: ArrayLike) -> None:
    own = run.batch(step)
    if not np.array_equal(np.sort(np.asarray(indices)), own.indices[own.mask]):
        raise Refused(
            f"The examples used in step {step} are not the run's own batch, which the guarantee rests on.",
            hint="take batches from run.batch(step) or antiphase.jax.batches, and use all of them",
        )
