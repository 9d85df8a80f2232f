"""A run: secret, batches, noise and ledger in one directory, moving together."""

from __future__ import annotations

import hashlib
import hmac
import math
import threading
import unicodedata
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphase import _check
from antiphase._durable import DirectoryLock
from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._escape import reorders
from antiphase._ledger import Ledger
from antiphase._noise import NoiseStream, check_host_noise, check_last_step, named
from antiphase._participation import Deterministic
from antiphase._plan import Plan, require_plan, stored_fingerprint, with_derived_guarantee
from antiphase._record import from_json, to_json
from antiphase._run.digests import DIGEST_BYTES, digest
from antiphase._run.directory import (
    DTYPES,
    FORMAT,
    Header,
    check_layout,
    check_no_run,
    clear_temporary,
    clear_unfinished,
    fresh_run_id,
    made_directory,
    own_secret,
    read_header,
    write_header,
)
from antiphase._run.history import HOST, MARK_BYTES, History, Publication, replayed
from antiphase._run.integration import (
    check_mark,
    check_step,
    commit_marked,
    covered,
    digests_of,
    dtype_of,
    examples_of,
    is_open,
    leaves_of,
    noise_was_read,
    one_write,
    output_withdrawn,
    secret_of,
    take_noise_from,
)
from antiphase._run.locking import Exclusive, ToTheEnd, in_turn
from antiphase._run.noise_replay import Elsewhere, NoiseTape, Tape, saved_states
from antiphase._run.pickling import refuse_pickle
from antiphase._run.privacy_report import NO_BATCHES, PrivacyReport, report
from antiphase._run.reading import RunRecord, read_run
from antiphase._run.tail import tail_of
from antiphase._samplers import Batch, Sampler
from antiphase._secret import Secret, require_secret

__all__ = [
    "DIGEST_BYTES",
    "HOST",
    "NO_BATCHES",
    "Exclusive",
    "PrivacyReport",
    "Publication",
    "Run",
    "RunRecord",
    "Tape",
    "check_mark",
    "check_step",
    "commit_marked",
    "covered",
    "digest",
    "digests_of",
    "dtype_of",
    "examples_of",
    "is_open",
    "leaves_of",
    "noise_was_read",
    "one_write",
    "output_withdrawn",
    "read_run",
    "refuse_pickle",
    "secret_of",
    "take_noise_from",
]

LONGEST_LABEL = 200
NO_TEXT = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of surrogate pairs, separators of lines


