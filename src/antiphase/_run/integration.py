"""What the integrations use of a run beyond its public methods.

An integration that makes noise itself calls `set_noise_source` whenever it is given a run. The first call records the
source in the ledger; from then on, every other source is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from antiphase._accounting import check_delta
from antiphase._bound import Bound
from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._plan import Plan
from antiphase._run.digests import DIGEST_BYTES
from antiphase._run.history import HOST, NO_LINEAGE
from antiphase._run.locking import CriticalSection, synchronized
from antiphase._run.noise_replay import ExternalNoise, NoiseReplay, StreamReplay
from antiphase._run.privacy_report import guarantee_after
from antiphase._run.run import DeviceNoise, Run
from antiphase._run.transport import Transport
from antiphase._secret import Secret


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
) -> Run:
    """Open a run that all ranks of `transport` share. Every rank calls it and gets a `Run`.

    Rank 0 alone writes the ledger. `commit` and `publish` are collective: every rank must call them, and every rank
    raises if rank 0 refuses. `report` works on rank 0 only. `noise` makes this rank's part of the noise.

    Args:
        plan: as for `Run.open`; the same on every rank.
        directory: run directory, shared by all ranks. Ranks that cannot see it must be given the same `secret`.
        transport: how the ranks talk to each other.
        leaves: all leaves, whole.
        own_leaves: part of each leaf that this rank makes noise for.
        device_noise: makes noise on a device, given the secret and the run id. None to make it on the host.
        examples: as for `Run.open`; the same on every rank.
        secret: as for `Run.open`; the same on every rank.
        dtype: as for `Run.open`; the same on every rank.
    """
    return Run._open_shared(plan, directory, transport, leaves, own_leaves, device_noise, examples, secret, dtype)


def secret_of(run: Run) -> Secret:
    """The secret that every key of the run is derived from."""
    return run._secret


def leaves_of(run: Run) -> dict[str, Leaf]:
    """The arrays that the run makes noise for."""
    return run._leaves


def dtype_of(run: Run) -> str:
    """The dtype of the run's noise."""
    return run._header.dtype


def examples_of(run: Run) -> int | None:
    """The number of examples that the run was opened with."""
    return run._header.examples


def state_bytes_of(run: Run) -> int:
    """Memory of the noise state that this process keeps on the host; 0 before the first step."""
    return run._replay.state_bytes if isinstance(run._replay, StreamReplay) else 0


def epsilon_with_tail(run: Run, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
    """The epsilon of the run, whose draws are bounded, from that of the ideal mechanism; see `antiphase._run.tail`."""
    return run._tail.covered(epsilon_at, delta)


def epsilon_so_far(run: Run, delta: float) -> float:
    """An upper bound on the epsilon of the committed steps at `delta`; 0 before the first step.

    It makes the same claim as `Run.report`, at any delta and on every rank.
    """
    run._journal.check_not_failed()
    target = check_delta("get_epsilon", delta)
    bound = guarantee_after(run.plan, run.committed, target, run._tail)
    return 0.0 if bound is None else bound.value


def outputs_digest(run: Run, step: int) -> str:
    """A digest of the outputs of all steps before `step`, as committed. It changes if any of them is replaced."""
    return hashlib.sha256(run._history.digests[: step * DIGEST_BYTES]).hexdigest()


@synchronized
def set_noise_source(run: Run, source: str, replay: NoiseReplay | None = None) -> None:
    """Make `source` the only source of noise of a run. Refused if the run was started with another one.

    The z of two sources are independent. Noise of later steps would not cancel that of earlier steps, and the
    covariance would not be the one that the guarantee is computed from.

    Args:
        run: open run. For a source other than the host, no step may have been committed with another source.
        source: "host", or what makes the noise, in words that name everything its bits depend on; reports show them.
        replay: what `run.noise` reads from now on. None to keep the host's; with another source, `noise` is then
            refused and each step is announced with `record_noise_read`.
    """
    run._journal.check_open()
    run._set_noise_source(source)
    if replay is not None:
        run._replay = replay
    elif source != HOST and not isinstance(run._replay, ExternalNoise):
        run._replay = ExternalNoise(source)


@synchronized
def record_noise_read(run: Run, source: str, step: int) -> None:
    """Tell the run that `source`, not the host, made the noise of a step, so that the step can be committed."""
    if source == HOST:
        raise Refused("Noise of the host is read from the run.", hint="call run.noise(step)")
    set_noise_source(run, source)
    run._replay.read_steps.add(run._checked(step))


@synchronized
def check_step(run: Run, step: int) -> None:
    """Refuse a step that the run does not allow now."""
    run._checked(step)


@synchronized
def commit_with_lineage(run: Run, step: int, digest: bytes, lineage: bytes) -> None:
    """Call `run.commit`, with a lineage: bytes that identify the noisy outputs of this step and all before it."""
    run._commit(step, digest, lineage)


@synchronized
def commit_after(run: Run, step: int, digest: bytes, check: Callable[[], None]) -> None:
    """Call `run.commit`, after `check` on the rank that writes the ledger. If `check` raises, every rank raises."""
    run._commit(step, digest, check=check)


@synchronized
def check_lineage(run: Run, step: int, lineage: bytes) -> None:
    """Refuse to take a step from a training state that does not follow from the outputs in the ledger.

    If steps were replaced, the old and the new outputs contain the same noise: whoever sees what follows from both
    learns their difference without noise. Likewise, a restart must use the initial parameters: a model that already
    contains the noise of the first steps must not get it again.

    Args:
        run: open run.
        step: step to take.
        lineage: lineage of the state, as given to `commit_with_lineage` with the step before; at step 0, bytes that
            identify the parameters.
    """
    code = run._keyed_lineage(lineage)
    if step == run.committed == 0 and code != run._history.start:
        run._journal.append({"kind": "start", "mark": code.hex()})
    if step <= run.committed and run._history.lineage(step - 1) not in (NO_LINEAGE, code):
        raise _replaced(step) if step else _other_start()


def _replaced(step: int) -> Refused:
    return Refused(
        f"This state does not follow from the outputs of the {step} steps before it in the ledger.",
        hint="either these steps were replaced later, or this is a replica whose gradients were not summed with those "
        "of the others before the noise was added. Both outputs contain the same noise: continue from a state of the "
        "steps in the ledger, or start a new run and compose the two",
    )


def _other_start() -> Refused:
    return Refused(
        "The run has steps already, and it was started with other parameters.",
        hint="to resume, load the state of the run together with the parameters; to start over, use the parameters "
        "that the run was started with, or start a new run",
    )


def awaits_commit(run: Run, step: int) -> bool:
    """Whether the noise of a step was read and the step has not been committed since."""
    return step in run._replay.read_steps


def critical_section(run: Run) -> CriticalSection:
    """Guard a write of the integration that must precede the ledger's. If it fails, the run must be reopened."""
    run._journal.check_usable()
    return run._journal.critical


@synchronized
def record_withdrawal(run: Run, step: int) -> None:
    """Record that a noisy output was made and dropped before it was committed, which counts as a rewind.

    It is not collective: only the rank that writes the ledger records it.
    """
    if run._journal.is_writer:
        run._journal.append({"kind": "withdraw", "step": run._checked(step)})
    run._replay.read_steps.discard(step)
