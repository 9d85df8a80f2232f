"""The run: secret, batches, noise and ledger in one directory."""

from __future__ import annotations

import hashlib
import hmac
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphase._durable import make_private_directory
from antiphase._errors import InvalidArgument, Refused
from antiphase._noise import Leaf
from antiphase._plan import Plan, require_plan
from antiphase._record import from_json
from antiphase._run.digests import DIGEST_BYTES
from antiphase._run.directory import Header
from antiphase._run.history import HOST, LINEAGE_BYTES, History, check_label
from antiphase._run.journal import Journal
from antiphase._run.locking import synchronized
from antiphase._run.noise_replay import ExternalNoise, NoiseReplay, StreamReplay
from antiphase._run.opening import OpenDirectory, new_header, open_directory
from antiphase._run.privacy_report import PrivacyReport, report
from antiphase._run.tail import Tail, tail_of
from antiphase._run.transport import SingleProcess, Transport
from antiphase._samplers import Batch, Sampler
from antiphase._secret import Secret, require_secret

Leaves = dict[str, Leaf]


class NamedNoiseReplay(NoiseReplay, Protocol):
    """Noise that an integration makes on a device.

    Args:
        source: what makes the noise, in words that change whenever its bits would.
    """

    @property
    def source(self) -> str:
        """What makes the noise."""


DeviceNoise = Callable[[Secret, str], NamedNoiseReplay]  # from the secret and the run id


def refuse_pickle(held: object, protocol: object) -> NoReturn:
    """Refuse to pickle or copy an object that holds a run; for its `__reduce_ex__`.

    pickle, copy and torch.save call it. A pickle would contain the noise, and a copy would repeat it.
    """
    raise Refused(
        f"A {type(held).__name__} in private training cannot be pickled or copied: the file would contain its secret, "
        "its noise or per-example gradients.",
        hint="save state_dict() instead; copy a model before it is made private",
    )