@final
class Run:
    """One private training run, made or resumed by `Run.open`.

    Each step: `batch(step)`, `noise(step)`, then `commit(step, digest)` with a digest of the step's output.
    `publish(label)` before anything leaves the building.

    **Guarantee**: a step's batch and noise are functions of (secret, run id, step), so that a replayed step
    repeats them exactly. A replay is free if its output is unchanged, or if nothing that depends on the step was
    published and neither the decision to repeat it nor the new output made use of the withdrawn one: start again from
    a checkpoint, not from what the failed attempt showed. A changed replay after a publication is refused. What
    `publish` has returned for is on disk. Once a write to the ledger has failed, or the directory was moved, everything
    but `close` is refused until the run is opened again. Threads take turns. Two live processes never hold one
    directory; a copy of a directory is the same run, with the same noise, and must not be used beside it.

    Use it as a context manager, or call `close`.
    """

    def __init__(
        self, plan: Plan, directory: Path, header: Header, secret: Secret, lock: DirectoryLock, *, create: bool
    ) -> None:
        self.plan, self.directory, self.run_id = plan, directory, header.run_id
        self._header, self._secret, self._lock = header, secret, lock
        self._turn, self._to_the_end = threading.RLock(), ToTheEnd()
        self._ledger = Ledger(directory, secret, header.run_id, create=create)
        self._history = History()
        if create:
            self._enter({"kind": "open", **self._identity()})
            self._keep()
        else:
            self._read_ledger()
        self._tape = self._new_tape()
        self._sampler: Sampler | None = None
        self._enter_lost_batches()

    @classmethod
    def open(
        cls,
        plan: Plan,
        directory: str | Path,
        *,
        leaves: Any,
        examples: int | None = None,
        secret: Secret | None = None,
        dtype: DTypeLike = "float32",
    ) -> Run:
        """Make a run in an empty directory, or resume the one that is there.

        Refused, before anything is written, where the noise made in `dtype` would not be that of the plan.

        Args:
            plan: what to run; to go on with more steps, the extended plan. Its guarantee is derived again, and a plan
                that states a better one than its mechanism has is refused.
            directory: kept apart from the model: it holds the secret and the noise state.
            leaves: shapes of the parameters, as for `NoiseStream`.
            examples: size of the data set; needed where the guarantee rests on random batches.
            secret: None keeps one in the directory; give one to keep it elsewhere.
            dtype: float32 or float64, of the noise.
        """
        given = _header(require_plan("Run.open", plan), leaves, dtype, examples)
        plan = with_derived_guarantee(plan)
        path = made_directory(directory)
        lock = DirectoryLock(path)
        try:
            check_layout(path)
            stored = read_header(path)
            if stored is None:
                _check_examples(plan, examples)
                check_no_run(path)
            else:
                stored.check(given)
            own = own_secret(path, create=stored is None) if secret is None else require_secret("Run.open", secret)
            if stored is None:
                clear_unfinished(path)
                plan.save(path / "plan.json")
            run = cls(plan, path, stored or given, own, lock, create=stored is None)
            if stored is None:
                write_header(path, given)
            clear_temporary(path)
            return run
        except BaseException:
            lock.release()
            raise

    @property
    def steps(self) -> int:
        """Steps of the plan."""
        return self.plan.steps

    @property
    def committed(self) -> int:
        """Steps committed so far, and so the next step to take."""
        return self._history.committed

    @property
    def published(self) -> int:
        """Steps that publications so far depend on; a training checkpoint must not be older than this."""
        return self._history.published

    def batch(self, step: int) -> Batch:
        """The examples of a step, from the sampler that the plan's proof assumes."""
        self._lock.check()
        self._check_not_failed()
        if self._sampler is None:
            self._sampler = self._batches_for(self.steps)
        return self._sampler.batch(step)

    @in_turn
    def noise(self, step: int) -> list[NDArray[Any]]:
        """The step's noise for clipping norm 1, in leaf order; the same for a replayed step.

        Refused where an integration makes the run's noise by itself, on a device.
        """
        return self._tape.read(self._checked(step))

    @in_turn
    def commit(self, step: int, digest: bytes) -> None:
        """Say that a step is done; `digest` is 32 bytes over its output, such as `antiphase.digest(arrays)`.

        A step committed before is a replay: free with the same digest, refused with another one if something
        published depends on it. Steps whose noise was read again must be committed again before the next one.
        """
        self._commit(step, digest)

    def _commit(self, step: int, digest: bytes, mark: str | None = None) -> None:
        t = self._checked(step)
        if not isinstance(digest, (bytes, bytearray)) or len(digest) != DIGEST_BYTES:
            raise InvalidArgument(
                f"The 'digest' parameter of Run.commit must be {DIGEST_BYTES} bytes. Got {digest!r} instead.",
                hint="use antiphase.digest(arrays)",
            )
        # Digests of two outputs with one noise would let a reader of the ledger test guesses: keep them keyed.
        code = hmac.digest(self._secret.derive("output digest", self.run_id), bytes(digest), "sha256")
        meaning = self._history.check_commit(t, code)
        if meaning == "same":
            self._tape.read_steps.discard(t)
            return
        if t not in self._tape.read_steps:
            raise Refused(
                f"Step {t} cannot be committed: its noise has not been read since the run was opened.",
                hint="call noise(step) and add it to the step's output before committing it",
            )
        if meaning == "next":
            self._check_replays()
        if meaning == "rewind":
            self._enter({"kind": "rewind", "step": t})
            # What was made with the noise of later steps came from the output that is withdrawn.
            self._tape.read_steps.difference_update([later for later in self._tape.read_steps if later > t])
        if self._header.examples is not None:
            self._enter_batch(t)
        self._enter({"kind": "commit", "step": t, "digest": code.hex(), **({} if mark is None else {"mark": mark})})
        self._tape.read_steps.discard(t)

    @in_turn
    def publish(self, label: str) -> None:
        """Record that what the committed steps gave leaves the building; returns when the record is on disk.

        Call it before releasing a checkpoint, a metric or anything else that depends on the committed steps.
        """
        self._lock.check()
        text = _check_label(label)
        if any(step >= self.committed for step in self._tape.read_steps):
            raise Refused(
                f"Nothing can be published now: the noise of step {self.committed} was read, but it is not committed.",
                hint="commit the step first, so that what is published is covered by what is recorded",
            )
        self._check_replays()
        self._enter({"kind": "publish", "label": text, "steps": self.committed})
        self._keep()

    @in_turn
    def save(self) -> None:
        """Store the noise state, so that resuming here need not generate the noise from the start."""
        self._lock.check()
        self._keep()
        self._tape.save()

    def report(self) -> PrivacyReport:
        """The guarantee of what ran, derived from the ledger, beside what was planned.

        Epsilon is stated for the run's own noise, whose draws have an end. Refused where delta does not cover that: an
        epsilon beyond 700, depending on delta (see `PrivacyReport.smallest_delta`). Of noise from a device it is
        assumed that the draws are normal, and the report says so.
        """
        self._check_not_failed()
        tail = tail_of(self.plan, self._leaves, self._header.dtype, self._history.source)
        return report(self.plan, self._history, self._secret, self.run_id, self._header.examples, tail)

    def close(self) -> None:
        """Put everything on disk and let other processes in; the run cannot be used any more.

        After a write that failed nothing more is written: what the ledger has is known when the run is opened again.
        """
        self._lock.check()
        with self._turn:
            self._lock.check()
            try:
                self._ledger.close()
            finally:
                self._lock.release()

    __reduce_ex__ = refuse_pickle

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_usable(self) -> None:
        """Refuse to go on in a directory that was moved, in the middle of a write, and after one that failed."""
        self._to_the_end.check()
        self._lock.check_in_place()

    def _check_not_failed(self) -> None:
        """For what may be called while another thread writes."""
        if self._to_the_end.failed:
            self._to_the_end.check()

    def _keyed_mark(self, mark: bytes) -> bytes:
        return hmac.digest(self._secret.derive("output mark", self.run_id), mark, "sha256")[:MARK_BYTES]

    def _check_replays(self) -> None:
        """Refuse to go on from steps taken again whose new outputs are not known: they may differ from the old."""
        open_again = sorted(step for step in self._tape.read_steps if step < self.committed)
        if open_again:
            raise Refused(
                f"The noise of committed steps was read again, and they were not committed again: {open_again}.",
                hint="commit each of them with a digest of its output, or reopen the run and go on from a checkpoint",
            )

    @property
    def details_recorded(self) -> bool:
        """Whether the ledger vouches for the plan's error, candidates and notes; older ledgers do not know them.

        A plan that was made again by a script that runs again has the same fingerprint, but its candidates took other
        times to find.
        """
        return self._history.details == self.plan.details

    @property
    def details_edited(self) -> bool:
        """Whether the ledger knows other details than the plan has."""
        return self._history.details not in (None, self.plan.details)

    def _identity(self) -> dict[str, Any]:
        """What an entry says of plan and header; the ledger authenticates it, the files beside it are compared."""
        return {
            "steps": self.steps,
            "plan": self.plan.fingerprint,
            "details": self.plan.details,
            "header": self._header.fingerprint,
        }

    def _enter(self, entry: dict[str, Any]) -> None:
        self._history.check(entry)
        with self._to_the_end:
            self._ledger.public.append(entry)
            self._history.apply(entry)

    def _keep(self) -> None:
        with self._to_the_end:
            self._ledger.keep()

    def _enter_batch(self, step: int, **more: Any) -> None:
        indices, mask = self.batch(step)
        used = np.ascontiguousarray(indices[mask], dtype="<i8")
        content = hashlib.sha256(used.tobytes()).hexdigest()
        entry = {"kind": "batch", "step": step, "size": int(used.size), "indices": content, **more}
        with self._to_the_end:
            self._ledger.private.append(entry)

    def _enter_lost_batches(self) -> None:
        """Enter the batches of committed steps again where a power loss took the private ledger's last entries."""
        if self._header.examples is not None and self.committed:
            recorded = {entry["step"] for entry in self._ledger.private.entries()}
            for step in range(self.committed):
                if step not in recorded:
                    self._enter_batch(step, entered="after a crash")

    def _read_ledger(self) -> None:
        self._history, last = replayed(self._ledger.public.entries())
        if last.get("header") != self._identity()["header"]:
            raise Corrupted(
                "The header run.json is not the one the ledger was begun with.", hint="restore run.json from a copy"
            )
        if last["plan"] != self.plan.fingerprint:
            self._extend(last)
        elif stored_fingerprint(self.directory / "plan.json") != self.plan.fingerprint:
            self.plan.save(self.directory / "plan.json")  # a crash came between the ledger's entry and the file

    def _extend(self, last: dict[str, Any]) -> None:
        """Go on with a longer plan, which must be the extension of the one that the ledger names."""
        before = Plan._load(self.directory / "plan.json", self.plan.deviation)
        if before.fingerprint != last["plan"]:
            raise Corrupted(
                "The plan.json is not the plan of this run.",
                hint="if it was being extended when it ended, start again with the extended plan; else restore a copy",
            )
        if self.steps <= before.steps or before.extend(self.steps).fingerprint != self.plan.fingerprint:
            raise InvalidArgument(
                f"The run has a plan of {before.steps} steps already, and the one given does not extend it.",
                hint="resume with the run's own plan, or with plan.extend(steps) of that plan",
            )
        check_last_step(self.plan.mechanism.strategy, before.mechanism.strategy, self.committed)
        if self._header.examples is not None and not self._batches_for(before.steps).extendable:
            raise Refused(
                "The batches of this participation depend on the number of steps, so the run cannot be extended.",
                hint="start a new run and compose the two",
            )
        for state in saved_states(self.directory / "private"):
            state.unlink()  # they belong to the shorter plan; the noise is replayed from its key
        self._enter({"kind": "extend", **self._identity()})
        self._keep()
        self.plan.save(self.directory / "plan.json")

    def _new_tape(self) -> NoiseTape:
        if self._history.source != HOST:
            return Elsewhere(self._history.source)
        return Tape(self.directory / "private", self._new_stream, self._stored_stream)

    def _new_stream(self) -> NoiseStream:
        return NoiseStream(self.plan, self._leaves, self._secret, self.run_id, dtype=self._header.dtype)

    def _stored_stream(self, path: Path) -> NoiseStream:
        stream = NoiseStream.load(path, self.plan, self._secret, leaves=self._leaves, dtype=self._header.dtype)
        if stream.run_id != self.run_id:
            raise Corrupted(
                f"The noise state {path.name} belongs to another run.", hint="remove it; it can be replayed"
            )
        return stream

    @property
    def _leaves(self) -> dict[str, Any]:
        return {name: from_json(leaf) for name, leaf in self._header.leaves}

    def _checked(self, step: int) -> int:
        self._lock.check()
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step <= self.committed:
            raise Refused(
                f"Step {step} cannot be taken: the next step is {self.committed}.",
                hint="take and commit every step once, in order, counting from 0",
            )
        if step >= self.steps:
            raise Refused(
                f"The run has ended: all {self.steps} steps of the plan are committed.",
                hint="extend the plan with Plan.extend, or start a new run and compose the two",
            )
        return int(step)

    def _batches_for(self, steps: int) -> Sampler:
        if self._header.examples is None:
            raise InvalidArgument(
                "The run was opened without the number of examples, so it has no batches.",
                hint="open it with examples=len(data_set)",
            )
        secret = self._secret.child("batches", self.run_id)
        return self.plan.mechanism.participation.sampler(self._header.examples, steps, secret)


