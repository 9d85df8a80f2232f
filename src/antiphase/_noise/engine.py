"""The engine of a noise stream, which computes each step's noise with leaves, threads and a correlator."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import this_process
from antiphase._errors import Refused
from antiphase._noise.choose import choose
from antiphase._noise.correlator import Noise, Part
from antiphase._noise.host_check import checked
from antiphase._noise.origin import MechanismLike, Origin
from antiphase._noise.source import leaf_keys, source_maker
from antiphase._noise.state import Settings
from antiphase._noise.team import Team, thread_count
from antiphase._noise.worker import Layout, Worker
from antiphase._secret import Secret

Consume = Callable[[Part, Noise], None]


@final
class Engine:
    """Computes the noise of one step after another, part by part."""

    def __init__(
        self, origin: Origin, settings: Settings, secret: Secret, threads: int | None, file: Path | None
    ) -> None:
        mechanism, dtype = origin.mechanism, settings.dtype
        labels = (settings.source, settings.run_id, origin.root, dtype.name)
        make_source = source_maker(settings.source, leaf_keys(secret, labels, settings.leaves))
        self.layout = layout = Layout(settings.leaves)
        made = checked(mechanism, dtype, settings.lookahead, settings.regenerate)
        self.exponent = made.exponent
        self.correlator = choose(
            made.strategy.recursion(),
            made.noise_std,
            layout.entries,
            dtype,
            lookahead=settings.lookahead,
            regenerate=settings.regenerate,
            file=file,
        )
        self.team = Team(thread_count(threads), lambda: Worker(layout, make_source(), dtype))
        self.step = 0
        self._dtype = dtype
        self._is_whole = True
        self._process = this_process()
        self._lock = threading.Lock()
        self._parts = layout.parts(self.correlator.part)

    def extend(self, mechanism: MechanismLike) -> None:
        """Continue with more steps of the same C."""
        made = checked(mechanism, self._dtype, None, False)
        with self.exclusive():
            self.correlator.extend(made.strategy.recursion())

    def replay(self, step: int) -> None:
        """Recompute the state as it is before `step`."""
        self.step = self.correlator.replay_from(step)
        while self.step < step:
            self.advance(lambda part, noise: None)
        self.step = step

    def advance(self, consume: Consume, into: Noise | None = None) -> None:
        """Compute the step's noise and pass each part to `consume`, on any thread.

        If `into` is given, the noise is written there.
        """
        with self.exclusive():
            self._advance(consume, into)

    def _advance(self, consume: Consume, into: Noise | None) -> None:
        correlator, dtype = self.correlator, self._dtype
        if self.step >= correlator.recursion.steps:
            raise Refused(
                f"The stream has no steps left: all {correlator.recursion.steps} steps of its plan are used.",
                hint="extend it with Plan.extend and NoiseStream.extend if the strategy allows it; otherwise plan a "
                "new run",
            )

        def make(worker: Worker, part: Part) -> None:
            out = worker.scratch.array("out", (part.size,), dtype) if into is None else into[part.start : part.stop]
            correlator.make(part, worker.white(part), worker.scratch, out)
            consume(part, out)

        self._is_whole = False
        correlator.begin(self.step)
        self.team.run(make, self._parts)
        correlator.end()
        self.step += 1
        self._is_whole = True

    def white(self, row: int) -> Noise:
        """Return a row of z, all leaves concatenated."""
        flat = np.empty(self.layout.entries, dtype=self._dtype)
        with self.exclusive():
            self.team.run(lambda worker, part: worker.white(part)(row, flat[part.start : part.stop]), self._parts)
        return flat

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Raise `Refused` in a second thread: concurrent steps would return the same noise or corrupt the state."""
        if not self._lock.acquire(blocking=False):
            raise Refused("The stream is in use by another thread.", hint="use a stream from only one thread at a time")
        try:
            self.check_whole()
            yield
        finally:
            self._lock.release()

    def check_whole(self) -> None:
        """Raise `Refused` after an interrupted step, and in a forked process, which would return the same noise."""
        if not self._is_whole:
            raise Refused(
                f"Step {self.step} is still running, or was interrupted after updating only part of the state.",
                hint="after an interruption, load the last saved state, or replay with start_step",
            )
        if this_process() != self._process:
            raise Refused(
                "A stream cannot be used in a fork of the process that created it: both would add the same noise.",
                hint="create each worker's stream in that worker, with the regions of its own leaves",
            )

    @property
    def saved_state(self) -> NDArray[Any]:
        """State to save in a file; empty if the state is replayed instead."""
        state = self.correlator.state
        return state[:0] if self.correlator.is_replayed else state

    def resume(self, step: int, made: int) -> None:
        """Continue at `step` with the state that was saved there."""
        if self.correlator.is_replayed:
            self.replay(step)
        else:
            self.correlator.made, self.step = made, step

    def split(self, flat: Noise) -> list[NDArray[Any]]:
        """Return one array for each leaf."""
        pairs = zip(self.layout.leaves, self.layout.starts, strict=True)
        return [flat[start : start + math.prod(leaf.shape)].reshape(leaf.shape) for leaf, start in pairs]
