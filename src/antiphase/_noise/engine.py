"""The engine of a noise stream, which computes each step's noise on several threads with a correlator.

A leaf is one array of the model. A part is a range of entries of the noise vector. A correlator computes the noise of
each step, part by part, from white noise z and stored state.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._durable import this_process
from antiphase._errors import Refused
from antiphase._noise.choose import choose
from antiphase._noise.correlator import Noise, Part
from antiphase._noise.exact_gaussian import ExactDraws
from antiphase._noise.host_check import checked
from antiphase._noise.lattice import check_lattice, integer_correlator, lattice_of
from antiphase._noise.normals import Normals
from antiphase._noise.origin import MechanismLike, Origin
from antiphase._noise.source import leaf_keys, source_maker
from antiphase._noise.state import Settings
from antiphase._noise.team import Started, Team, thread_count
from antiphase._noise.worker import Layout, Worker
from antiphase._secret import Secret

Consume = Callable[[Part, Noise], None]


@final
@dataclass
class Ahead:
    """The noise of the next step, computed before it is requested.

    Args:
        noise: noise of all leaves. It is complete when `work` is finished.
        work: the work that the background thread has started; None after it has been finished.
    """

    noise: Noise = field(repr=False)
    work: Started | None = None


@final
class Engine:
    """Computes the noise of each step in order. Each step is split into parts, which can run on several threads."""

    def __init__(
        self, origin: Origin, settings: Settings, secret: Secret, threads: int | None, file: Path | None
    ) -> None:
        mechanism, dtype = origin.mechanism, settings.dtype
        labels = (settings.source, settings.run_id, origin.root, dtype.name)
        make_source = source_maker(settings.source, leaf_keys(secret, labels, settings.leaves))
        self.layout = layout = Layout(settings.leaves)
        lattice = lattice_of(mechanism)
        if lattice is None:
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
            self.team = Team(thread_count(threads), lambda: Worker(layout, Normals(make_source(), dtype)))
        else:
            check_lattice(mechanism, settings.leaves)
            sigma, self.exponent = lattice.sigma(mechanism.noise_std), 0
            self.correlator = integer_correlator(mechanism.strategy, lattice, layout.entries)
            self.team = Team(thread_count(threads), lambda: Worker(layout, ExactDraws(make_source(), sigma)))
        self.step = 0
        self._dtype, self._leaves = dtype, settings.leaves
        self._is_whole = True
        self._process = this_process()
        self._ahead: Ahead | None = None
        self._lock = threading.Lock()
        self._parts = layout.parts(self.correlator.part)

    def extend(self, mechanism: MechanismLike) -> None:
        """Continue with more steps of the same strategy."""
        if lattice_of(mechanism) is None:
            longer = checked(mechanism, self._dtype, None, False).strategy
        else:
            check_lattice(mechanism, self._leaves)
            longer = mechanism.strategy
        with self.exclusive():
            if self._ahead is not None:  # the noise of this step can be different in a longer tree
                raise Refused(
                    f"The stream cannot be extended now: the noise of step {self.step} has been computed already.",
                    hint="take the noise of this step first, then extend the stream",
                )
            self.correlator.extend(longer.recursion())

    def replay(self, step: int) -> None:
        """Recompute the state before `step`, and move to `step`."""
        self.step = self.correlator.replay_from(step)
        while self.step < step:
            self.advance(lambda part, noise: None)
        self.step = step

    def advance(self, consume: Consume, into: Noise | None = None) -> None:
        """Compute the step's noise, and call `consume(part, noise)` for each part, possibly on several threads.

        If `into` is given, the noise of all parts is also written to this array.
        """
        with self.exclusive():
            if self._ahead is not None:
                self._replace(self._taken(), consume, into)
            else:
                self._advance(consume, into)

    def take(self) -> Noise:
        """Return the step's noise as one new array. Computes the noise unless it was computed ahead."""
        with self.exclusive():
            if self._ahead is not None:
                return self._taken()
            flat = np.empty(self.layout.entries, dtype=self._dtype)
            self._advance(lambda part, noise: None, flat)
            return flat

    def start_ahead(self) -> None:
        """Start computing the next step's noise on a background thread.

        Does nothing if no step is left, or if the computation has already started. The stream does not advance, and no
        noise is released. A later `take` or `advance` helps to compute the remaining parts and waits for the result.
        """
        with self.exclusive():
            if self._ahead is not None or self.step >= self.correlator.recursion.steps:
                return
            try:
                flat = np.empty(self.layout.entries, dtype=self._dtype)
            except MemoryError:
                return  # if memory is still short later, `take` raises the error
            self._is_whole = False  # remains False if this is interrupted, because the thread may have started
            self.correlator.begin(self.step)
            self._ahead = Ahead(flat, self.team.start(self._maker(lambda part, noise: None, flat), self._parts))
            self._is_whole = True

    def finish_ahead(self) -> Noise | None:
        """Wait for noise that is computed ahead, and return it without advancing; None if no noise is computed ahead.

        The caller must be inside `exclusive`.
        """
        ahead = self._ahead
        if ahead is None:
            return None
        if ahead.work is not None:
            self._is_whole = False
            ahead.work.finish()
            self.correlator.end()
            ahead.work = None
            self._is_whole = True
        return ahead.noise

    def abandon(self) -> None:
        """Stop computing ahead. If work was in progress, its noise is lost and the engine cannot be used again."""
        ahead = self._ahead
        if ahead is not None and ahead.work is not None and this_process() == self._process:
            self._is_whole = False
            ahead.work.abandon()

    def _taken(self) -> Noise:
        noise = self.finish_ahead()
        assert noise is not None
        self._is_whole = False
        self._ahead = None
        self.step += 1
        self._is_whole = True
        return noise

    def _replace(self, noise: Noise, consume: Consume, into: Noise | None) -> None:
        """Pass noise that was computed ahead to `consume` and `into`, as `_advance` would."""
        if into is not None:
            into[:] = noise
        self.team.run(lambda worker, part: consume(part, noise[part.start : part.stop]), self._parts)

    def _maker(self, consume: Consume, into: Noise | None) -> Callable[[Worker, Part], None]:
        correlator, dtype = self.correlator, self._dtype

        def make(worker: Worker, part: Part) -> None:
            out = worker.scratch.array("out", (part.size,), dtype) if into is None else into[part.start : part.stop]
            correlator.make(part, worker.white(part), worker.scratch, out)
            consume(part, out)

        return make

    def _advance(self, consume: Consume, into: Noise | None) -> None:
        correlator = self.correlator
        if self.step >= correlator.recursion.steps:
            raise Refused(
                f"The stream has no steps left: all {correlator.recursion.steps} steps of its plan are used.",
                hint="extend the plan with Plan.extend and the stream with NoiseStream.extend, if the strategy allows "
                "it; otherwise plan a new run",
            )

        self._is_whole = False
        correlator.begin(self.step)
        self.team.run(self._maker(consume, into), self._parts)
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
        """Hold the engine's lock in a `with` block. Raises `Refused` if another thread holds it.

        Without the lock, concurrent steps could return the same noise twice or corrupt the state.
        """
        if not self._lock.acquire(blocking=False):
            raise Refused("The stream is in use by another thread.", hint="use a stream from only one thread at a time")
        try:
            self.check_whole()
            yield
        finally:
            self._lock.release()

    def check_whole(self) -> None:
        """Raise `Refused` after an interrupted step, and in a forked process, which would repeat the noise."""
        if not self._is_whole:
            raise Refused(
                f"Step {self.step} is still running, or was interrupted after updating only part of the state.",
                hint="after an interruption, load the last saved state, or create the stream again with start_step",
            )
        if this_process() != self._process:
            raise Refused(
                "A stream cannot be used in a fork of the process that created it, because both processes would add "
                "the same noise.",
                hint="create each worker's stream in that worker, with the regions of its own leaves",
            )

    @property
    def saved_state(self) -> NDArray[Any]:
        """The state to save in a file. It is empty if `resume` recomputes the state instead of reading it."""
        state = self.correlator.state
        return state[:0] if self.correlator.is_replayed else state

    def resume(self, step: int, made: int, ahead: Noise | None = None) -> None:
        """Continue at `step` with the saved state, and with the noise of this step if it was computed ahead.

        Args:
            step: next step to release.
            made: number of steps that the correlator had computed when the state was saved.
            ahead: noise of `step`, if it was computed ahead.
        """
        next_step = step if ahead is None else step + 1  # the next step that the correlator computes
        if self.correlator.is_replayed:
            self.replay(next_step)
        else:
            self.correlator.made = made
        self.step, self._ahead = step, None if ahead is None else Ahead(ahead)

    def split(self, flat: Noise) -> list[NDArray[Any]]:
        """Return one array for each leaf."""
        pairs = zip(self.layout.leaves, self.layout.starts, strict=True)
        return [flat[start : start + math.prod(leaf.shape)].reshape(leaf.shape) for leaf, start in pairs]