def _check_label(label: object) -> str:
    """A label as the ledger and reports can hold it: one line of text of bounded length."""
    text = _check.text("Run.publish", "label", str(label), "a few words that say what is published")
    if reorders(text):
        hint = "remove the controls of writing direction, such as U+202E"
        raise _check.invalid("Run.publish", "label", "text that is read in the order it is written", text, hint)
    if len(text) > LONGEST_LABEL or any(unicodedata.category(character) in NO_TEXT for character in text):
        raise _check.invalid(
            "Run.publish",
            "label",
            f"one line of at most {LONGEST_LABEL} characters",
            f"{text[:40]}..." if len(text) > LONGEST_LABEL else text,
            "name what is published, such as 'checkpoint 12'; keep details elsewhere",
        )
    return text


def _check_examples(plan: Plan, examples: int | None) -> None:
    """A new run has the examples that its problem names, also where the guarantee does not rest on their number."""
    if examples is not None and plan.problem.examples not in (None, examples):
        raise InvalidArgument(
            f"The plan's problem has {plan.problem.examples} examples. Got examples={examples} instead.",
            hint="make a plan for the number of examples there are",
        )


def _header(plan: Plan, leaves: Any, dtype: DTypeLike, examples: int | None) -> Header:
    """The header of a new run, every part checked before anything is written."""
    mechanism = plan.mechanism
    if examples is not None:
        examples = _check.positive_integer("Run.open", "examples", examples)
    elif not isinstance(mechanism.participation, Deterministic):
        raise InvalidArgument(
            f"The guarantee rests on batches drawn by {type(mechanism.participation).__name__}, by the run itself.",
            hint="open it with examples=len(data_set) and take every batch from run.batch(step)",
        )
    if mechanism.examples is not None and examples != mechanism.examples:
        raise InvalidArgument(
            f"The plan accounts for {mechanism.examples} examples. Got examples={examples} instead.",
            hint="make a plan for the number of examples there are",
        )
    regions = named(leaves)
    if sum(math.prod(leaf.global_shape) for leaf in regions.values()) == 0:
        raise _check.invalid(
            "Run.open",
            "leaves",
            "the shapes of at least one parameter",
            f"{len(regions)} leaves without an entry",
            "an exhausted generator gives none; pass a list, such as [p.shape for p in parameters]",
        )
    described = [[name, to_json(leaf)] for name, leaf in regions.items()]
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = _check.shown(dtype)
    if name not in DTYPES:
        raise _check.invalid("Run.open", "dtype", "float32 or float64", name, "float32 noise serves bfloat16 gradients")
    check_host_noise(mechanism, name)
    return Header(FORMAT, fresh_run_id(), plan.root or plan.fingerprint, described, name, examples)
