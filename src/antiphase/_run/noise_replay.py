"""The noise of a run at any step taken so far: a noise stream that can go back."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any, NoReturn, Protocol, final

from numpy.typing import NDArray

from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._noise import Leaf, NoiseStream
from antiphase._plan import Plan
from antiphase._run.locking import Exclusive
from antiphase._secret import Secret

KEPT_STATES = 2  # if a crash damages the newest one, the other is left
SAVED = re.compile(r"noise-([0-9]{12,})\.state")


class NoiseReplay(Protocol):
    """What a run reads its noise from.

    Args:
        read_steps: steps whose noise this process has read and not yet committed. Only these can be committed.
    """

    read_steps: set[int]

    def read(self, step: int) -> list[Any]:
        """Return the noise of `step`; the same values every time."""

    def save(self) -> None:
        """Store the current noise state, if there is one."""


@final
class ExternalNoise:
    """Stands in for noise that an integration makes itself, so that none can be read from the run."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.read_steps: set[int] = set()

    def read(self, step: int) -> NoReturn:
        """Refuse: noise of the host would not be correlated with what was added before."""
        raise Refused(
            f"The noise of this run does not come from the host but from another source: {self._source}.",
            hint="resume the run with the integration that it was started with",
        )

    def save(self) -> None:
        """Do nothing: there is no state."""


@final
class StreamReplay:
    """Reads the noise of a step from a `NoiseStream`, which restarts from a saved state to go back.

    Saved states only save time. If one cannot be used, the noise is generated from an older one, or from the secret,
    with a warning.

    Args:
        directory: private directory for saved states.
        plan: plan of the run.
        leaves: leaves, or parts of leaves, to make noise for.
        secret: secret of the run.
        run_id: id of the run.
        dtype: dtype of the noise.
    """

    def __init__(
        self, directory: Path, plan: Plan, leaves: dict[str, Leaf], secret: Secret, run_id: str, dtype: str
    ) -> None:
        self._directory, self._plan, self._leaves = directory, plan, leaves
        self._secret, self._run_id, self._dtype = secret, run_id, dtype
        self._stream: NoiseStream | None = None
        self._last: tuple[int, list[NDArray[Any]]] | None = None
        self._exclusive = Exclusive("Reading the noise of a step")
        self.read_steps: set[int] = set()

    @property
    def state_bytes(self) -> int:
        """Memory of the noise state; 0 before the first step."""
        return 0 if self._stream is None else self._stream.state_bytes

    def read(self, step: int) -> list[NDArray[Any]]:
        """Return the noise of `step`; the same values every time."""
        with self._exclusive:
            if self._last is None or self._last[0] != step:
                self._last = (step, self._generate(step))
            self.read_steps.add(step)
            return [array.copy() for array in self._last[1]]

    def save(self) -> None:
        """Store the current state and delete all but the newest states."""
        with self._exclusive:
            if self._stream is None:
                return
            self._stream.save(self._directory / f"noise-{self._stream.step:012d}.state")
            for old in saved_states(self._directory)[:-KEPT_STATES]:
                old.unlink()

    def _generate(self, step: int) -> list[NDArray[Any]]:
        """Take the next noise of the stream and check that it is that of `step`."""
        stream = self._stream_at(step)
        before, noise, after = stream.step, stream.next(), stream.step
        if (before, after) != (step, step + 1):
            raise Refused(
                f"Reading the noise of step {step} moved the stream from step {before} to {after}.",
                hint="close the run and open it again, which replays the noise",
            )
        return noise

    def _stream_at(self, step: int) -> NoiseStream:
        if self._stream is None or self._stream.step > step:
            self._stream = self._stream_before(step)
        while self._stream.step < step:
            self._stream.next()
        return self._stream

    def _stream_before(self, step: int) -> NoiseStream:
        """A stream at the newest usable saved state that is not after `step`, or at step 0."""
        for path in reversed(saved_states(self._directory)):
            if _step_of(path) > step:
                continue
            try:
                return self._load(path)
            except (Corrupted, InvalidArgument) as error:
                warnings.warn(f"{error.message} The noise is replayed without it.", RuntimeWarning, stacklevel=2)
                if isinstance(error, Corrupted):
                    path.unlink(missing_ok=True)  # it can never be used, and would count as one of those to keep
        return self._make()

    def _make(self) -> NoiseStream:
        return NoiseStream(self._plan, self._leaves, self._secret, self._run_id, dtype=self._dtype)

    def _load(self, path: Path) -> NoiseStream:
        stream = NoiseStream.load(path, self._plan, self._secret, leaves=self._leaves, dtype=self._dtype)
        if stream.run_id != self._run_id:
            raise Corrupted(
                f"The noise state {path.name} belongs to another run.", hint="delete it; it can be replayed"
            )
        if stream.step != _step_of(path):
            raise Corrupted(
                f"The noise state {path.name} is that of step {stream.step}.", hint="delete it; it can be replayed"
            )
        return stream


def saved_states(directory: Path) -> list[Path]:
    """The saved states in a directory, oldest first. Symbolic links and files with other names are ignored."""
    with os.scandir(directory) as entries:
        found = [Path(e.path) for e in entries if SAVED.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    return sorted(found, key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("noise-"))
