"""Noise made where the gradients are, by PyTorch's own generator: quick on an accelerator, and not cryptographic.

z is addressed by (row, leaf, block of entries). Each block is the sum of two draws, each by a generator with a seed of
its own derived from the run's secret (on a processor 32 bits of it count, on an accelerator 63), so that every rank,
and a replay, gets the same z. Bits depend on the kind of device and on PyTorch's version, so a run that was begun with
one is refused with another.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch

from antiphase._check import Array
from antiphase._errors import Refused
from antiphase._noise import Leaf, canonical, check_noise
from antiphase._plan import Plan
from antiphase._run import Exclusive, refuse_pickle
from antiphase._secret import Secret
from antiphase.strategies import BLT, Banded, BandedInverse, Identity, Strategy, Toeplitz, noise_constants, row_bands

BLOCK = 1 << 20
Correlate = Callable[[torch.Tensor], torch.Tensor]


@final
class DeviceTape:
    """The noise of any step taken so far, on a device; wound back by making it again from the start.

    Args:
        plan, secret, run_id: what the noise is a function of.
        own: the parts of the leaves to make it for.
        like: an empty tensor of the device and dtype wanted.
    """

    def __init__(self, plan: Plan, secret: Secret, run_id: str, own: dict[str, Leaf], like: torch.Tensor) -> None:
        self._own, self._like = own, like
        self._white = White(secret, (run_id, plan.root or plan.fingerprint), like)
        self._canonical = canonical(plan.mechanism.strategy, plan.mechanism.noise_std, _numpy_dtype(like))
        self._correlate = self._begin()
        self._made, self._whole = 0, True
        self._last: torch.Tensor | None = None
        self._alone = Exclusive("Making the noise of a step")
        self.read_steps: set[int] = set()

    __reduce_ex__ = refuse_pickle

    def read(self, step: int) -> list[torch.Tensor]:
        """The noise of `step`, a flat tensor for each leaf."""
        with self._alone:
            made = self._read(step)
            self.read_steps.add(step)
        return list(torch.split(made, [leaf.size for leaf in self._own.values()]))

    def _read(self, step: int) -> torch.Tensor:
        if step < self._made - 1 or not self._whole:
            self._whole = False
            self._made, self._correlate = 0, self._begin()
        while self._made <= step:
            parts = [self._white.draw(self._made, name, leaf) for name, leaf in self._own.items()]
            self._whole = False  # an interrupt here leaves a correlator that is ahead of the count
            self._last = self._correlate(torch.cat(parts)) * self._canonical.noise_std
            self._made += 1
            self._whole = True
        assert self._last is not None
        assert self._made == step + 1
        return self._last

    @property
    def source(self) -> str:
        """What makes the noise, in words that differ where its bits would."""
        is_blt = isinstance(self._canonical.strategy, BLT)
        return self._white.source + (", buffers updated by differences" if is_blt else "")

    def _begin(self) -> Correlate:
        return correlator(self._canonical.strategy, _numpy_dtype(self._like).name)

    def save(self) -> None:
        """Nothing is stored: noise is made again from its seeds."""


@final
class White:
    """z as a function of row, leaf and entry."""

    def __init__(self, secret: Secret, labels: tuple[str, ...], like: torch.Tensor) -> None:
        self._secret, self._labels, self._like = secret, labels, like
        self._generator = torch.Generator(device=like.device)

    def draw(self, row: int, name: str, leaf: Leaf) -> torch.Tensor:
        """The entries of a leaf that are in its region, of z of a row."""
        (start, stop), size = leaf.box[0], leaf.global_shape[0]
        first = start - start % BLOCK
        parts = [self._block(row, name, at, min(BLOCK, size - at)) for at in range(first, stop, BLOCK)]
        return torch.cat([self._like, *parts])[start - first : stop - first]

    @property
    def source(self) -> str:
        """The generator with a sample of what it draws: other devices and versions draw other numbers from one seed."""
        sample = hashlib.sha256(self._draw_from(0, 64).cpu().numpy().tobytes()).hexdigest()
        kind = self._like.device.type
        seeds = ", whose seeds of 32 bits may coincide" if kind == "cpu" else ""
        return f"PyTorch's generator on {kind}{seeds} (sample {sample[:16]})"

    def _block(self, row: int, name: str, start: int, size: int) -> torch.Tensor:
        """Drawn whole, and of a size that does not depend on regions, since the size decides what a seed gives."""
        first, second = (self._draw((name, row, start, half), size) for half in range(2))
        return (first + second) * math.sqrt(0.5)

    def _draw(self, labels: tuple[Any, ...], size: int) -> torch.Tensor:
        """One draw has few bits of seed and ends near 5.8; the sum of two has twice the bits and ends near 8.2.

        Both in float32 on a processor. What this adds to delta is not proved; reports state it as an assumption.
        """
        seed = self._secret.derive("device noise", *self._labels, *labels, length=8)
        return self._draw_from(int.from_bytes(seed, "big") >> 1, size)

    def _draw_from(self, seed: int, size: int) -> torch.Tensor:
        self._generator.manual_seed(seed)
        like = self._like
        return torch.randn(size, generator=self._generator, device=like.device, dtype=like.dtype)


def check_device_noise(plan: Plan, like: torch.Tensor) -> None:
    """Refuse a plan whose noise does not come out right on this device, in this dtype.

    Args:
        plan: whose noise it is, and the clipping norm that it is multiplied by when it is added.
        like: an empty tensor of that device and dtype.
    """
    dtype, clip_norm = _numpy_dtype(like), plan.problem.clip_norm
    strategy, noise_std = plan.mechanism.strategy, plan.mechanism.noise_std
    made = canonical(strategy, noise_std, dtype)
    correlate = correlator(made.strategy, dtype.name)

    def respond(z: Array, steps: int) -> Any:
        rows = torch.as_tensor(z, dtype=like.dtype, device=like.device)
        noise = torch.stack([correlate(rows[t]) for t in range(steps)]) * made.noise_std
        return torch.zeros_like(noise).add_(noise, alpha=clip_norm).double().cpu().numpy()

    check_noise(strategy, noise_std, dtype, respond, clip_norm=clip_norm)


def correlator(strategy: Strategy, dtype: str) -> Correlate:
    """N as a function to be called with the rows of z, in this dtype, one after another."""
    match strategy:
        case Identity():
            return lambda z: z
        case BLT():
            return _buffers(*noise_constants(strategy, dtype))
        case Toeplitz():
            return _feedback(row_bands(strategy.columns()))
        case Banded():
            return _feedback(row_bands(strategy.columns))
        case BandedInverse():
            return _moving_sum([float(c) for c in strategy.coefficients])
    raise Refused(
        f"Noise of {type(strategy).__name__} is not made on the device.",
        hint="use source='host', or a plan of family banded, toeplitz, blt or banded-inverse",
    )


def _buffers(scale: Array, loss: Array) -> Correlate:
    """y = z - scale . b, then b <- b + (y - loss b), as `noise_constants` explains."""
    held: list[torch.Tensor] = []

    def step(z: torch.Tensor) -> torch.Tensor:
        out = z.clone()
        held.extend(torch.zeros_like(z) for _ in range(len(scale) - len(held)))
        for weight, buffer in zip(scale, held, strict=True):
            out.sub_(buffer, alpha=float(weight))
        for rate, buffer in zip(loss, held, strict=True):
            buffer.add_(torch.sub(out, buffer, alpha=float(rate)))
        return out

    return step


def _feedback(rows: Any) -> Correlate:
    """Forward substitution: rows[t, r] = C[t, t - r]."""
    past: deque[torch.Tensor] = deque(maxlen=rows.shape[1] - 1)
    remaining = iter(rows)

    def step(z: torch.Tensor) -> torch.Tensor:
        row, out = next(remaining), z.clone()
        for c, y in zip(row[1:], past, strict=False):
            out.sub_(y, alpha=float(c))
        out.div_(float(row[0]))
        past.appendleft(out)
        return out

    return step


def _moving_sum(coefficients: list[float]) -> Correlate:
    past: deque[torch.Tensor] = deque(maxlen=len(coefficients))

    def step(z: torch.Tensor) -> torch.Tensor:
        past.appendleft(z)
        out = torch.zeros_like(z)
        for c, old in zip(coefficients, past, strict=False):
            out.add_(old, alpha=c)
        return out

    return step


def _numpy_dtype(like: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(str(like.dtype).removeprefix("torch."))
