"""A run that several processes share: rank 0 keeps it, every rank makes its own part of the noise."""

from __future__ import annotations

import hashlib
import hmac
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from antiphase._durable import make_private_directory
from antiphase._errors import Corrupted, InvalidArgument, Refused
from antiphase._noise import NoiseStream, check_sizes
from antiphase._plan import Plan
from antiphase._run import (
    DIGEST_BYTES,
    HOST,
    PrivacyReport,
    Run,
    Tape,
    check_mark,
    digests_of,
    output_withdrawn,
    refuse_pickle,
    secret_of,
    take_noise_from,
)
from antiphase._samplers import Batch, Sampler
from antiphase._secret import Secret
from antiphase.torch._device import DeviceTape, check_device_noise
from antiphase.torch._pieces import Leaves
from antiphase.torch._world import World


@final
class SharedRun:
    """What a `Run` offers, on every rank of `world`.

    Nothing secret is sent: every rank has the secret and makes batches and its own noise from it. Rank 0 alone
    writes the ledger, so rank 0 alone reports and publishes.

    Args:
        plan, directory, examples, secret, dtype: as for `Run.open`. The directory is one that all ranks see; where
            they do not, each is given the same `secret`.
        whole: all leaves.
        own: the part of them that this rank makes noise for.
        world: the processes.
        device: a tensor of the device and dtype to make noise with, or None for the host's AES source.
    """

    def __init__(
        self,
        plan: Plan,
        directory: str | Path,
        whole: Leaves,
        own: Leaves,
        *,
        examples: int | None,
        secret: Secret | None,
        dtype: str,
        world: World,
        device: torch.Tensor | None,
    ) -> None:
        self.plan, self.world, self.examples = plan, world, examples
        self._directory, self._own, self._dtype = Path(directory).absolute(), own, dtype
        self._device = device
        self._check_noise()  # before anything is written
        self.run_id, self._digests = "", b""
        self._sampler: Sampler | None = None
        self._stream: NoiseStream | None = None
        self._run = self._open(whole, secret) if world.rank == 0 else None
        try:
            self._join(whole, secret)
        except BaseException:
            self.close()
            raise

    __reduce_ex__ = refuse_pickle

    @property
    def committed(self) -> int:
        """How many steps the ledger has."""
        return len(self._digests) // DIGEST_BYTES

    def branch(self, step: int) -> str:
        """A code of the outputs of the steps before `step`: another one where any of them was taken again."""
        return hashlib.sha256(self._digests[: step * DIGEST_BYTES]).hexdigest()

    def batch(self, step: int) -> Batch:
        """The whole batch of a step, the same on every rank."""
        if self._run is not None:
            return self._run.batch(step)
        if self._sampler is None:
            self._sampler = self._follow_batches()
        return self._sampler.batch(step)

    @property
    def state_bytes(self) -> int:
        """Memory of the state that this rank's noise goes on from, on the host; 0 before the first step."""
        return 0 if self._stream is None else self._stream.state_bytes

    def noise(self, step: int) -> list[torch.Tensor]:
        """The part of this rank of the step's noise for clipping norm 1, a flat tensor for each leaf."""
        read: list[Any] = self._tape.read(step) if self._run is None else self._run.noise(step)
        return [torch.as_tensor(part) for part in read]

    def commit(self, step: int, digest: bytes, check: Callable[[], None]) -> None:
        """As `Run.commit`, after `check` on rank 0; refused on every rank where rank 0 refuses it."""
        run, start, stop = self._run, step * DIGEST_BYTES, (step + 1) * DIGEST_BYTES

        def record() -> bytes:
            assert run is not None
            check()
            run.commit(step, digest)
            return digests_of(run)[start:stop]

        code = self.world.first_does(None if run is None else record)
        if self._digests[start:stop] != code:  # not a replay with the same output: what came after it is gone
            self._digests = self._digests[:start] + code

    def check_start(self, mark: bytes) -> None:
        """Refuse to take the first step again with other parameters than those that the run was begun with."""
        if self._run is not None:
            check_mark(self._run, 0, mark)

    def withdraw(self, step: int) -> None:
        """Record that the step's noisy output was dropped before it was committed."""
        if self._run is not None:
            output_withdrawn(self._run, step)

    def publish(self, label: str) -> None:
        """As `Run.publish`; the other ranks wait for rank 0."""
        run = self._run
        self.world.first_does(None if run is None else lambda: run.publish(label))

    def save(self) -> None:
        """Store this rank's noise state; on rank 0 also put the ledger on disk."""
        if self._run is not None:
            self._run.save()
        else:
            self._tape.save()

    def report(self) -> PrivacyReport:
        """As `Run.report`."""
        if self._run is None:
            raise Refused("The ledger is with rank 0.", hint="call report on rank 0 alone")
        return self._run.report()

    def close(self) -> None:
        """As `Run.close`."""
        if self._run is not None:
            self._run.close()

    def _join(self, whole: Leaves, secret: Secret | None) -> None:
        """Learn from rank 0 which run it is, and get ready to make this rank's noise."""
        self.run_id, self._digests, proof = self.world.from_first(self._introduction())
        shapes = [(name, leaf.global_shape) for name, leaf in whole.items()]
        self.world.check_same(
            (self.plan.fingerprint, self.examples, self._dtype, shapes),
            "plan, number of examples or model",
            "give every rank the same ones: noise and clipping of all are calibrated to one plan",
        )
        self._secret = secret_of(self._run) if self._run is not None else self._same_secret(secret, proof)
        self._tape, source = self._make_tape()
        if self._run is not None:
            # The run itself keeps the whole leaves, so that it can be resumed with another number of processes.
            take_noise_from(self._run, source, self._tape)

    def _check_noise(self) -> None:
        """Refuse a plan whose noise, times its clipping norm, is not right in this dtype; `Run.open` tries the host."""
        mechanism, dtype = self.plan.mechanism, np.dtype(self._dtype)
        if self._device is not None:
            check_device_noise(self.plan, self._device)
        else:
            check_sizes(mechanism.strategy, mechanism.noise_std, dtype, clip_norm=self.plan.problem.clip_norm)

    def _open(self, whole: Leaves, secret: Secret | None) -> Run:
        return Run.open(
            self.plan, self._directory, leaves=whole, examples=self.examples, secret=secret, dtype=self._dtype
        )

    def _introduction(self) -> tuple[str, bytes, bytes]:
        """What rank 0 tells the others: the run, its steps, and a proof of the secret that does not reveal it."""
        if self._run is None:
            return "", b"", b""
        proof = secret_of(self._run).derive("same secret", self._run.run_id)
        return self._run.run_id, digests_of(self._run), proof

    def _same_secret(self, secret: Secret | None, proof: bytes) -> Secret:
        own = Secret.load(self._directory / "private" / "secret") if secret is None else secret
        if not hmac.compare_digest(own.derive("same secret", self.run_id), proof):
            raise InvalidArgument(
                f"Rank {self.world.rank} has another secret than rank 0.", hint="give every rank the same secret"
            )
        return own

    def _follow_batches(self) -> Sampler:
        if self.examples is None:
            raise InvalidArgument(
                "The run was opened without the number of examples, so it has no batches.",
                hint="open it with examples=len(data_set)",
            )
        secret = self._secret.child("batches", self.run_id)
        return self.plan.mechanism.participation.sampler(self.examples, self.plan.steps, secret)

    def _make_tape(self) -> tuple[Tape | DeviceTape, str]:
        """The noise of this rank's part, and what makes it, which must be the same on every rank."""
        made = None
        if self._device is not None:
            made = DeviceTape(self.plan, self._secret, self.run_id, self._own, self._device)
        source = HOST if made is None else made.source
        self.world.check_same(source, "source of noise", "use one kind of device and one version of PyTorch")
        return made or Tape(self._states(), self._new_stream, self._stored_stream), source

    def _states(self) -> Path:
        """Where noise states are kept. Those of another way to cut the model are removed: they are replayed."""
        private = self._directory / "private"
        ending = f"of-{self.world.size}-{self.plan.fingerprint[:16]}"
        if self._run is not None:
            for other in private.glob("shard-*"):
                if not other.name.endswith(ending) and other.is_dir() and not other.is_symlink():
                    shutil.rmtree(other)
        self.world.from_first(None)
        directory = private / f"shard-{self.world.rank}-{ending}"
        make_private_directory(private)
        make_private_directory(directory)
        return directory

    def _new_stream(self) -> NoiseStream:
        self._stream = NoiseStream(self.plan, self._own, self._secret, self.run_id, dtype=self._dtype)
        return self._stream

    def _stored_stream(self, path: Path) -> NoiseStream:
        stream = NoiseStream.load(path, self.plan, self._secret, leaves=self._own, dtype=self._dtype)
        if stream.run_id != self.run_id:
            raise Corrupted(
                f"The noise state {path.name} belongs to another run.", hint="remove it; it can be replayed"
            )
        self._stream = stream
        return stream
