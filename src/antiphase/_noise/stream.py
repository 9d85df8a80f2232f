"""The noise stream: one correlated noise vector a step, the same bits however it is cut, threaded or resumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from antiphase import _check
from antiphase._errors import AntiphaseError, InvalidArgument, Refused
from antiphase._noise.correlator import Noise, Part
from antiphase._noise.engine import Engine
from antiphase._noise.leaves import Leaf, Leaves, named
from antiphase._noise.origin import Origin, check_extends, check_last_step, origin_of
from antiphase._noise.source import SourceName
from antiphase._noise.state import (
    Header,
    Settings,
    check_fits,
    checked_dtype,
    checked_settings,
    read_state,
    write_state,
)
from antiphase._noise.worker import Layout
from antiphase._secret import Secret, require_secret


@final
class NoiseStream:
    """noise_std (N z)_t for t = 0, 1, ...: the noise for a step's sum of clipped gradients, per unit clipping norm.

    z is addressed by (row, leaf name, flat index in the whole leaf) under keys from (secret, run id, plan, dtype), so
    the stream is a function of these. Sharding, `threads`, `lookahead`, `regenerate`, `file`, saving and replaying
    cannot change a bit of it, and each shard holds only its share of the state. (Where N comes from dense linear
    algebra, for C that is not lower triangular, its last bits depend on the machine and its number of threads.)

    **Guarantee**: the noise of all steps together is noise_std N z for one white Gaussian z, up to rounding to
    `dtype` and tails beyond 53 standard deviations, which `Run.report` covers; no part of z is used twice; after the
    last step `next` raises. The privacy of the mechanism is for real numbers: that draws and sums are rounded to
    floating point, and draws beyond seven standard deviations more coarsely than others, is not accounted for.
    A mechanism whose noise `dtype` cannot hold, or only with rounding errors above 1/256 of z, is refused.

    Whoever knows the secret or the state of the stream can subtract the noise. Keep both apart from the model.

    Args:
        plan: a Plan or a Mechanism.
        leaves: shapes, in order, or {name: Leaf(global_shape, region)} for a shard.
        secret: from `Secret.generate()`; `Secret.insecure(42)` in tests.
        run_id: names one training run. Two runs of one plan, or of plans that extend one plan, with the same secret
            and run id have the same noise: whoever sees both learns the difference of their gradients.
        dtype: float32 or float64, of noise and state; sums over a history are in float64.
        threads: None for one for each processor.
        lookahead: steps made at once for lower-triangular C (Banded, Toeplitz, Dense); None for 8, or 32 with
            long histories, if that costs no memory. Those beyond bands - 1 cost one more model-sized buffer each.
        source: "aes", or "simulation" for a plain generator that keeps no secret.
        regenerate: for BandedInverse: draw old z again each step instead of keeping bands - 1 buffers.
        file: for Fourier, the full tree and other C that use all of z for each step: where to keep the noise of all
            steps instead of in memory; in the clear, readable by its owner only.
        start_step: the first step to give out. Its state is replayed from z: nothing for Identity, the last bands
            for BandedInverse, the steps since its block began for Stamped, all earlier steps for the others.
        first: the plan or mechanism that `plan` extends, where `plan` does not say so itself. A tree whose last step
            was released before it was extended must not be continued.

    >>> import antiphase as ap
    >>> mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 2), ap.SingleParticipation(), noise_std=1.0)
    >>> stream = ap.NoiseStream(mechanism, [(2,), ()], ap.Secret.insecure(42), "doctest")
    >>> [array.shape for array in stream.next()], stream.step
    ([(2,), ()], 1)
    """

    def __init__(
        self,
        plan: Any,
        leaves: Leaves,
        secret: Secret,
        run_id: str = "",
        *,
        dtype: DTypeLike = np.float32,
        threads: int | None = None,
        lookahead: int | None = None,
        source: SourceName = "aes",
        regenerate: bool = False,
        file: str | os.PathLike[str] | None = None,
        start_step: int = 0,
        first: Any = None,
    ) -> None:
        settings = checked_settings(leaves, run_id, dtype, source, lookahead, regenerate)
        self._open(origin_of(plan, first), settings, secret, threads, file)
        whole = isinstance(start_step, (int, np.integer)) and not isinstance(start_step, bool)
        if not whole or not 0 <= start_step <= self.steps:
            raise _check.invalid(
                "NoiseStream", "start_step", f"in 0, ..., {self.steps}", start_step, "steps begin at 0"
            )
        self._engine.replay(int(start_step))

    def _open(
        self,
        origin: Origin,
        settings: Settings,
        secret: Secret,
        threads: int | None,
        file: str | os.PathLike[str] | None,
    ) -> None:
        self._secret = require_secret("NoiseStream", secret)
        self._origin, self._settings = origin, settings
        self._engine = Engine(origin, settings, secret, threads, None if file is None else Path(file))

    @property
    def step(self) -> int:
        """The next step to give out."""
        return self._engine.step

    @property
    def steps(self) -> int:
        """n: after this many steps the stream ends."""
        return self._origin.mechanism.strategy.steps

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of noise and state."""
        return self._settings.dtype

    @property
    def run_id(self) -> str:
        """As given."""
        return self._settings.run_id

    @property
    def leaves(self) -> dict[str, Leaf]:
        """By name, in order."""
        return dict(self._settings.leaves)

    @property
    def is_secure(self) -> bool:
        """Whether z is unknown to all who do not hold the secret; belongs in every report."""
        return self._settings.source == "aes" and not self._secret.is_insecure

    @property
    def state_bytes(self) -> int:
        """Memory, or file space, of the state that goes from step to step."""
        return self._engine.correlator.state.nbytes

    def next(self) -> list[NDArray[Any]]:
        """The noise of this step, one new array for each leaf; moves on to the next step."""
        flat = np.empty(self._engine.layout.entries, dtype=self.dtype)
        self._engine.advance(lambda part, noise: None, into=flat)
        return self._engine.split(flat)

    def add_to(self, buffers: Sequence[NDArray[Any]]) -> None:
        """Add the noise of this step to one array for each leaf, in place; moves on to the next step.

        Args:
            buffers: arrays in leaf order, of the leaves' shapes, C-contiguous, of the stream's dtype.
        """
        self._engine.advance(_Addition(self._engine.layout, self.dtype, buffers))

    def white(self, row: int) -> list[NDArray[Any]]:
        """z of a row, standard normal, one array for each leaf. Square C has row t for step t."""
        rows = self._origin.mechanism.strategy.rows
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < rows:
            raise _check.invalid("NoiseStream.white", "row", f"in 0, ..., {rows - 1}", row, "C has so many rows")
        return self._engine.split(self._engine.white(int(row)))

    def extend(self, plan: Any) -> None:
        """Go on with more steps of the same C and noise_std; the guarantee is that of the longer plan.

        Args:
            plan: from `Plan.extend`, or a Mechanism with the same strategy for more steps.
        """
        longer = origin_of(plan)
        check_extends(longer.mechanism, self._origin.mechanism)
        check_last_step(longer.mechanism.strategy, self._origin.mechanism.strategy, self.step)
        if getattr(plan, "root", "") not in ("", self._origin.root):
            raise Refused(
                "The plan extends another plan than the one this stream serves.",
                hint="call extend on the plan that the stream was made from",
            )
        self._engine.extend(longer.mechanism)
        self._origin = Origin(longer.mechanism, longer.fingerprint, self._origin.root)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what `load` needs to go on bit for bit; a kill at any instant leaves the old file or the new one."""
        with self._engine.exclusive():
            self._save(Path(path))

    def _save(self, path: Path) -> None:
        place = {"step": self.step, "made": self._engine.correlator.made, "exponent": self._engine.exponent}
        names = {"plan": self._origin.fingerprint, "root": self._origin.root}
        header = {**self._settings.to_header(), **names, **place}
        write_state(path, header, self._engine.saved_state, self._secret)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        plan: Any,
        secret: Secret,
        *,
        leaves: Leaves | None = None,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> NoiseStream:
        """The stream that was saved, at the step where it was saved.

        Raises `Corrupted` where the file was changed or cut short, or belongs to another secret, plan, set of leaves
        or dtype.

        Args:
            path: written by `save`.
            plan: what the saved stream served.
            secret: that of the saved stream.
            leaves: what the file must hold; None to take what it holds.
            dtype: what the file must hold; None to take what it holds.
            threads: as in the constructor; need not be as before.
            file: as in the constructor.
        """
        stream, origin = object.__new__(cls), origin_of(plan)
        wanted = (
            None if leaves is None else list(named(leaves).items()),
            None if dtype is None else checked_dtype(dtype),
        )

        def prepare(header: Header) -> NDArray[Any]:
            settings = Settings.from_header(header)
            check_fits(Path(path), "plan", origin.fingerprint, header["plan"])
            check_fits(Path(path), "leaves", wanted[0], list(settings.leaves.items()))
            check_fits(Path(path), "dtype", wanted[1], settings.dtype)
            stream._open(Origin(origin.mechanism, origin.fingerprint, header["root"]), settings, secret, threads, file)
            # Files that were written before C was scaled do not have the exponent.
            check_fits(Path(path), "scale", stream._engine.exponent, header.get("exponent", 0))
            return stream._engine.saved_state

        header = read_state(Path(path), require_secret("NoiseStream.load", secret), prepare)
        stream._engine.resume(header["step"], header["made"])
        return stream

    def close(self) -> None:
        """End the threads; the stream can still be used, and starts them again."""
        self._engine.team.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise AntiphaseError(
            "A NoiseStream cannot be pickled or copied: two copies would give out the same noise.",
            hint="use save(path) and NoiseStream.load(path, plan, secret)",
        )


@final
class _Addition:
    """Adds a part's noise to the places in the buffers where it belongs; all are checked before any is touched."""

    def __init__(self, layout: Layout, dtype: np.dtype[Any], buffers: Sequence[NDArray[Any]]) -> None:
        shapes = [leaf.shape for leaf in layout.leaves]
        got = [getattr(buffer, "shape", type(buffer).__name__) for buffer in buffers]
        if got != shapes:
            raise _check.invalid(
                "NoiseStream.add_to", "buffers", f"arrays of shapes {shapes}", got, "one for each leaf, in order"
            )
        for buffer in buffers:
            _check_buffer(buffer, dtype)
        places = sorted((buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes) for buffer in buffers if buffer.size)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise InvalidArgument("Two of the buffers share memory.", hint="shared weights are one leaf")
        self._layout = layout
        # A subclass may keep two dimensions, and a slice of it would be broadcast: plain arrays only.
        self._flats = [np.asarray(buffer).reshape(-1) for buffer in buffers]

    def __call__(self, part: Part, noise: Noise) -> None:
        """Add."""
        for piece in self._layout.pieces(part):
            here = self._flats[piece.leaf][piece.start : piece.stop]
            added = noise[piece.done : piece.done + piece.stop - piece.start]
            assert here.shape == added.shape, "noise must never be broadcast"
            np.add(here, added, out=here)


def _check_buffer(buffer: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Other precision is refused: the low bits of a wider sum would have no noise, a narrower one is rounded first."""
    must = f"writeable, C-contiguous NumPy arrays of {dtype}, as the stream"
    if not isinstance(buffer, np.ndarray) or buffer.dtype != dtype:
        kind = getattr(buffer, "dtype", type(buffer).__name__)
        raise _check.invalid(
            "NoiseStream.add_to", "buffers", must, f"{kind}", 'for float64 make the stream with dtype="float64"'
        )
    if not (buffer.flags.c_contiguous and buffer.flags.writeable and buffer.flags.aligned):
        raise _check.invalid(
            "NoiseStream.add_to", "buffers", must, "a read-only or strided one", "use next() and add it yourself"
        )


def _invalid_buffers(must: str, got: Any, hint: str) -> InvalidArgument:
    return _check.invalid("NoiseStream.add_to", "buffers", must, got, hint)
