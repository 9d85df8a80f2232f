"""Provides the noise of a run's next step, and replays the noise of earlier steps."""

from __future__ import annotations

import os
import re
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, final

from numpy.typing import NDArray

from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._noise import Leaf, NoiseStream
from antiphase._plan import Plan
from antiphase._run.locking import Exclusive
from antiphase._secret import Secret
from antiphase._traceback import without_locals

KEPT_STATES = 2  # if a crash damages the newest state, the older one remains
SAVED = re.compile(r"noise-([0-9]{12,})\.state")


class NoiseReplay(Protocol):
    """Interface of the objects that a run reads its noise from.

    Args:
        read_steps: steps whose noise this process has read and that it has not committed since. Only these steps can be
            committed.
    """

    read_steps: set[int]

    def read(self, step: int) -> list[Any]:
        """Return the noise of `step`; the same values every time."""

    def save(self) -> None:
        """Store the current noise state, if there is one."""


@final
class ExternalNoise:
    """Takes the place of noise from the host (CPU) if an integration generates the noise. `read` raises `Refused`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.read_steps: set[int] = set()

    def read(self, step: int) -> NoReturn:
        """Raise `Refused`: noise from the host would not be correlated with the noise added before."""
        raise not_from_host(self._source)

    def save(self) -> None:
        """Do nothing: there is no state."""


@final
class StreamReplay:
    """Reads the noise of a step from a `NoiseStream`. To read an earlier step, it restarts from a saved state.

    A saved state only saves time. If it cannot be used, a warning is issued, and the noise is generated from an older
    state or from step 0.

    Args:
        directory: private directory for saved states.
        plan: plan of the run.
        leaves: names and shapes of the parameters to generate noise for; in a shared run, of this rank's parts of them.
        secret: secret of the run.
        run_id: id of the run.
        dtype: dtype of the noise.
    """

    def __init__(
        self, directory: Path, plan: Plan, leaves: dict[str, Leaf], secret: Secret, run_id: str, dtype: str
    ) -> None:
        self._directory, self._plan, self.leaves = directory, plan, leaves
        self._secret, self._run_id, self._dtype = secret, run_id, dtype
        self._stream: NoiseStream | None = None
        self._last: tuple[int, list[NDArray[Any]]] | None = None
        self._exclusive = Exclusive("Reading the noise of a step")
        self.read_steps: set[int] = set()

    @property
    def state_bytes(self) -> int:
        """Size of the noise state in bytes; 0 before the first step."""
        return 0 if self._stream is None else self._stream.state_bytes

    @without_locals
    def read(self, step: int) -> list[NDArray[Any]]:
        """Return the noise of `step`; the same values every time."""
        with self._exclusive:
            return [array.copy() for array in self._read(step)]

    @without_locals
    def read_shared(self, step: int) -> list[NDArray[Any]]:
        """Return the same arrays as `read`, without copying them. The caller must neither change nor keep them."""
        with self._exclusive:
            return self._read(step)

    def _read(self, step: int) -> list[NDArray[Any]]:
        if self._last is None or self._last[0] != step:
            self._last = None  # free these arrays before the next arrays are made
            self._last = (step, self._generate(step))
        self.read_steps.add(step)
        return self._last[1]

    @without_locals
    def start_ahead(self, step: int) -> None:
        """Start computing the noise of `step` on a background thread, if `step` follows the step that was read last.

        Call `read` to get the noise. The noise of at most one step is computed ahead, and it reuses the memory of the
        previous step's noise. Does nothing while another caller is reading noise or saving the state.
        """
        if not self._exclusive.try_enter():
            return
        try:
            if self._stream is not None and self._stream.step == step < self._stream.steps:
                self._last = None
                with suppress(Refused):  # raised after an interrupted step; `read` will report it
                    self._stream._start_ahead()
        finally:
            self._exclusive.leave()

    def close(self) -> None:
        """Stop computing ahead and end all threads. Errors in the background thread are ignored."""
        if self._stream is not None:
            self._stream._abandon()
            self._stream.close()

    def save(self) -> None:
        """Store the current state, and delete all saved states except the newest `KEPT_STATES`."""
        with self._exclusive:
            if self._stream is None:
                return
            self._stream.save(self._directory / f"noise-{self._stream.step:012d}.state")
            for old in saved_states(self._directory)[:-KEPT_STATES]:
                old.unlink()

    def _generate(self, step: int) -> list[NDArray[Any]]:
        """Generate the noise of `step`, and check that the stream advanced from `step` to `step + 1`."""
        stream = self._stream_at(step)
        before, noise, after = stream.step, stream.next(), stream.step
        if (before, after) != (step, step + 1):
            raise Refused(
                f"Reading the noise of step {step} must advance the noise stream by one step, but the stream moved "
                f"from step {before} to step {after}.",
                hint="close the run and open it again, which replays the noise",
            )
        return noise

    def _stream_at(self, step: int) -> NoiseStream:
        if self._stream is None or self._stream.step > step:
            self.close()
            self._stream = self._stream_before(step)
        while self._stream.step < step:
            self._stream.next()
        return self._stream

    def _stream_before(self, step: int) -> NoiseStream:
        """Return a stream at the newest usable saved state that is not after `step`, or at step 0."""
        for path in reversed(saved_states(self._directory)):
            if _step_of(path) > step:
                continue
            try:
                return self._load(path)
            except (Corrupted, InvalidArgument) as error:
                warnings.warn(f"{error.message} The noise is replayed without it.", RuntimeWarning, stacklevel=2)
                if isinstance(error, Corrupted):
                    path.unlink(missing_ok=True)  # unusable, and it would count towards KEPT_STATES
        return self._make()

    def _make(self) -> NoiseStream:
        return NoiseStream(self._plan, self.leaves, self._secret, self._run_id, dtype=self._dtype)

    def _load(self, path: Path) -> NoiseStream:
        stream = NoiseStream.load(path, self._plan, self._secret, leaves=self.leaves, dtype=self._dtype)
        if not stream._continues(self._plan, self._run_id):
            raise Corrupted(
                f"The noise state {path.name} belongs to another run, initial plan or noise source.",
                hint="delete the file; the noise can be replayed without it",
            )
        if stream.step != _step_of(path):
            raise Corrupted(
                f"The noise state {path.name} contains the state at step {stream.step}, contrary to its name.",
                hint="delete the file; the noise can be replayed without it",
            )
        return stream


def not_from_host(source: str) -> Refused:
    """Return the error to raise if host noise is requested in a run whose noise an integration generates."""
    return Refused(
        f"The noise of this run does not come from the host but from a different source: {source}.",
        hint="use the integration that the run was started with; it adds the noise itself",
    )


def saved_states(directory: Path) -> list[Path]:
    """Return the saved states in a directory, oldest first. Symbolic links and files with other names are ignored."""
    with os.scandir(directory) as entries:
        found = [Path(e.path) for e in entries if SAVED.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    return sorted(found, key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("noise-"))
