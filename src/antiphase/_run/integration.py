"""What the integrations use of a run beyond its public face: for the other modules of the package, not for users.

An integration that makes noise itself says so with `take_noise_from`, once, whenever it is given a run: the first time
it is recorded in the ledger, and from then on no other source is let in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from antiphase._bound import Bound
from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._run.history import HOST, NO_MARK
from antiphase._run.locking import ToTheEnd, in_turn
from antiphase._run.noise_replay import Elsewhere, NoiseTape
from antiphase._run.tail import tail_of
from antiphase._secret import Secret

if TYPE_CHECKING:
    from antiphase._run import Run


def secret_of(run: Run) -> Secret:
    """What every key of the run is derived from."""
    return run._secret


def leaves_of(run: Run) -> dict[str, Leaf]:
    """The arrays that the run makes noise for."""
    return run._leaves


def dtype_of(run: Run) -> str:
    """Of the run's noise."""
    return run._header.dtype


def covered(run: Run, epsilon_at: Callable[[float], Bound], delta: float) -> Bound:
    """An epsilon of the ideal mechanism as one of the run, whose noise has an end; see `antiphase._run.tail`."""
    tail = tail_of(run.plan, run._leaves, run._header.dtype, run._history.source)
    return tail.covered(epsilon_at, delta)


def examples_of(run: Run) -> int | None:
    """How many examples the run was opened with."""
    return run._header.examples


@in_turn
def take_noise_from(run: Run, source: str, tape: NoiseTape | None = None) -> None:
    """Make `source` the run's only source of noise; refused where it was begun with another one.

    z of two sources are independent: the noise of the later steps would not belong to that of the earlier, and their
    covariance would not be the one that the guarantee is computed from.

    Args:
        run: open; with a source other than the host, no step may be committed yet, or all were from this source.
        source: "host", or what makes the noise, in words that name all that decides its bits (the report shows them).
        tape: what `run.noise` reads from now on. None leaves the host's own tape there; with another source, `noise`
            is then refused, and each step is announced with `noise_was_read`.
    """
    run._lock.check()
    begun = run._history.source
    if source != begun:
        if begun != HOST or run.committed > 0 or run._tape.read_steps:
            raise Refused(
                f"The run was begun with noise from another source: {begun}. Got {source} instead.",
                hint="go on with the source, kind of device and version that it was begun with, or start a new run",
            )
        run._enter({"kind": "source", "source": source})
    if tape is not None:
        run._tape = tape
    elif source != HOST and not isinstance(run._tape, Elsewhere):
        run._tape = Elsewhere(source)


@in_turn
def noise_was_read(run: Run, source: str, step: int) -> None:
    """Say that the step's noise was made by `source`, not by the host, so that the step can be committed."""
    if source == HOST:
        raise Refused("Noise of the host is read from the run.", hint="call run.noise(step)")
    take_noise_from(run, source)
    run._tape.read_steps.add(run._checked(step))


@in_turn
def check_step(run: Run, step: int) -> None:
    """Refuse a step that the run does not allow now."""
    run._checked(step)


@in_turn
def commit_marked(run: Run, step: int, digest: bytes, mark: bytes) -> None:
    """`run.commit`, with a mark that stands for the noisy outputs of this step and all before it."""
    run._commit(step, digest, run._keyed_mark(mark).hex())


@in_turn
def check_mark(run: Run, step: int, mark: bytes) -> None:
    """Refuse to take a step from a state that other outputs led to than those that the ledger has.

    Where steps were taken again, the same noise is in the old outputs and in the new: whoever sees what follows from
    both has their difference without noise. Training begins again where it began: a model that has the noise of the
    first steps already must not be given it once more.

    Args:
        run: open.
        step: to be taken.
        mark: of the state, as given to `commit_marked` with the step before; at step 0, of the parameters.
    """
    code = run._keyed_mark(mark)
    if step == run.committed == 0 and code != run._history.start:
        run._enter({"kind": "start", "mark": code.hex()})
    if step <= run.committed and run._history.mark(step - 1) not in (NO_MARK, code):
        raise _withdrawn(step) if step else _elsewhere()


def _withdrawn(step: int) -> Refused:
    return Refused(
        f"The ledger has other outputs of the {step} steps before this one than those that led to the state.",
        hint="this state is of steps that were taken again, or of a replica whose gradients were not added to those of "
        "the others before the noise. The same noise is in both: go on from a state of the steps that the ledger has, "
        "or start a new run and compose the two",
    )


def _elsewhere() -> Refused:
    return Refused(
        "The run has steps already, and was begun with other parameters than these.",
        hint="to resume, load the state of the run along with the parameters; to begin again, take the parameters that "
        "the run was begun with, or start a new run",
    )


def digests_of(run: Run) -> bytes:
    """The keyed digests of the committed steps, one after another, as the ledger has them."""
    return bytes(run._history.digests)


def is_open(run: Run, step: int) -> bool:
    """Whether the step's noise was read and the step not committed since."""
    return step in run._tape.read_steps


def one_write(run: Run) -> ToTheEnd:
    """Around a write of the integration's own that the ledger follows: where it fails, the run must be reopened."""
    run._check_usable()
    return run._to_the_end


@in_turn
def output_withdrawn(run: Run, step: int) -> None:
    """Record that a step's noisy output was made and dropped before it was committed; it counts as a rewind."""
    run._enter({"kind": "withdraw", "step": run._checked(step)})
    run._tape.read_steps.discard(step)
