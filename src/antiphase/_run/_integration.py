"""What the integrations use of a run beyond its public face: for the other modules of the package, not for users.

An integration that makes noise itself says so with `take_noise_from`, once, whenever it is given a run: the first time
it is recorded in the ledger, and from then on no other source is let in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._run._history import HOST
from antiphase._run._tape import Elsewhere, NoiseTape
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


def examples_of(run: Run) -> int | None:
    """How many examples the run was opened with."""
    return run._header.examples


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


def noise_was_read(run: Run, source: str, step: int) -> None:
    """Say that the step's noise was made by `source`, not by the host, so that the step can be committed."""
    if source == HOST:
        raise Refused("Noise of the host is read from the run.", hint="call run.noise(step)")
    take_noise_from(run, source)
    run._tape.read_steps.add(run._checked(step))


def digests_of(run: Run) -> bytes:
    """The keyed digests of the committed steps, one after another, as the ledger has them."""
    return bytes(run._history.digests)


def is_open(run: Run, step: int) -> bool:
    """Whether the step's noise was read and the step not committed since."""
    return step in run._tape.read_steps


def output_withdrawn(run: Run, step: int) -> None:
    """Record that a step's noisy output was made and dropped before it was committed; it counts as a rewind."""
    run._enter({"kind": "withdraw", "step": run._checked(step)})
    run._tape.read_steps.discard(step)
