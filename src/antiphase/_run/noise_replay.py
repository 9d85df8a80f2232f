"""The noise of a run, readable at any step that was taken before: a stream that can be wound back."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, final

from numpy.typing import NDArray

from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._noise import NoiseStream
from antiphase._run.locking import Exclusive

KEPT = 2  # saved states: a crash while writing one leaves the other
SAVED = re.compile(r"noise-([0-9]{12,})\.state")


class NoiseTape(Protocol):
    """What a run reads its noise from."""

    read_steps: set[int]  # by this process; a step is committed only after its noise was read

    def read(self, step: int) -> list[Any]:
        """The noise of `step`; the same values however often it is read."""

    def save(self) -> None:
        """Store the state where it stands, if there is one to store."""


@final
class Elsewhere:
    """Stands for noise that an integration makes by itself: there is nothing to read from here."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.read_steps: set[int] = set()

    def read(self, step: int) -> NoReturn:
        """Refused: noise of the host would not belong to what was added before."""
        raise Refused(
            f"The noise of this run is not made by the host but by another source: {self._source}.",
            hint="resume the run with the integration that it was begun with",
        )

    def save(self) -> None:
        """Nothing is kept here."""


@final
class Tape:
    """Reads the noise of step t from a stream at t, winding back to a saved state, or to the start, where needed.

    A saved state is only a shortcut: where one cannot be used, the noise is replayed from an older one, or from the
    secret, with a warning.

    Args:
        directory: private; holds the saved states.
        make: a new stream at the first step.
        load: a stream from a saved state.
    """

    def __init__(self, directory: Path, make: Callable[[], NoiseStream], load: Callable[[Path], NoiseStream]) -> None:
        self._directory, self._make, self._load = directory, make, load
        self._stream: NoiseStream | None = None
        self._last: tuple[int, list[NDArray[Any]]] | None = None
        self._alone = Exclusive("Reading the noise of a step")
        self.read_steps: set[int] = set()

    def read(self, step: int) -> list[NDArray[Any]]:
        """The noise of `step`; the same arrays' values however often it is read."""
        with self._alone:
            if self._last is None or self._last[0] != step:
                self._last = (step, self._made(step))
            self.read_steps.add(step)
            return [array.copy() for array in self._last[1]]

    def save(self) -> None:
        """Store the state where the stream stands; the oldest states are dropped."""
        with self._alone:
            if self._stream is None:
                return
            self._stream.save(self._directory / f"noise-{self._stream.step:012d}.state")
            for old in saved_states(self._directory)[:-KEPT]:
                old.unlink()

    def _made(self, step: int) -> list[NDArray[Any]]:
        """The stream's next noise, if it is that of `step` and of no other."""
        stream = self._at(step)
        before, made, after = stream.step, stream.next(), stream.step
        if (before, after) != (step, step + 1):
            raise Refused(
                f"The noise of step {step} was asked for, and the stream went from step {before} to {after}.",
                hint="close the run and open it again: the noise is replayed",
            )
        return made

    def _at(self, step: int) -> NoiseStream:
        if self._stream is None or self._stream.step > step:
            self._stream = self._before(step)
        while self._stream.step < step:
            self._stream.next()
        return self._stream

    def _before(self, step: int) -> NoiseStream:
        """A stream at the last saved state before the step that can be used, or at the first step."""
        for path in reversed(saved_states(self._directory)):
            if _step_of(path) > step:
                continue
            try:
                return self._restored(path)
            except (Corrupted, InvalidArgument) as error:
                warnings.warn(f"{error.message} The noise is replayed without it.", RuntimeWarning, stacklevel=2)
                if isinstance(error, Corrupted):
                    path.unlink(missing_ok=True)  # never usable again, and it would count as one of those to keep
        return self._make()

    def _restored(self, path: Path) -> NoiseStream:
        stream = self._load(path)
        if stream.step != _step_of(path):
            raise Corrupted(
                f"The noise state {path.name} is that of step {stream.step}.", hint="remove it; it can be replayed"
            )
        return stream


def saved_states(directory: Path) -> list[Path]:
    """The saved states in a directory, oldest first; links and other names are left alone."""
    with os.scandir(directory) as entries:
        found = [Path(e.path) for e in entries if SAVED.fullmatch(e.name) and e.is_file(follow_symlinks=False)]
    return sorted(found, key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("noise-"))
