"""Functions on runs for the framework integrations (PyTorch, JAX, Flower), beyond the public methods of `Run`.

An integration that generates noise itself calls `set_noise_source` whenever it is given a run. The first call records
the source in the ledger. From then on, a call with a different source raises `Refused`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphase._accounting import check_delta
from antiphase._bound import Bound
from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._plan import Plan
from antiphase._run.digests import DIGEST_BYTES
from antiphase._run.directory import read_header
from antiphase._run.history import HOST, NO_LINEAGE
from antiphase._run.locking import CriticalSection, synchronized
from antiphase._run.noise_replay import ExternalNoise, NoiseReplay, StreamReplay
from antiphase._run.privacy_report import early_stop_entropy, guarantee_after
from antiphase._run.run import DeviceNoise, Run
from antiphase._run.transport import Transport
from antiphase._samplers import Batch
from antiphase._secret import Secret
from antiphase._traceback import without_locals


def open_shared(
    plan: Plan,
    directory: str | Path,
    transport: Transport,
    *,
    leaves: dict[str, Leaf],
    own_leaves: dict[str, Leaf],
    device_noise: DeviceNoise | None = None,
    examples: int | None = None,
    secret: Secret | None = None,
    dtype: str = "float32",
    background_noise: bool = False,
    keep_source: bool = False,
) -> Run:
    """Open a run that all ranks (processes) of `transport` share. Every rank must call this and gets its own `Run`.

    Only rank 0 writes the ledger. `commit` and `publish` are collective: every rank must call them, and every rank
    raises an error if rank 0 does. `report` works on rank 0 only. `unit_noise` returns this rank's part of the noise.

    Args:
        plan: as for `Run.open`; the same on every rank.
        directory: run directory, shared by all ranks. Ranks without access to it must be given the same `secret`.
        transport: collective operations among the ranks.
        leaves: names and full shapes of all parameters.
        own_leaves: for each parameter, the part that this rank generates noise for.
        device_noise: function from (secret, run id) to a source of noise on a device. None to generate noise on the
            host, that is, with AES on the CPU.
        examples: as for `Run.open`; the same on every rank.
        secret: as for `Run.open`; the same on every rank.
        dtype: as for `Run.open`; the same on every rank.
        background_noise: as for `Run.open`; it also enables `start_noise`.
        keep_source: if true, keep the noise source of a run that was started with a source other than the host. Set it
            if you call `set_noise_source` afterwards.
    """
    return Run._open_shared(
        plan,
        directory,
        transport,
        leaves,
        own_leaves,
        device_noise,
        examples,
        secret,
        dtype,
        background_noise,
        keep_source,
    )


def transport_of(run: Run) -> Transport:
    """Return the collective operations among the processes that share the run."""
    return run._transport


def secret_of(run: Run) -> Secret:
    """Return the secret that every key of the run is derived from."""
    return run._secret


def leaves_of(run: Run) -> dict[str, Leaf]:
    """Return the names and shapes of the parameters that the run generates noise for."""
    return run._leaves


def own_leaves_of(run: Run) -> dict[str, Leaf]:
    """Return the part of each parameter that this process generates noise for: all of it, unless the run is shared."""
    return run._replay.leaves if isinstance(run._replay, StreamReplay) else run._leaves


def dtype_of(run: Run) -> str:
    """Return the dtype of the run's noise. Raises `Refused` for lattice noise, which is not in floating point."""
    if run.plan.mechanism.lattice is not None:
        raise Refused(
            "Noise in floating point was requested, but the plan of the run has a lattice.",
            hint="plan without lattice=True, or write your own training loop and add the noise with Run.release",
        )
    return run._header.dtype


def stored_dtype(directory: str | Path) -> str | None:
    """Return the dtype of the noise of the run in a directory; None if there is no run yet."""
    header = read_header(Path(directory))
    return None if header is None else header.dtype


