"""`commit` records a training step in the run's ledger; `report` states the guarantee of the steps so far."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from antiphase._errors import Refused
from antiphase._run import PrivacyReport, Run, commit_with_lineage, examples_of, is_committed, leaves_of, transport_of
from antiphase._traceback import without_locals
from antiphase.jax._deferred_errors import raise_deferred
from antiphase.jax._leaves import arrays_of, check_leaves, unwrapped
from antiphase.jax._processes import agree, shared_digest
from antiphase.jax._split import committed_state
from antiphase.jax._state import (
    NoiseState,
    check_no_accumulation,
    check_not_refused,
    check_run_id,
    hash_bytes,
    noise_state_of,
)


@without_locals
def commit(run: Run, state: Any, params: Any, indices: ArrayLike | None = None) -> None:
    """Record the last training step in the ledger. Blocks until the step's parameters are computed.

    A second commit of a step with the same parameters and the same public part of the state (see `split`) is a replay
    and costs no privacy. With `optax.MultiSteps`, do not call `commit` before the last micro-batch of the first step:
    until then there is nothing to commit.

    Raises `Refused` if a transformation other than `optax.MultiSteps` comes before the noise in the optimizer, or if
    the optimizer can skip the noise. If several processes share the run (see `open_run`), every process must call
    `commit`. If one process raises an error, all do.

    Args:
        run: the run passed to `add_correlated_noise`.
        state: state of the whole optimizer after the step. For a `flax.nnx.Optimizer`, pass its `opt_state`.
        params: parameters after the step, with exactly the leaves that the run was opened with. It may be an
            Equinox module, or nnx.state(model, nnx.Param).
        indices: indices of all examples used in the step, without repetition and in any order. They must be the run's
            own batch. Leave `indices` out if the run was opened without examples.
    """
    state = unwrapped(state)
    noise = noise_state_of(state)
    step = int(noise.step) - 1
    jax.block_until_ready((params, state))  # type: ignore[no-untyped-call]  # waits for all devices
    agree(run, lambda: _check(run, noise, params, indices))
    # After a kill between two calls of `save`, processes could resume from different steps.
    hint = "load the checkpoints of the same step in all processes, and call commit after the same step in all"
    transport_of(run).check_same((step, hash_bytes(noise.history_hash)), "step and earlier outputs", hint)
    if run.plan.mechanism.lattice is not None:
        check_no_accumulation(state)
    commit_with_lineage(run, step, _digest(run, step, state, params), hash_bytes(noise.history_hash))


def is_replay(run: Run, state: Any, params: Any) -> bool:
    """Return whether the last training step is in the ledger with the same output."""
    step = int(noise_state_of(state).step) - 1
    return step < run.committed and is_committed(run, step, _digest(run, step, state, params))


def _digest(run: Run, step: int, state: Any, params: Any) -> bytes:
    """Return the digest of a step's output."""
    return shared_digest(run, step, [_as_bits(leaf) for leaf in arrays_of((params, committed_state(state)))])


def _check(run: Run, noise: NoiseState, params: Any, indices: ArrayLike | None) -> None:
    """Raise an error if the step that led to a state must not be committed."""
    check_run_id(noise.run_id, run.run_id)
    step = int(noise.step) - 1
    if step < 0:
        raise Refused(
            "There is no step to commit: no noise has been added yet.", hint="call commit after optimizer.update"
        )
    raise_deferred(run, step)
    check_not_refused(noise.history_hash)
    check_leaves(leaves_of(run), params, "parameters")
    _check_batch(run, step, indices)


def report(run: Run, state: Any) -> PrivacyReport:
    """Return the run's privacy report. Raises `Refused` if the optimizer has taken a step that is not committed.

    Args:
        run: the run passed to `add_correlated_noise`.
        state: current state of the whole optimizer.
    """
    noise = noise_state_of(unwrapped(state))
    check_run_id(noise.run_id, run.run_id)
    raise_deferred(run, int(noise.step) - 1)
    check_not_refused(noise.history_hash)
    if int(noise.step) > run.committed:
        raise Refused(
            f"The optimizer has taken {int(noise.step)} steps, but only {run.committed} are committed.",
            hint="call antiphase.jax.commit after every optimizer.update",
        )
    return run.report()


def _as_bits(leaf: Any) -> Any:
    """Return a leaf with a NumPy dtype. Bits of leaves with other dtypes (bfloat16, PRNG keys) are read as integers."""
    if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    kind = np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else None
    if kind is None or kind.kind != "V":
        return leaf
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.lax.bitcast_convert_type(leaf, f"uint{8 * kind.itemsize}")
    return np.asarray(leaf).view(f"u{kind.itemsize}")


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
            "The run was opened without examples, so it draws no batches and cannot check which examples were used.",
            hint="open the run with examples=len(data), or commit without indices",
        )
    own = run.batch(step)
    if not np.array_equal(np.sort(np.asarray(indices), axis=None), np.sort(own.indices[own.mask])):
        raise Refused(
            f"The examples used in step {step} are not the run's own batch. The guarantee holds only for that batch.",
            hint="take batches from run.batch(step) or antiphase.jax.batches, and use all their examples",
        )
