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

import torch

from antiphase._errors import Refused
from antiphase._noise import Leaf
from antiphase._plan import Plan
from antiphase._run._pickle import refuse_pickle
from antiphase._secret import Secret
from antiphase.strategies import BLT, Banded, BandedInverse, Identity, Strategy, Toeplitz
from antiphase.strategies._banded import row_bands

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
        self._plan, self._own, self._like = plan, own, like
        self._white = White(secret, (run_id, plan.root or plan.fingerprint), like)
        self._correlate = correlator(plan.mechanism.strategy)
        self._made, self._whole = 0, True
        self._last: torch.Tensor | None = None
        self.read_steps: set[int] = set()

    __reduce_ex__ = refuse_pickle

    def read(self, step: int) -> list[torch.Tensor]:
        """The noise of `step`, a flat tensor for each leaf."""
        if step < self._made - 1 or not self._whole:
            self._made, self._correlate = 0, correlator(self._plan.mechanism.strategy)
        while self._made <= step:
            parts = [self._white.draw(self._made, name, leaf) for name, leaf in self._own.items()]
            self._whole = False  # an interrupt here leaves a correlator that is ahead of the count
            self._last = self._correlate(torch.cat(parts)) * self._plan.mechanism.noise_std
            self._made += 1
            self._whole = True
        self.read_steps.add(step)
        assert self._last is not None
        return list(torch.split(self._last, [leaf.size for leaf in self._own.values()]))

    @property
    def source(self) -> str:
        """What makes the noise, in words that differ where its bits would."""
        return self._white.source

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


def correlator(strategy: Strategy) -> Correlate:
    """N as a function to be called with the rows of z one after another."""
    match strategy:
        case Identity():
            return lambda z: z
        case BLT():
            return _buffers(strategy)
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


def _buffers(strategy: BLT) -> Correlate:
    """McMahan, Xu and Zhang 2024, Alg. 3."""
    held: list[torch.Tensor] = []

    def step(z: torch.Tensor) -> torch.Tensor:
        out = z.clone()
        held.extend(torch.zeros_like(z) for _ in range(strategy.buffers - len(held)))
        for scale, buffer in zip(strategy.scale, held, strict=True):
            out.sub_(buffer, alpha=float(scale))
        for decay, buffer in zip(strategy.decay, held, strict=True):
            buffer.mul_(float(decay)).add_(out)
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
