"""Committing a step of training to the run's ledger, and the report on it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase._errors import Refused
from antiphase._run import PrivacyReport, Run, commit_with_lineage, digest, examples_of, leaves_of
from antiphase.jax._leaves import check_leaves
from antiphase.jax._mark import mark_bytes
from antiphase.jax._refusals import raise_refusal
from antiphase.jax._split import output_of
from antiphase.jax._state import check_run, noise_of


def commit(run: Run, state: Any, params: Any, indices: ArrayLike | None = None) -> None:
    """Record in the ledger the step that led to these parameters; waits until they are computed.

    A step that was committed before with the same parameters and the same public state (see `split`) is a replay and
    costs nothing. With `optax.MultiSteps`
    call it after an update, not after the micro-batches before the first one.

    An optimizer in which anything but `optax.MultiSteps` comes before the noise, or may leave it out, is refused.

    Args:
        run: that of `add_noise`.
        state: of the optimizer, after the step.
        params: after the step; no others than those that the noise is for.
        indices: the examples that were used, all of them, once each; refused where they are not the run's own batch.
            To be left out where the run was opened without examples and makes no batches.
    """
    noise = noise_of(state)
    check_run(noise.run, run.run_id)
    step = int(noise.step) - 1
    if step < 0:
        raise Refused("No step has been taken: no noise was added yet.", hint="commit after optimizer.update")
    jax.block_until_ready((params, state))  # type: ignore[no-untyped-call]  # on every device, not on the first alone
    raise_refusal(run, step)
    check_leaves(leaves_of(run), params, "parameters")
    _check_batch(run, step, indices)
    made = jax.tree.leaves((params, output_of(state)))
    commit_with_lineage(run, step, digest([_numbers(leaf) for leaf in made]), mark_bytes(noise.mark))


def report(run: Run, state: Any) -> PrivacyReport:
    """The report of the run; refused while the optimizer is a step ahead of the ledger.

    Args:
        run: that of `add_noise`.
        state: of the optimizer, as it is now.
    """
    noise = noise_of(state)
    check_run(noise.run, run.run_id)
    raise_refusal(run, int(noise.step) - 1)
    if int(noise.step) > run.committed:
        raise Refused(
            f"The optimizer has taken {int(noise.step)} steps, but {run.committed} are committed.",
            hint="commit every step after optimizer.update",
        )
    return run.report()


def _numbers(leaf: Any) -> NDArray[Any]:
    """The bits of an array that NumPy has no numbers for, such as bfloat16 or a key, as integers."""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _check_batch(run: Run, step: int, indices: ArrayLike | None) -> None:
    if (indices is None) != (examples_of(run) is None):
        raise Refused(
            "A run that makes batches needs to know which examples were used, and one that makes none cannot check it.",
            hint="open the run with examples=len(data), and commit with the indices of its batch",
        )
    if indices is None:
        return
    own = run.batch(step)
    if not np.array_equal(np.sort(np.asarray(indices), axis=None), np.sort(own.indices[own.mask])):
        raise Refused(
            f"The examples used in step {step} are not the run's own batch, which the guarantee rests on.",
            hint="take batches from run.batch(step) or antiphase.jax.batches, and use all of them",
        )
