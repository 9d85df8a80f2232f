"""The noise stream: one correlated noise vector per step, bit-identical for every sharding and number of threads."""

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
from antiphase._noise.lattice import lattice_of
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
from antiphase._traceback import without_locals


@final
class NoiseStream:
    """Generates the noise for the sum of clipped gradients in steps t = 0, 1, ..., for clipping norm 1.

    A leaf is one array of the model. The noise of step t is noise_std (N z)_t, where z is white noise and N is the
    noising matrix of the strategy (C^-1 for square C). An entry of z depends only on its row of z, its flat index in
    the whole leaf, and a key derived from (secret, `source`, run id, plan, dtype, leaf name, leaf shape). Sharding,
    `threads`, `lookahead`, `regenerate`, `file`, saving and replaying do not change a single bit of the noise. (There
    is one exception. If each step uses all of z, as for Fourier, N is computed by dense linear algebra. The last bits
    of N then depend on the machine and on its number of threads.) Each shard holds only its share of the state.

    **Guarantee**: the noise of all steps together is noise_std N z for one white Gaussian z. This holds up to rounding
    to `dtype`, and up to tails beyond 53 standard deviations. `Run.report` accounts for these tails. `Stamped`, which
    repeats the strategy of one block of steps, uses different rows of z in each block. After the last step, `next`
    raises an error. The privacy guarantee of the mechanism is for real numbers. It does not account for the rounding of
    draws and sums to floating point, which is coarser for draws beyond seven standard deviations. The constructor
    raises `Refused` if the noise does not fit in `dtype`, or if rounding would change z by more than 1/256 of its
    standard deviation.

    **Lattice.** If the mechanism has a `Lattice` (a grid for exact integers), the noise is computed in integers
    instead. The stream returns int64 arrays in units of the grid. This noise is meant for integer contributions with a
    norm of at most `lattice.norm`. Each draw of z is exactly distributed as floor(N(0, sigma^2)) with sigma =
    `lattice.sigma(noise_std)`. The guarantee accounts for all rounding; see docs/lattice-noise.md.

    Anyone who knows the secret or the state of the stream can subtract the noise. Store both apart from the model.

    Args:
        plan: a Plan or a Mechanism.
        leaves: list of the shapes of the model's arrays; or, for a shard, {name: Leaf(global_shape, region)} with the
            region of each array that the shard holds.
        secret: secret from `Secret.generate()`, or from `Secret.insecure(42)` in tests.
        run_id: name of the training run, different for every run. Two runs with the same secret, run id and plan (or
            plans that extend the same plan) have the same noise. Anyone who sees both runs learns the difference of
            their gradients.
        dtype: float32 or float64, the dtype of noise and state. Sums over past outputs or draws are computed in
            float64, and sums over the buffers of a BLT in `dtype`. None means float32, or int64 for a plan with a
            lattice.
        threads: number of threads; None for one per processor.
        lookahead: number of steps computed at once for lower-triangular C (Banded, Toeplitz, Dense). Up to bands - 1
            steps need no extra memory. Each further step takes one more model-sized buffer. None means 8, or 32 if C
            has more than 257 bands, but at most max(bands - 1, 1).
        source: "aes", or "simulation" for a generator that is not cryptographic.
        regenerate: for BandedInverse, draw old rows of z again in each step instead of storing bands - 1 buffers.
        file: path for strategies that use all of z in each step, such as Fourier and Tree with the full decoder. The
            noise of all steps is then stored in a file next to this path, instead of in memory. The file is not
            encrypted; only its owner can read it.
        start_step: first step to generate. The stream recomputes the state before this step by replaying earlier steps.
            How many steps it replays depends on the strategy. Identity, and strategies that use all of z in each step,
            need none. BandedInverse needs at most the last bands - 1 steps, and Stamped at most the steps of the same
            block. All other strategies need all earlier steps.
        first: the plan or mechanism that `plan` extends, if `plan` does not record it. A tree can be extended only
            before its last step is released, unless its number of steps is a power of two. The constructor does not
            check whether that step has been released.

    >>> import antiphase as ap
    >>> mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 2), ap.SingleParticipation(), noise_std=1.0)
    >>> stream = ap.NoiseStream(mechanism, [(2,), ()], ap.Secret.insecure(42), "doctest")
    >>> [array.shape for array in stream.next()], stream.step
    ([(2,), ()], 1)
    """

    @without_locals
    def __init__(
        self,
        plan: Any,
        leaves: Leaves,
        secret: Secret,
        run_id: str = "",
        *,
        dtype: DTypeLike | None = None,
        threads: int | None = None,
        lookahead: int | None = None,
        source: SourceName = "aes",
        regenerate: bool = False,
        file: str | os.PathLike[str] | None = None,
        start_step: int = 0,
        first: Any = None,
    ) -> None:
        origin = origin_of(plan, first)
        is_lattice = lattice_of(origin.mechanism) is not None
        settings = checked_settings(leaves, run_id, dtype, source, lookahead, regenerate, is_lattice)
        self._open(origin, settings, secret, threads, file)
        whole = isinstance(start_step, (int, np.integer)) and not isinstance(start_step, bool)
        if not whole or not 0 <= start_step <= self.steps:
            raise _check.invalid(
                "NoiseStream", "start_step", f"in 0, ..., {self.steps}", start_step, "steps are counted from 0"
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
        """Next step to generate."""
        return self._engine.step

    @property
    def steps(self) -> int:
        """Number of steps, n, after which the stream ends."""
        return self._origin.mechanism.strategy.steps

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of noise and state."""
        return self._settings.dtype

    @property
    def run_id(self) -> str:
        """Name of the training run."""
        return self._settings.run_id

    @property
    def leaves(self) -> dict[str, Leaf]:
        """Leaves by name, in order."""
        return dict(self._settings.leaves)

    @property
    def is_secure(self) -> bool:
        """True if z cannot be predicted without the secret. Every report must state this."""
        return self._settings.source == "aes" and not self._secret.is_insecure

    @property
    def state_bytes(self) -> int:
        """Size in bytes of the state that the stream keeps between steps, in memory or in `file`."""
        return self._engine.correlator.state.nbytes

    @without_locals
    def next(self) -> list[NDArray[Any]]:
        """Return the noise of this step, one new array for each leaf, and advance to the next step."""
        return self._engine.split(self._engine.take())

    @without_locals
    def _start_ahead(self) -> None:
        """Start computing the next step's noise on a background thread. This does not change the noise."""
        self._engine.start_ahead()

    @without_locals
    def _abandon(self) -> None:
        """Stop computing ahead. Call this only if the stream will not be used again."""
        self._engine.abandon()

    @without_locals
    def add_to(self, buffers: Sequence[NDArray[Any]]) -> None:
        """Add the noise of this step to one array for each leaf, in place, and advance to the next step.

        Args:
            buffers: C-contiguous arrays in leaf order, with the shapes of the leaves and the dtype of the stream.
        """
        self._engine.advance(_Addition(self._engine.layout, self.dtype, buffers))

    @without_locals
    def white(self, row: int) -> list[NDArray[Any]]:
        """Return a row of z, one array for each leaf: standard normals, or draws of floor(N(0, sigma^2)) on a lattice.

        For square C, step t uses row t.
        """
        rows = self._origin.mechanism.strategy.rows
        if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < rows:
            raise _check.invalid("NoiseStream.white", "row", f"in 0, ..., {rows - 1}", row, f"C has {rows} rows")
        return self._engine.split(self._engine.white(int(row)))

    def extend(self, plan: Any) -> None:
        """Continue with more steps of the same strategy and noise_std. The guarantee of the longer plan then applies.

        Args:
            plan: from `Plan.extend`, or a Mechanism with the same strategy for more steps.
        """
        longer = origin_of(plan)
        check_extends(longer.mechanism, self._origin.mechanism)
        check_last_step(longer.mechanism.strategy, self._origin.mechanism.strategy, self.step)
        if getattr(plan, "root", "") not in ("", self._origin.root):
            raise Refused(
                "The plan extends a different plan from the one this stream was created with.",
                hint="call extend on the plan that the stream was created with",
            )
        self._engine.extend(longer.mechanism)
        self._origin = Origin(longer.mechanism, longer.fingerprint, self._origin.root)

    @without_locals
    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the stream, so that a stream loaded with `load` continues with exactly the same noise.

        The write is atomic: if the process is killed, either the old file or the new one remains.
        """
        with self._engine.exclusive():
            self._save(Path(path))

    def _save(self, path: Path) -> None:
        ahead = self._engine.finish_ahead()  # if not None, the state includes this step, so save its noise too
        place = {"step": self.step, "made": self._engine.correlator.made, "exponent": self._engine.exponent}
        place |= {} if ahead is None else {"ahead": True}
        names = {"plan": self._origin.fingerprint, "root": self._origin.root}
        header = {**self._settings.to_header(), **names, **place}
        arrays = [self._engine.saved_state, *([] if ahead is None else [ahead])]
        try:
            write_state(path, header, arrays, self._secret)
        finally:
            del arrays, ahead  # tracebacks may show local variables

    @classmethod
    @without_locals
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
        """Return the saved stream, at the step at which it was saved.

        Raises `Corrupted` if the file was changed or truncated, or belongs to another secret, plan, set of leaves
        or dtype.

        Args:
            path: file written by `save`.
            plan: plan or mechanism of the saved stream.
            secret: secret of the saved stream.
            leaves: leaves that the file must contain; None to accept any.
            dtype: dtype that the file must contain; None to accept any.
            threads: as in the constructor; may differ from the saved stream.
            file: as in the constructor.
        """
        stream, origin = object.__new__(cls), origin_of(plan)
        wanted = (
            None if leaves is None else list(named(leaves).items()),
            None if dtype is None else checked_dtype(dtype, lattice_of(origin.mechanism) is not None),
        )

        ahead: list[NDArray[Any]] = []

        def prepare(header: Header) -> list[NDArray[Any]]:
            settings = Settings.from_header(header)
            check_fits(Path(path), "plan", origin.fingerprint, header["plan"])
            check_fits(Path(path), "leaves", wanted[0], list(settings.leaves.items()))
            check_fits(Path(path), "dtype", wanted[1], settings.dtype)
            stream._open(Origin(origin.mechanism, origin.fingerprint, header["root"]), settings, secret, threads, file)
            # Versions that did not rescale C wrote files without an exponent.
            check_fits(Path(path), "scale", stream._engine.exponent, header.get("exponent", 0))
            if header.get("ahead"):
                ahead.append(np.empty(stream._engine.layout.entries, dtype=settings.dtype))
            return [stream._engine.saved_state, *ahead]

        header = read_state(Path(path), require_secret("NoiseStream.load", secret), prepare)
        stream._engine.resume(header["step"], header["made"], *ahead)
        return stream

    def _continues(self, plan: Any, run_id: str, source: SourceName = "aes") -> bool:
        """Return True if a new stream with these arguments, and this stream's leaves and dtype, has the same noise."""
        mine = (self._origin.root, self._settings.run_id, self._settings.source)
        return mine == (origin_of(plan).root, run_id, source)

    def close(self) -> None:
        """Shut down the threads. If the stream is used again, it starts new threads."""
        self._engine.team.close()  # noise that is computed ahead is finished first

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise AntiphaseError(
            "A NoiseStream cannot be pickled or copied, because both copies would add the same noise.",
            hint="use save(path) and NoiseStream.load(path, plan, secret)",
        )


@final
class _Addition:
    """Adds the noise of a part (a range of the stream's entries) to the caller's buffers.

    The constructor checks all buffers before any of them is changed.
    """

    def __init__(self, layout: Layout, dtype: np.dtype[Any], buffers: Sequence[NDArray[Any]]) -> None:
        shapes = [leaf.shape for leaf in layout.leaves]
        got = [getattr(buffer, "shape", type(buffer).__name__) for buffer in buffers]
        if got != shapes:
            raise _check.invalid(
                "NoiseStream.add_to",
                "buffers",
                f"arrays of shapes {shapes}",
                got,
                "pass one array for each leaf, in order",
            )
        for buffer in buffers:
            _check_buffer(buffer, dtype)
        places = sorted((buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes) for buffer in buffers if buffer.size)
        if any(stop > start for (_, stop), (start, _) in pairwise(places)):
            raise InvalidArgument(
                "Two of the buffers passed to NoiseStream.add_to share memory.", hint="pass shared weights as one leaf"
            )
        self._layout = layout
        # Convert to plain arrays: after reshape, a subclass such as np.matrix stays two-dimensional, and noise added to
        # a slice of it would be broadcast.
        self._flats = [np.asarray(buffer).reshape(-1) for buffer in buffers]

    def __call__(self, part: Part, noise: Noise) -> None:
        """Add the noise of a part to the buffer entries of this part."""
        for piece in self._layout.pieces(part):
            here = self._flats[piece.leaf][piece.start : piece.stop]
            added = noise[piece.done : piece.done + piece.stop - piece.start]
            assert here.shape == added.shape, "noise must never be broadcast"
            np.add(here, added, out=here)


def _check_buffer(buffer: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise `InvalidArgument` if a buffer is not a contiguous, writeable array of the stream's dtype.

    In a wider dtype, the low bits of the buffer would get no noise. A narrower dtype would round the noise.
    """
    must = f"writeable, C-contiguous NumPy arrays of {dtype}, the dtype of the stream"
    if not isinstance(buffer, np.ndarray) or buffer.dtype != dtype:
        kind = getattr(buffer, "dtype", type(buffer).__name__)
        raise _check.invalid(
            "NoiseStream.add_to",
            "buffers",
            must,
            f"{kind}",
            'for float64 arrays, create the stream with dtype="float64"',
        )
    if not (buffer.flags.c_contiguous and buffer.flags.writeable and buffer.flags.aligned):
        raise _check.invalid(
            "NoiseStream.add_to",
            "buffers",
            must,
            "a read-only or strided array",
            "call next() and add the noise yourself",
        )
