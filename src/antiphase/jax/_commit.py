"""`commit`, which records a training step in the run's ledger, and `report`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase._errors import Refused
from antiphase._run import PrivacyReport, Run, commit_with_lineage, digest, examples_of, leaves_of
from antiphase.jax._deferred_errors import raise_deferred
from antiphase.jax._leaves import check_leaves
from antiphase.jax._split import committed_state
from antiphase.jax._state import check_run_id, hash_bytes, noise_state_of


def commit(run: Run, state: Any, params: Any, indices: ArrayLike | None = None) -> None:
    """Record in the ledger the step that gave these parameters. Blocks until they are computed.

    Committing a step again with the same parameters and the same public state (see `split`) is a replay and costs no
    privacy. With `optax.MultiSteps`, call it once the first update has been made; before that there is nothing to
    commit.

    Raises `Refused` if anything but `optax.MultiSteps` comes before the noise in the optimizer, or can skip it.

    Args:
        run: the run passed to `add_noise`.
        state: state of the optimizer after the step.
        params: parameters after the step, with exactly the leaves that the run was opened with.
        indices: indices of all examples used, each once; they must be the run's own batch. Leave it out if the run was
            opened without examples.
    """
    noise = noise_state_of(state)
    check_run_id(noise.run_id, run.run_id)
    step = int(noise.step) - 1
    if step < 0:
        raise Refused("There is no step to commit: no noise has been added yet.", hint="commit after optimizer.update")
    jax.block_until_ready((params, state))  # type: ignore[no-untyped-call]  # on every device, not only the first
    raise_deferred(run, step)
    check_leaves(leaves_of(run), params, "parameters")
    _check_batch(run, step, indices)
    outputs = jax.tree.leaves((params, committed_state(state)))
    commit_with_lineage(run, step, digest([_as_numpy(leaf) for leaf in outputs]), hash_bytes(noise.history_hash))


def report(run: Run, state: Any) -> PrivacyReport:
    """Return the run's report. Raises `Refused` while the optimizer has a step that is not committed.

    Args:
        run: the run passed to `add_noise`.
        state: current state of the optimizer.
    """
    noise = noise_state_of(state)
    check_run_id(noise.run_id, run.run_id)
    raise_deferred(run, int(noise.step) - 1)
    if int(noise.step) > run.committed:
        raise Refused(
            f"The optimizer has taken {int(noise.step)} steps, but only {run.committed} are committed.",
            hint="call antiphase.jax.commit after every optimizer.update",
        )
    return run.report()


def _as_numpy(leaf: Any) -> NDArray[Any]:
    """Return a NumPy array; dtypes that NumPy lacks, such as bfloat16 or keys, as integers of the same bits."""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    array = np.asarray(leaf)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _check_batch(run: Run, step: int, indices: ArrayLike | None) -> None:
    if indices is None and examples_of(run) is None:
        return
    if indices is None:
        raise Refused(
            f"Step {step} cannot be committed without the indices of the examples that were used.",
            hint="pass commit(..., indices=batch.indices), with the batch from antiphase.jax.batches",
        )
    if examples_of(run) is None:
        raise Refused(
            "The run was opened without examples and makes no batches, so it cannot check which examples were used.",
            hint="open the run with examples=len(data), or commit without indices",
        )
    own = run.batch(step)
    if not np.array_equal(np.sort(np.asarray(indices), axis=None), np.sort(own.indices[own.mask])):
        raise Refused(
            f"The examples used in step {step} are not the run's own batch, on which the guarantee depends.",
            hint="take batches from run.batch(step) or antiphase.jax.batches, and use every example of them",
        )