def examples_of(run: Run) -> int | None:
    """Return the number of examples that the run was opened with; None if the run draws no batches."""
    return run._header.examples


def state_bytes_of(run: Run) -> int:
    """Return the size in bytes of the noise state that this process keeps on the host; 0 before the first step."""
    return run._replay.state_bytes if isinstance(run._replay, StreamReplay) else 0


def epsilon_with_tail(run: Run, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
    """Return the epsilon of the run at `delta`, corrected for the bounded range of its random draws.

    See `antiphase._run.tail`.

    Args:
        run: open run.
        epsilon_at: function of delta that returns the epsilon of the mechanism with ideal, unbounded draws.
        delta: delta of the guarantee.
    """
    return run._tail.covered(epsilon_at, delta)


def epsilon_so_far(run: Run, delta: float) -> float:
    """Return an upper bound on the epsilon of the committed steps at `delta`; 0 before the first step.

    `Run.report` states the same guarantee, but only at the plan's delta and only on rank 0.
    """
    run._journal.check_open()
    run._journal.check_not_failed()
    target, steps = check_delta("get_epsilon", delta), run.committed  # read once: another thread may commit meanwhile
    entropy = early_stop_entropy(run.plan, steps, run._secret, run.run_id)
    bound = guarantee_after(run.plan, steps, target, run._tail, entropy)
    return 0.0 if bound is None else bound.value


def outputs_digest(run: Run, step: int) -> str:
    """Return a digest of the committed outputs of all steps before `step`. Replacing any output changes the digest."""
    return hashlib.sha256(run._history.digests[: step * DIGEST_BYTES]).hexdigest()


def is_committed(run: Run, step: int, digest: bytes) -> bool:
    """Return whether `step` was committed with `digest` as the digest of its output."""
    return 0 <= step < run.committed and hmac.compare_digest(run._history.digest(step), run._keyed_output(digest))


def unit_noise(run: Run, step: int) -> list[Any]:
    """Return the noise of a step before it is multiplied by the clipping norm, one array for each leaf, in order."""
    return run._unit_noise(step)


@synchronized
def set_noise_source(run: Run, source: str, replay: NoiseReplay | None = None) -> None:
    """Make `source` the only source of noise of a run. Raises `Refused` if the run was started with a different source.

    Different sources give independent random draws. If the source changed during a run, the noise of later steps would
    not cancel the noise of earlier steps. The noise of all steps would not have the covariance that the guarantee
    assumes.

    If several processes share the run, every process must call this function before the first step. Later calls, which
    cannot change the source, do not communicate.

    Args:
        run: open run. Its source can change only if it is the host, no step was committed, and no noise was read since
            the run was opened.
        source: "host", or a description of the noise generator that names everything the noise bits depend on. Reports
            show this text.
        replay: noise source that `unit_noise` reads from now on. If None and `source` is "host", `unit_noise` keeps
            reading the host's noise. If None and `source` is not "host", `unit_noise` raises `Refused`, and each step
            must be announced with `record_noise_read`.
    """
    run._journal.check_open()
    if source != run._history.source:
        if run._history.source == HOST:  # only this change can succeed, and it is a collective operation
            run._write(lambda: run._set_noise_source(source))
        else:
            run._set_noise_source(source)  # raises an error in every process
    if replay is not None:
        run._replay = replay
    elif source != HOST and not isinstance(run._replay, ExternalNoise):
        run._replay = ExternalNoise(source)


@synchronized
def record_noise_read(run: Run, source: str, step: int) -> None:
    """Record that the noise of `step` was read from `source` (not the host), so that the step can be committed."""
    if source == HOST:
        raise Refused("Noise from the host must be read from the run.", hint="call run.gradient_noise(step)")
    set_noise_source(run, source)
    run._replay.read_steps.add(run._checked(step))


@synchronized
def read_noise(run: Run, step: int) -> list[Any]:
    """Return the same arrays as `unit_noise`, without copying them. The caller must neither change nor keep them."""
    t, replay = run._checked(step), run._replay
    return replay.read_shared(t) if isinstance(replay, StreamReplay) else replay.read(t)


def draw_batch(run: Run, step: int) -> Batch:
    """Return the same batch as `run.batch`, but do not start computing the step's noise."""
    return run._draw_batch(step)


def start_noise(run: Run, step: int) -> None:
    """Start computing the noise of a step in the background. Call this when the step's forward pass begins."""
    run._start_noise(step)


@synchronized
def check_step(run: Run, step: int) -> None:
    """Raise `Refused` unless `step` is the next step or an earlier step (a replay)."""
    run._checked(step)


@without_locals
@synchronized
def commit_with_lineage(run: Run, step: int, digest: bytes, lineage: bytes) -> None:
    """Commit a step like `run.commit`, and record `lineage`, bytes that identify the noisy outputs up to this step."""
    run._commit(step, digest, lineage)


@without_locals
@synchronized
def commit_after(run: Run, step: int, digest: bytes, check: Callable[[], None]) -> None:
    """Commit a step like `run.commit`, but first call `check` on rank 0. If `check` raises there, every rank raises."""
    run._commit(step, digest, check=check)


@without_locals
@synchronized
def check_lineage(run: Run, step: int, lineage: bytes) -> None:
    """Raise `Refused` if the training state before `step` was not computed from the outputs in the ledger.

    When a step is replaced, its old and its new output contain the same noise. Anyone who sees models computed from
    both can subtract them and learn the difference of the outputs without noise. For the same reason, a run that
    restarts at step 0 must use its initial parameters. Otherwise, a model that already contains the noise of the first
    steps would get the same noise again.

    Args:
        run: open run.
        step: step to take.
        lineage: lineage of the state, as passed to `commit_with_lineage` for the previous step. At step 0, pass bytes
            that identify the parameters.
    """
    code = run._keyed_lineage(lineage)
    if step == run.committed == 0 and code != run._history.start and run._journal.is_writer:
        run._journal.append({"kind": "start", "mark": code.hex()})
    if step <= run.committed and run._history.lineage(step - 1) not in (NO_LINEAGE, code):
        raise _replaced(step) if step else _other_start()


def _replaced(step: int) -> Refused:
    return Refused(
        "This training state contradicts the ledger: it was not computed from the outputs that the ledger records for "
        f"the first {step} steps.",
        hint="either these steps were replaced later, or the gradients of this process were not summed with the "
        "gradients of the other processes before the noise was added. Either way, two outputs have the same noise. "
        "Continue from a state computed from the steps in the ledger, or start a new run in a new directory; "
        "antiphase.compose computes the guarantee of both",
    )


def _other_start() -> Refused:
    return Refused(
        "The run already has committed steps, and it was started with different parameters.",
        hint="to resume, load the state of the run together with the parameters; to start over, use the parameters "
        "that the run was started with, or start a new run",
    )


def is_closed(run: Run) -> bool:
    """Return whether the run was closed in this process."""
    return run._journal.is_closed


def awaits_commit(run: Run, step: int) -> bool:
    """Return whether the noise of a step was read and the step has not been committed since."""
    return step in run._replay.read_steps


def critical_section(run: Run) -> CriticalSection:
    """Return a context manager for a write that must complete before anything else is written to the ledger.

    If the write fails, the run must be opened again.
    """
    run._journal.check_usable()
    return run._journal.critical


@synchronized
def record_withdrawal(run: Run, step: int) -> None:
    """Record that a noisy output of `step` was computed and then discarded. `PrivacyReport.rewinds` counts it.

    This is not a collective operation: only rank 0, which writes the ledger, records it.
    """
    if run._journal.is_writer:
        run._journal.append({"kind": "withdraw", "step": run._checked(step)})
    run._replay.read_steps.discard(step)
