"""The `Run` class manages the secret, batches, noise and ledger of one training run in one directory."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphase._check import invalid, shown
from antiphase._durable import make_private_directory
from antiphase._errors import InvalidArgument, Refused
from antiphase._lattice import add_exactly
from antiphase._noise import Leaf
from antiphase._plan import Plan, require_plan
from antiphase._record import from_json
from antiphase._run.digests import DIGEST_BYTES, KEYED, Arrays, KeyedDigest, digest, keyed_output
from antiphase._run.directory import Header
from antiphase._run.history import HOST, LINEAGE_BYTES, History, check_label
from antiphase._run.journal import Journal
from antiphase._run.locking import synchronized
from antiphase._run.noise_replay import ExternalNoise, NoiseReplay, StreamReplay, not_from_host
from antiphase._run.opening import OpenDirectory, new_header, open_directory
from antiphase._run.privacy_report import PrivacyReport, report
from antiphase._run.tail import Tail, tail_of
from antiphase._run.transport import SingleProcess, Transport
from antiphase._samplers import Batch, Sampler
from antiphase._secret import Secret, require_secret
from antiphase._traceback import without_locals

Leaves = dict[str, Leaf]


class NamedNoiseReplay(NoiseReplay, Protocol):
    """Noise that an integration generates on a device.

    Args:
        source: description of the noise generator. It must change whenever the generated bits would change.
    """

    @property
    def source(self) -> str:
        """Description of the noise generator."""


DeviceNoise = Callable[[Secret, str], NamedNoiseReplay]  # arguments: secret, run id


def refuse_pickle(held: object, protocol: object) -> NoReturn:
    """Raise `Refused`. Classes that hold a run use this function as `__reduce_ex__`, so they cannot be pickled.

    `pickle`, `copy` and `torch.save` call `__reduce_ex__`. A pickle would contain the noise, and a copy would generate
    the same noise again.
    """
    raise Refused(
        f"A {type(held).__name__} in private training cannot be pickled or copied: the file would contain its secret, "
        "its noise or per-example gradients.",
        hint="save state_dict() instead; copy a model before you make it private",
    )


class _RemovedMethod(Refused, AttributeError):
    """Raised for a removed method. `hasattr` and `getattr` with a default treat it as a missing attribute."""


@final
class Run:
    """One private training run, created or resumed by `Run.open`.

    In each step, call `batch(step)` and `gradient_noise(step)`, then `commit(step, digest)` with a digest of the step's
    output. Call `publish(label)` before you release anything that depends on the run.

    **Guarantee**: a step's batch and noise depend only on (secret, run id, step), so a replayed step repeats them
    exactly. A replay with the same output has no privacy cost. A replay with a different output has no privacy cost
    under two conditions. First, nothing that depends on the step was published. Second, neither the decision to replay
    nor the new output depended on the old output. So restart from a checkpoint that `confirms` accepts, and do not use
    anything that you learned from the failed attempt. If something that depends on the step was published, committing
    a different output raises `Refused`.

    When `publish` returns, its ledger entry is on disk. If a write to the ledger fails or the directory is moved, only
    `close` works until you open the run again. Several threads can use a run, but only one live process can use its
    directory. A copy of the directory is the same run with the same noise, so never use both the copy and the original.

    Use the run as a context manager, or call `close`.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        header: Header,
        secret: Secret,
        journal: Journal,
        transport: Transport,
    ) -> None:
        self._plan, self._directory = plan, directory
        self._header, self._secret = header, secret
        self._journal, self._transport = journal, transport
        self._thread_lock = threading.RLock()
        self._sampler: Sampler | None = None
        self._drawn_steps: set[int] = set()  # steps whose batch was drawn and that have not been committed since
        self._keyed_digest: KeyedDigest | None = None
        self._background_noise = False
        self._calls = 0  # number of nested synchronized calls in the thread that holds the lock
        self._replay = self._default_replay()
        self._record_lost_batches()

    @classmethod
    def open(
        cls,
        plan: Plan,
        directory: str | Path,
        *,
        leaves: Any,
        examples: int | None = None,
        secret: Secret | None = None,
        dtype: DTypeLike | None = None,
        background_noise: bool = False,
    ) -> Run:
        """Create a run in an empty directory, or resume the run in it.

        Raises an error, before anything is written, if the plan's noise cannot be generated correctly in `dtype`.

        Args:
            plan: plan to run. To continue a run with more steps, pass the extended plan. `open` computes the guarantee
                again, and refuses a plan that claims a better guarantee than its mechanism has.
            directory: run directory. It holds the secret and the noise state; store it apart from the model.
            leaves: shapes of the parameters, as for `NoiseStream`.
            examples: size of the data set; required if the guarantee relies on random batches.
            secret: if None, a new run generates a secret and stores it in the directory. To store the secret elsewhere,
                create it yourself and pass it.
            dtype: dtype of the noise, float32 or float64. None means float32, or int64 if the plan has a lattice (noise
                in exact integers).
            background_noise: if true, a call of `batch` for the next step also starts to compute the noise of that
                step, on a background thread, so that `gradient_noise` need not wait for it. This does not change the
                noise, and it needs no extra memory.
        """
        given = new_header(require_plan("Run.open", plan), leaves, dtype, examples)
        run = cls._from(open_directory(plan, directory, given, secret), SingleProcess())
        run._background_noise = bool(background_noise)
        return run

    @classmethod
    def _open_shared(
        cls,
        plan: Plan,
        directory: str | Path,
        transport: Transport,
        leaves: Leaves,
        own_leaves: Leaves,
        device_noise: DeviceNoise | None,
        examples: int | None,
        secret: Secret | None,
        dtype: str,
        background_noise: bool,
        keep_source: bool,
    ) -> Run:
        """Open a run that several processes share; see `antiphase._run.integration.open_shared`."""
        shapes = [(name, leaf.global_shape) for name, leaf in leaves.items()]
        transport.check_same(
            (plan.fingerprint, examples, dtype, shapes),
            "plan, number of examples or model",
            "give every rank the same plan, examples and model: noise and clipping are calibrated to one plan",
        )
        opened: list[OpenDirectory] = []  # filled on rank 0 only

        def open_first() -> tuple[Header, History, bytes]:
            given = new_header(plan, leaves, dtype, examples)
            opened.append(open_directory(plan, directory, given, secret))
            header, own = opened[0].header, opened[0].secret
            return header, opened[0].journal.history, _proof(own, header.run_id)

        try:
            header, history, proof = transport.run_on_first(open_first)

            def open_own() -> Run:
                if opened:
                    return cls._from(opened[0], transport)
                path = Path(directory).absolute()
                own = _same_secret(secret, path, header.run_id, proof, transport.rank)
                return cls(plan, path, header, own, Journal(history), transport)

            run = transport.run_on_all(open_own)
            run._background_noise = background_noise
            if not keep_source or run._history.source == HOST:
                run._make_noise_of(own_leaves, device_noise)
            return run
        except BaseException:
            for mine in opened:
                mine.journal.close()
            raise

    @classmethod
    def _from(cls, opened: OpenDirectory, transport: Transport) -> Run:
        try:
            return cls(opened.plan, opened.path, opened.header, opened.secret, opened.journal, transport)
        except BaseException:
            opened.journal.release()
            raise

    @property
    def plan(self) -> Plan:
        """The plan of the run. To take more steps, open the run again with an extended plan."""
        return self._plan

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self._directory

    @property
    def run_id(self) -> str:
        """Identifier of the run. The noise and the batches are derived from the secret and this identifier."""
        return self._header.run_id

    @property
    def steps(self) -> int:
        """Number of steps of the plan."""
        return self.plan.steps

    @property
    def committed(self) -> int:
        """Number of steps committed so far. Steps are counted from 0, so this is also the next step to take."""
        return self._history.committed

    @property
    def published(self) -> int:
        """Number of steps that the publications depend on. Do not resume from a checkpoint with fewer steps."""
        return self._history.published

    @without_locals
    def batch(self, step: int) -> Batch:
        """Return the examples of a step, drawn by the sampler that the plan's privacy proof assumes.

        If the run was opened with `examples`, a step can be committed only after its batch was drawn.
        """
        found = self._draw_batch(step)
        self._start_noise(step)
        return found

    def _draw_batch(self, step: int) -> Batch:
        """Return the batch of a step, and remember that it was drawn."""
        self._journal.check_open()
        self._journal.check_not_failed()
        found = self._batch(step)
        self._drawn_steps.add(int(step))
        return found

    def _batch(self, step: int) -> Batch:
        if self._sampler is None:
            self._sampler = self._header.sampler(self.plan, self.steps, self._secret)
        return self._sampler.batch(step)

    @without_locals
    def gradient_noise(self, step: int) -> list[NDArray[Any]]:
        """Return the noise to add to the sum of the clipped gradients of this step, one array for each leaf, in order.

        The noise is already multiplied by `plan.problem.clip_norm`. You must clip each example's contribution to this
        norm. A replayed step gets the same noise. Raises `Refused` if an integration generates the noise of this run.

        For a plan with a lattice, the arrays have dtype int64 and are in units of the grid (see docs/lattice-noise.md).
        Add them to sums of contributions from `plan.mechanism.lattice.contribution`, or let `release` add them.
        """
        if not isinstance(self._replay, StreamReplay):  # do not return device noise: it is flat and may be a view
            self._checked(step)
            raise not_from_host(self._history.source)
        noise, clip_norm = self._unit_noise(step), self.plan.problem.clip_norm
        if clip_norm != 1.0 and self.plan.mechanism.lattice is None:
            for array in noise:
                np.multiply(array, clip_norm, out=array, dtype=np.float64, casting="same_kind")
        return noise

    @without_locals
    def release(self, step: int, sums: Iterable[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        """Return the sums of the contributions plus the step's noise, in units of the grid, for a plan with a lattice.

        Convert the result with `plan.mechanism.lattice.value`. You may release the whole result: the guarantee covers
        every bit. A sum that does not fit into 64 bits wraps around. Sums of fewer than 2^14 examples always fit.

        Args:
            step: step whose noise to add, counting from 0.
            sums: exact sums from `Lattice.clipped_sum`, one array of int64 for each leaf, in order.
        """
        if self.plan.mechanism.lattice is None:
            raise Refused(
                "The plan of this run has no lattice.", hint="plan with lattice=True, or add gradient_noise(step)"
            )
        if not isinstance(sums, Iterable):
            raise invalid("Run.release", "sums", "a list of arrays", type(sums).__name__, "one array for each leaf")
        given = [array if isinstance(array, np.ndarray) else np.asarray(array) for array in sums]
        noise = self.gradient_noise(step)
        if len(given) != len(noise):
            got = f"{len(given)} arrays"
            raise invalid("Run.release", "sums", f"{len(noise)} arrays, one for each leaf", got, "in leaf order")
        add_exactly(noise, given)
        return noise

    @synchronized
    def _unit_noise(self, step: int) -> list[Any]:
        """Return the noise of a step for clipping norm 1, one array for each leaf, in order."""
        return self._replay.read(self._checked(step))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name == "noise":
                raise _RemovedMethod(
                    "Run.noise was removed: it returned noise for clipping norm 1.",
                    hint="use gradient_noise(step), which is already multiplied by the clipping norm of the problem; "
                    "do not multiply it again",
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def digest(self, step: int, arrays: Arrays) -> bytes:
        """Return a keyed digest of a step's output, for `commit`. It is several times faster than `antiphase.digest`.

        The digest has 32 bytes. It depends on the names, shapes, dtypes and contents of the arrays, on the run's secret
        and on the step. Without the secret, it reveals nothing about the arrays. For runs that began before keyed
        digests existed, this method returns `antiphase.digest(arrays)`, so that replays are recognised. Use the same
        digest function for all steps of a run.

        Args:
            step: step whose output is digested, counting from 0.
            arrays: a list of numeric arrays or tensors, or a mapping from names to them, such as the model after the
                step.
        """
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < self.steps:
            raise invalid("Run.digest", "step", f"in 0, ..., {self.steps - 1}", step, "steps are counted from 0")
        if self._history.digest_kind != KEYED:
            return digest(arrays)
        if self._keyed_digest is None:
            self._keyed_digest = KeyedDigest(self._secret, self.run_id)
        return self._keyed_digest(int(step), arrays)

    @without_locals
    def confirms(self, step: int, arrays: Arrays) -> bool:
        """Return whether `step` was last committed with a digest of these arrays.

        Before you continue from a stored model, use this method to check that the model is the output of the previous
        step. If your program was killed after it stored the model but before it committed the step, this method returns
        False. If you continued from such a model, the noise of that step would be added to two different sums.

        Args:
            step: the last step that the arrays depend on.
            arrays: the arrays that `Run.digest` or `antiphase.digest` was called with.
        """
        self._journal.check_open()
        given = list(arrays) if isinstance(arrays, Iterator) else arrays  # a generator can be read only once
        codes = [self._keyed_output(found) for found in (self.digest(step, given), digest(given))]
        stored = self._history.digest(step)
        return step < self.committed and any(hmac.compare_digest(stored, code) for code in codes)

    @without_locals
    @synchronized
    def commit(self, step: int, digest: bytes) -> None:
        """Record that a step is done. Store the model after this call, not before: see `confirms`.

        The noise of the step must have been read since the run was opened. If the run was opened with `examples`, the
        batch of the step must also have been drawn.

        Committing an earlier step again is a replay. A replay with the same digest has no privacy cost. A replay with a
        different digest raises `Refused` if something that depends on the step was published. Otherwise, it replaces
        the step and all later steps, with a `RuntimeWarning`. If you read the noise of earlier steps again, commit
        those steps again before the next step.

        Args:
            step: step to commit, counting from 0.
            digest: 32 bytes that identify the step's output, from `run.digest(step, arrays)` or
                `antiphase.digest(arrays)`. Use the same function for all steps.
        """
        self._commit(step, digest)

    def _commit(
        self, step: int, digest: bytes, lineage: bytes | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Commit a step on all ranks, after calling `check` on rank 0."""

        def record() -> None:
            check()
            self._record_commit(step, digest, lineage)

        self._write(record)
        self._replay.read_steps.discard(step)
        self._drawn_steps.discard(step)

    @synchronized
    def publish(self, label: str) -> None:
        """Record that results of the committed steps are published. When this returns, the entry is on disk.

        Call it before you release a checkpoint, a metric or anything else that depends on the committed steps.
        """
        self._write(lambda: self._record_publication(label))

    @synchronized
    def save(self) -> None:
        """Store the noise state, so that a resumed run continues from it instead of replaying all noise from step 0."""
        self._journal.flush()
        self._replay.save()

    def report(self) -> PrivacyReport:
        """Return the guarantee of the steps that ran, computed from the ledger, together with the planned guarantee.

        The noise that a run draws is bounded, unlike normal noise. Both guarantees include this difference in delta.
        Raises `Refused` if delta is too small for that, which can happen only for epsilon above 700 (see
        `PrivacyReport.smallest_delta`). For noise generated on a device, the report states the assumption that the
        draws are normal.

        Raises `Refused` if the run is closed, since another process may have continued it. The command
        `antiphase report` reads a closed run.
        """
        self._journal.check_open()
        self._journal.check_not_failed()
        if not self._journal.is_writer:
            raise Refused("Only rank 0 has the ledger.", hint="call report on rank 0 only")
        with self._thread_lock:  # the whole report describes one state, even if another thread commits meanwhile
            history, tail = self._history.copy(), self._tail
        return report(self.plan, history, self._secret, self.run_id, self._header.examples, tail)

    @without_locals
    def close(self) -> None:
        """Write all entries to disk and unlock the directory. The run cannot be used afterwards.

        After a failed write, `close` writes nothing. Open the run again to read the current contents of the ledger.
        """
        self._journal.check_open()
        # After an interrupt, `_calls` may be above 0 although no call is in progress. Then no thread holds the lock.
        is_held_here = self._thread_lock._is_owned()  # type: ignore[attr-defined]
        with self._thread_lock:
            self._journal.check_open()
            if self._calls and is_held_here:
                raise Refused(
                    "A signal handler cannot close the run while another call of the run is in progress.",
                    hint="in a signal handler only set a flag, and close the run between two steps",
                )
            try:
                self._journal.close()
            finally:
                if isinstance(self._replay, StreamReplay):
                    self._replay.close()

    __reduce_ex__ = refuse_pickle

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _history(self) -> History:
        return self._journal.history

    @property
    def _leaves(self) -> Leaves:
        return {name: from_json(leaf) for name, leaf in self._header.leaves}

    @property
    def _tail(self) -> Tail:
        return tail_of(self.plan, self._leaves, self._header.dtype, self._history.source)

    def _start_noise(self, step: int) -> None:
        """Start computing the noise of `step` in the background, if `step` is the next step to read. Never blocks."""
        if not (self._background_noise and isinstance(self._replay, StreamReplay)):
            return
        if step <= self.committed and self._thread_lock.acquire(blocking=False):
            try:
                self._replay.start_ahead(step)
            finally:
                self._thread_lock.release()

    def _write(self, act: Callable[[], None]) -> None:
        """Call `act` on rank 0, and send the ledger entries that it appends to all other ranks."""

        def entries_of() -> list[dict[str, Any]]:
            act()
            return self._journal.take_unsent()

        entries = self._transport.run_on_first(entries_of)
        if not self._journal.is_writer:
            self._journal.follow(entries)

    def _record_commit(self, step: int, digest: bytes, lineage: bytes | None) -> None:
        t = self._checked(step)
        if not isinstance(digest, (bytes, bytearray)) or len(digest) != DIGEST_BYTES:
            raise InvalidArgument(
                f"The 'digest' parameter of Run.commit must be {DIGEST_BYTES} bytes. Got {_kind(digest)} instead.",
                hint="use run.digest(step, arrays)",
            )
        code = self._keyed_output(digest)
        meaning = self._history.check_commit(t, code)
        read_steps = self._replay.read_steps
        if meaning == "same":
            return
        if t not in read_steps:
            raise Refused(
                f"Step {t} cannot be committed: its noise has not been read since the run was opened.",
                hint="call gradient_noise(step) and add the noise to the step's output before you commit the step",
            )
        if self._header.examples is not None and t not in self._drawn_steps:
            raise Refused(
                f"Step {t} cannot be committed: its batch has not been drawn since the run was opened, so its output "
                "cannot come from that batch.",
                hint="take the examples of every step from batch(step); if a loader of your own chooses them, omit the "
                "argument examples of Run.open, which is possible only for a participation without random batches",
            )
        if meaning == "next":
            self._check_replays()
        if meaning == "rewind":
            warnings.warn(
                _replaces(t), RuntimeWarning, stacklevel=2
            )  # before any write, as a warning filter may raise an error
            self._journal.append({"kind": "rewind", "step": t})
            # Forget that the noise of later steps was read: their outputs depend on the replaced output of step t.
            read_steps.difference_update([later for later in read_steps if later > t])
        if self._header.examples is not None:
            self._record_batch(t)
        mark = {} if lineage is None else {"mark": self._keyed_lineage(lineage).hex()}
        self._journal.append({"kind": "commit", "step": t, "digest": code.hex(), **mark})

    def _record_publication(self, label: str) -> None:
        text = check_label(label)
        if any(step >= self.committed for step in self._replay.read_steps):
            raise Refused(
                f"Nothing can be published now: the noise of step {self.committed} was read, but the step is not "
                "committed.",
                hint="commit the step first, so that the ledger covers what is published",
            )
        self._check_replays()
        self._journal.append({"kind": "publish", "label": text, "steps": self.committed})
        self._journal.flush()

    def _keyed_output(self, digest: bytes) -> bytes:
        return keyed_output(self._secret, self.run_id, digest)

    def _keyed_lineage(self, lineage: bytes) -> bytes:
        return hmac.digest(self._secret.derive("output mark", self.run_id), lineage, "sha256")[:LINEAGE_BYTES]

    def _check_replays(self) -> None:
        """Raise `Refused` if replayed steps were not committed again, as their outputs may differ from the old ones."""
        uncommitted = sorted(step for step in self._replay.read_steps if step < self.committed)
        if uncommitted:
            raise Refused(
                f"The noise of these committed steps was read again, but they were not committed again: {uncommitted}.",
                hint="commit each of them with a digest of its output, or reopen the run and resume from a checkpoint",
            )

    def _record_batch(self, step: int, **more: Any) -> None:
        indices, mask = self._batch(step)
        used = np.ascontiguousarray(indices[mask], dtype="<i8")
        content = hashlib.sha256(used.tobytes()).hexdigest()
        entry = {"kind": "batch", "step": step, "size": int(used.size), "indices": content, **more}
        self._journal.append_private(entry)

    @without_locals
    def _record_lost_batches(self) -> None:
        """Record the batches of committed steps again if a crash lost the last entries of the private ledger."""
        if self._journal.is_writer and self._header.examples is not None and self.committed:
            recorded = {entry["step"] for entry in self._journal.private_entries()}
            for step in range(self.committed):
                if step not in recorded:
                    self._record_batch(step, entered="after a crash")

    def _default_replay(self) -> NoiseReplay:
        if self._history.source != HOST:
            return ExternalNoise(self._history.source)
        return self._stream_replay(self.directory / "private", self._leaves)

    def _stream_replay(self, directory: Path, leaves: Leaves) -> StreamReplay:
        return StreamReplay(directory, self.plan, leaves, self._secret, self.run_id, self._header.dtype)

    def _make_noise_of(self, leaves: Leaves, device_noise: DeviceNoise | None) -> None:
        """Generate only this rank's part of the noise from now on.

        The header still has the full shapes, so the run can be resumed with a different number of processes.
        """
        device = None if device_noise is None else device_noise(self._secret, self.run_id)
        source = HOST if device is None else device.source
        self._transport.check_same(
            source, "noise source", "use the same kind of device and the same version of PyTorch on every rank"
        )
        replay = device or self._stream_replay(self._shard_directory(), leaves)
        self._write(lambda: self._set_noise_source(source))
        self._replay = replay

    def _shard_directory(self) -> Path:
        """Create and return the directory of this rank's noise states.

        Directories for a different number of ranks or a different plan are deleted.
        """
        private, ranks = self.directory / "private", self._transport
        suffix = f"of-{ranks.size}-{self.plan.fingerprint[:16]}"
        if self._journal.is_writer:
            for other in private.glob("shard-*"):
                if not other.name.endswith(suffix) and other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other)
        ranks.broadcast(None)  # wait until rank 0 has deleted the old directories
        directory = private / f"shard-{ranks.rank}-{suffix}"
        make_private_directory(private)
        make_private_directory(directory)
        return directory

    def _set_noise_source(self, source: str) -> None:
        """Record the noise source in the ledger. Raises `Refused` if the run was started with a different source."""
        started = self._history.source
        if source == started:
            return
        if started != HOST or self.committed > 0 or self._replay.read_steps:
            raise Refused(
                f"The run was started with noise from a different source: {started}. Got {source} instead.",
                hint="continue with the noise source, kind of device and version that the run was started with, or "
                "start a new run",
            )
        self._journal.append({"kind": "source", "source": source})

    def _checked(self, step: int) -> int:
        """Return the step as an int. Raises `Refused` unless it is the next step or an earlier step (a replay)."""
        self._journal.check_open()
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step <= self.committed:
            raise Refused(
                f"Step {shown(step)} cannot be taken: the next step is {self.committed}.",
                hint="take and commit every step once, in order, counting from 0",
            )
        if step >= self.steps:
            raise Refused(
                f"The run has ended: all {self.steps} steps of the plan are committed.",
                hint="extend the plan with Plan.extend, or start a new run in a new directory; antiphase.compose "
                "computes the guarantee of both",
            )
        return int(step)


def _replaces(step: int) -> str:
    return (
        f"Step {step} was committed before, and its output is now replaced by another one with the same noise. Use "
        "and release nothing that depends on the old output. To train again, for example with a different learning "
        "rate, start a run in a new directory: anyone who sees two models with the same noise can cancel the noise by "
        "subtracting one model from the other."
    )


def _kind(given: object) -> str:
    """Describe a value passed as digest by its type and length. The value may be noise, so it is not shown."""
    return f"{type(given).__name__} of length {len(given)}" if isinstance(given, Sized) else type(given).__name__


def _proof(secret: Secret, run_id: str) -> bytes:
    """Return bytes derived from the secret. Ranks compare these bytes to check that all have the same secret.

    The bytes reveal nothing about the secret itself.
    """
    return secret.derive("same secret", run_id)


def _same_secret(secret: Secret | None, directory: Path, run_id: str, proof: bytes, rank: int) -> Secret:
    """Return the secret of this rank. Raises `InvalidArgument` if it differs from rank 0's secret."""
    own = Secret.load(directory / "private" / "secret") if secret is None else require_secret("Run.open", secret)
    if not hmac.compare_digest(_proof(own, run_id), proof):
        raise InvalidArgument(
            f"The secret of rank {rank} differs from the secret of rank 0.", hint="give every rank the same secret"
        )
    return own