@final
class Run:
    """One private training run, created or resumed by `Run.open`.

    Each step: `batch(step)`, `noise(step)`, then `commit(step, digest)` with a digest of the step's output. Call
    `publish(label)` before you release anything that depends on the run.

    **Guarantee**: a step's batch and noise are functions of (secret, run id, step), so a replayed step repeats them
    exactly. A replay costs nothing if its output is unchanged. It also costs nothing if nothing that depends on the
    step was published, and neither the decision to replay nor the new output used the old output: restart from a
    checkpoint, not from what the failed attempt showed. After a publication, a replay with another output is refused.
    When `publish` has returned, its entry is on disk. After a write to the ledger has failed, or if the directory was
    moved, only `close` works until the run is opened again. A run can be used by several threads, but a directory only
    by one live process. A copy of a directory is the same run with the same noise; never use both.

    Use it as a context manager, or call `close`.
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
        self.plan, self.directory, self.run_id = plan, directory, header.run_id
        self._header, self._secret = header, secret
        self._journal, self._transport = journal, transport
        self._thread_lock = threading.RLock()
        self._sampler: Sampler | None = None
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
        dtype: DTypeLike = "float32",
    ) -> Run:
        """Create a run in an empty directory, or resume the run in it.

        A plan whose noise cannot be made correctly in `dtype` is refused before anything is written.

        Args:
            plan: what to run; to continue with more steps, the extended plan. Its guarantee is computed again, and a
                plan that claims a better guarantee than its mechanism has is refused.
            directory: run directory. It holds the secret and the noise state; store it apart from the model.
            leaves: shapes of the parameters, as for `NoiseStream`.
            examples: size of the data set; required if the guarantee relies on random batches.
            secret: None to generate one and store it in the directory. Pass one to store it elsewhere.
            dtype: dtype of the noise, float32 or float64.
        """
        given = new_header(require_plan("Run.open", plan), leaves, dtype, examples)
        return cls._from(open_directory(plan, directory, given, secret), SingleProcess())

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
    ) -> Run:
        """As `open`, for processes that share the run; see `antiphase._run.integration.open_shared`."""
        shapes = [(name, leaf.global_shape) for name, leaf in leaves.items()]
        transport.check_same(
            (plan.fingerprint, examples, dtype, shapes),
            "plan, number of examples or model",
            "give every rank the same: noise and clipping are calibrated to one plan",
        )
        opened: list[OpenDirectory] = []  # on rank 0

        def open_first() -> tuple[Header, History, bytes]:
            given = new_header(plan, leaves, dtype, examples)
            opened.append(open_directory(plan, directory, given, secret))
            header, own = opened[0].header, opened[0].secret
            return header, opened[0].journal.history, _proof(own, header.run_id)

        try:
            header, history, proof = transport.run_on_first(open_first)
            if opened:
                run = cls._from(opened[0], transport)
            else:
                path = Path(directory).absolute()
                own = _same_secret(secret, path, header.run_id, proof, transport.rank)
                run = cls(plan, path, header, own, Journal(history), transport)
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
    def steps(self) -> int:
        """Number of steps of the plan."""
        return self.plan.steps

    @property
    def committed(self) -> int:
        """Number of steps committed so far, which is also the next step to take."""
        return self._history.committed

    @property
    def published(self) -> int:
        """Number of steps that publications so far depend on. A training checkpoint must not be older than this."""
        return self._history.published

    def batch(self, step: int) -> Batch:
        """The examples of a step, drawn by the sampler that the plan's proof assumes."""
        self._journal.check_open()
        self._journal.check_not_failed()
        if self._sampler is None:
            self._sampler = self._header.sampler(self.plan, self.steps, self._secret)
        return self._sampler.batch(step)

    @synchronized
    def noise(self, step: int) -> list[NDArray[Any]]:
        """The noise of a step for clipping norm 1, in leaf order. A replayed step gets the same noise.

        Refused if an integration makes the noise of this run itself, on a device.
        """
        return self._replay.read(self._checked(step))

    @synchronized
    def commit(self, step: int, digest: bytes) -> None:
        """Record that a step is done.

        Committing an earlier step again is a replay. It costs nothing with the same digest; with another digest it is
        refused if something published depends on the step. If you read the noise of earlier steps again, commit them
        again before the next step.

        Args:
            step: the step.
            digest: 32 bytes that identify its output, such as `antiphase.digest(arrays)`.
        """
        self._commit(step, digest)

    def _commit(
        self, step: int, digest: bytes, lineage: bytes | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Commit a step on all ranks, after `check` on the rank that writes the ledger."""

        def record() -> None:
            check()
            self._record_commit(step, digest, lineage)

        self._write(record)
        self._replay.read_steps.discard(step)

    @synchronized
    def publish(self, label: str) -> None:
        """Record that results of the committed steps are published. When this returns, the entry is on disk.

        Call it before you release a checkpoint, a metric or anything else that depends on the committed steps.
        """
        self._write(lambda: self._record_publication(label))

    @synchronized
    def save(self) -> None:
        """Store the noise state, so that resuming from here does not generate the noise from the start."""
        self._journal.flush()
        self._replay.save()

    def report(self) -> PrivacyReport:
        """The guarantee of the steps that ran, computed from the ledger, next to what was planned.

        Epsilon accounts for the bounded range of the run's random draws. It is refused if delta is too small for that,
        which needs an epsilon above 700 (see `PrivacyReport.smallest_delta`). For noise made on a device, the report
        states the assumption that the draws are normal.
        """
        self._journal.check_not_failed()
        if not self._journal.is_writer:
            raise Refused("Only rank 0 has the ledger.", hint="call report on rank 0 only")
        return report(self.plan, self._history, self._secret, self.run_id, self._header.examples, self._tail)

    def close(self) -> None:
        """Write everything to disk and let other processes open the directory. The run cannot be used any more.

        After a failed write, nothing more is written; opening the run again reads what the ledger holds.
        """
        self._journal.check_open()
        with self._thread_lock:
            self._journal.check_open()
            self._journal.close()

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

    def _write(self, act: Callable[[], None]) -> None:
        """Call `act` on the rank that writes the ledger, and send the entries that it appended to the other ranks."""

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
                f"The 'digest' parameter of Run.commit must be {DIGEST_BYTES} bytes. Got {digest!r} instead.",
                hint="use antiphase.digest(arrays)",
            )
        # Plain digests of two outputs with the same noise would let a reader of the ledger test guesses; use a key.
        code = hmac.digest(self._secret.derive("output digest", self.run_id), bytes(digest), "sha256")
        meaning = self._history.check_commit(t, code)
        read_steps = self._replay.read_steps
        if meaning == "same":
            return
        if t not in read_steps:
            raise Refused(
                f"Step {t} cannot be committed: its noise has not been read since the run was opened.",
                hint="call noise(step) and add it to the step's output before you commit the step",
            )
        if meaning == "next":
            self._check_replays()
        if meaning == "rewind":
            self._journal.append({"kind": "rewind", "step": t})
            # Outputs with the noise of later steps were computed from the output that is withdrawn.
            read_steps.difference_update([later for later in read_steps if later > t])
        if self._header.examples is not None:
            self._record_batch(t)
        mark = {} if lineage is None else {"mark": self._keyed_lineage(lineage).hex()}
        self._journal.append({"kind": "commit", "step": t, "digest": code.hex(), **mark})

    def _record_publication(self, label: str) -> None:
        text = check_label(label)
        if any(step >= self.committed for step in self._replay.read_steps):
            raise Refused(
                f"Nothing can be published now: the noise of step {self.committed} was read, but it is not committed.",
                hint="commit the step first, so that the ledger covers what is published",
            )
        self._check_replays()
        self._journal.append({"kind": "publish", "label": text, "steps": self.committed})
        self._journal.flush()

    def _keyed_lineage(self, lineage: bytes) -> bytes:
        return hmac.digest(self._secret.derive("output mark", self.run_id), lineage, "sha256")[:LINEAGE_BYTES]

    def _check_replays(self) -> None:
        """Refuse to continue from replayed steps whose new outputs are unknown: they may differ from the old ones."""
        uncommitted = sorted(step for step in self._replay.read_steps if step < self.committed)
        if uncommitted:
            raise Refused(
                f"The noise of committed steps was read again, and they were not committed again: {uncommitted}.",
                hint="commit each of them with a digest of its output, or reopen the run and resume from a checkpoint",
            )

    def _record_batch(self, step: int, **more: Any) -> None:
        indices, mask = self.batch(step)
        used = np.ascontiguousarray(indices[mask], dtype="<i8")
        content = hashlib.sha256(used.tobytes()).hexdigest()
        entry = {"kind": "batch", "step": step, "size": int(used.size), "indices": content, **more}
        self._journal.append_private(entry)

    def _record_lost_batches(self) -> None:
        """Record the batches of committed steps again if a power loss took the last entries of the private ledger."""
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
        """Make only this rank's part of the noise from now on. The header still names the whole leaves.

        So the run can be resumed with another number of processes.
        """
        device = None if device_noise is None else device_noise(self._secret, self.run_id)
        source = HOST if device is None else device.source
        self._transport.check_same(source, "source of noise", "use the same kind of device and version of PyTorch")
        replay = device or self._stream_replay(self._shard_directory(), leaves)
        self._write(lambda: self._set_noise_source(source))
        self._replay = replay

    def _shard_directory(self) -> Path:
        """The directory of this rank's noise states. Those for another number of ranks or another plan are deleted."""
        private, ranks = self.directory / "private", self._transport
        suffix = f"of-{ranks.size}-{self.plan.fingerprint[:16]}"
        if self._journal.is_writer:
            for other in private.glob("shard-*"):
                if not other.name.endswith(suffix) and other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other)
        ranks.broadcast(None)  # wait until they are deleted
        directory = private / f"shard-{ranks.rank}-{suffix}"
        make_private_directory(private)
        make_private_directory(directory)
        return directory

    def _set_noise_source(self, source: str) -> None:
        """Record what makes the noise. Refused if the run was started with another source."""
        started = self._history.source
        if source == started:
            return
        if started != HOST or self.committed > 0 or self._replay.read_steps:
            raise Refused(
                f"The run was started with noise from another source: {started}. Got {source} instead.",
                hint="continue with the source, kind of device and version that it was started with, or start a new "
                "run",
            )
        self._journal.append({"kind": "source", "source": source})

    def _checked(self, step: int) -> int:
        """Return the step if it may be taken now: the next step, or an earlier one as a replay."""
        self._journal.check_open()
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


def _proof(secret: Secret, run_id: str) -> bytes:
    """A value that proves knowledge of the secret to whoever has it too, and tells others nothing about it."""
    return secret.derive("same secret", run_id)


def _same_secret(secret: Secret | None, directory: Path, run_id: str, proof: bytes, rank: int) -> Secret:
    """The secret of this rank, which must be that of rank 0."""
    own = Secret.load(directory / "private" / "secret") if secret is None else require_secret("Run.open", secret)
    if not hmac.compare_digest(_proof(own, run_id), proof):
        raise InvalidArgument(f"Rank {rank} has another secret than rank 0.", hint="give every rank the same secret")
    return own
