"""Device noise is drawn by PyTorch's own generator on the device of the gradients. It is fast, but not cryptographic.

The noise of step t is row t of N z, multiplied by the plan's noise_std. Here z holds independent standard normals, and
N is the noising matrix. Row t of z has one part for each leaf (parameter tensor). The entries of a leaf are drawn in
blocks of consecutive entries. A block is identified by its row, its leaf and the index of its first entry in the leaf.
Each block is the scaled sum of two draws from the generator. Each draw has its own seed, derived from the run's secret,
so every rank and every replay gets the same z. The generator uses 32 bits of a seed on a CPU and 63 bits on an
accelerator. The bits of the noise depend on the type of device and on the version of PyTorch. So a run cannot continue
on a different type of device, or with a version of PyTorch that draws different bits.
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
from antiphase.strategies import (
    Buffers,
    Feedback,
    MovingSum,
    Recursion,
    Restart,
    Strategy,
    TreeNodes,
    WholeMatrix,
    own_weight,
)

BLOCK = 1 << 20  # entries per block
Draw = Callable[[int], torch.Tensor]  # takes the index of a row of z, returns the row
Correlate = Callable[[int, Draw], torch.Tensor]  # takes t and a function that draws rows of z, returns row t of N z


@final
class DeviceReplay:
    """Generates the noise of any step on the device. To return to an earlier step, it starts again from step 0.

    Args:
        plan: plan of the run.
        secret: secret of the run.
        run_id: id of the run.
        own: maps each leaf name to the part of the leaf that this process generates noise for.
        like: empty tensor with the device and dtype of the noise.
    """

    def __init__(self, plan: Plan, secret: Secret, run_id: str, own: dict[str, Leaf], like: torch.Tensor) -> None:
        self._own, self._like = own, like
        self._white = SeededNormals(secret, (run_id, plan.root or plan.fingerprint), like)
        self._canonical = canonical(plan.mechanism.strategy, plan.mechanism.noise_std, _numpy_dtype(like))
        self._correlate = self._begin()
        self._steps_made, self._is_consistent = 0, True
        self._last: torch.Tensor | None = None
        self._exclusive = Exclusive("Making the noise of a step")
        self.read_steps: set[int] = set()

    __reduce_ex__ = refuse_pickle

    def read(self, step: int) -> list[torch.Tensor]:
        """Return the noise of `step`, before it is multiplied by `clip_norm`, as one flat tensor per leaf."""
        with self._exclusive:
            made = self._read(step)
            self.read_steps.add(step)
        return list(torch.split(made, [leaf.size for leaf in self._own.values()]))

    def _read(self, step: int) -> torch.Tensor:
        if step < self._steps_made - 1 or not self._is_consistent:
            self._is_consistent = False
            self._steps_made, self._correlate = 0, self._begin()
        while self._steps_made <= step:
            self._is_consistent = False  # if interrupted here, the correlator may be ahead of _steps_made
            self._last = self._correlate(self._steps_made, self._draw) * self._canonical.noise_std
            self._steps_made += 1
            self._is_consistent = True
        assert self._last is not None
        assert self._steps_made == step + 1
        return self._last

    @property
    def source(self) -> str:
        """Return a description of the noise source that changes whenever the bits of the noise would change."""
        has_buffers = isinstance(self._canonical.strategy.recursion(), Buffers)
        return self._white.source + (", buffers updated by differences" if has_buffers else "")

    def _draw(self, row: int) -> torch.Tensor:
        return torch.cat([self._white.draw(row, name, leaf) for name, leaf in self._own.items()])

    def _begin(self) -> Correlate:
        return correlator(self._canonical.strategy, _numpy_dtype(self._like).name)

    def save(self) -> None:
        """Do nothing: no state is needed, since the noise can be generated again from its seeds."""


@final
class SeededNormals:
    """Draws the standard normals z. An entry depends only on the secret, the labels, and the entry's place in z.

    Args:
        secret: secret that seeds are derived from.
        labels: strings that every seed depends on in addition to the secret, such as the run id.
        like: empty tensor with the device and dtype of z.
    """

    def __init__(self, secret: Secret, labels: tuple[str, ...], like: torch.Tensor) -> None:
        self._secret, self._labels, self._like = secret, labels, like
        self._generator = torch.Generator(device=like.device)

    def draw(self, row: int, name: str, leaf: Leaf) -> torch.Tensor:
        """Return row `row` of z, for the part `leaf` of the parameter called `name`, as a flat tensor."""
        (start, stop), size = leaf.box[0], leaf.global_shape[0]
        first = start - start % BLOCK
        parts = [self._block(row, name, at, min(BLOCK, size - at)) for at in range(first, stop, BLOCK)]
        return torch.cat([self._like, *parts])[start - first : stop - first]

    @property
    def source(self) -> str:
        """Return the name of the generator and a hash of 64 sample draws, to tell devices and versions apart."""
        sample = hashlib.sha256(self._draw_from(0, 64).cpu().numpy().tobytes()).hexdigest()
        kind = self._like.device.type
        seeds = ", whose seeds of 32 bits may coincide" if kind == "cpu" else ""
        return f"PyTorch's generator on {kind}{seeds} (sample {sample[:16]})"

    def _block(self, row: int, name: str, start: int, size: int) -> torch.Tensor:
        """Draw a whole block, even if this rank needs only part of it.

        The values that PyTorch draws from a seed depend on how many values are drawn.
        """
        first, second = (self._draw((name, row, start, half), size) for half in range(2))
        return (first + second) * math.sqrt(0.5)

    def _draw(self, labels: tuple[Any, ...], size: int) -> torch.Tensor:
        """Return `size` normals from the seed for `labels`. A block of z is the scaled sum of two such draws.

        The sum has twice as many seed bits and a larger range than one draw. In float32 on a CPU, one draw is at most
        about 5.8 in absolute value, and the scaled sum of two draws is at most about 8.2. No bound is proved on how
        much this limited range adds to delta. Reports therefore list the assumption that the draws are normal.
        """
        seed = self._secret.derive("device noise", *self._labels, *labels, length=8)
        return self._draw_from(int.from_bytes(seed, "big") >> 1, size)

    def _draw_from(self, seed: int, size: int) -> torch.Tensor:
        self._generator.manual_seed(seed)
        like = self._like
        return torch.randn(size, generator=self._generator, device=like.device, dtype=like.dtype)


def check_device_noise(plan: Plan, like: torch.Tensor) -> None:
    """Raise `Refused` if the plan's noise cannot be computed accurately on this device and in this dtype.

    Args:
        plan: plan whose noise, multiplied by its clipping norm, is checked.
        like: empty tensor with the device and dtype.
    """
    dtype, clip_norm = _numpy_dtype(like), plan.problem.clip_norm
    strategy, noise_std = plan.mechanism.strategy, plan.mechanism.noise_std
    made = canonical(strategy, noise_std, dtype)
    correlate = correlator(made.strategy, dtype.name)

    def respond(z: Array, steps: int) -> Any:
        rows = torch.as_tensor(z, dtype=like.dtype, device=like.device)
        noise = torch.stack([correlate(t, rows.__getitem__) for t in range(steps)]) * made.noise_std
        return torch.zeros_like(noise).add_(noise, alpha=clip_norm).double().cpu().numpy()

    check_noise(strategy, noise_std, dtype, respond, clip_norm=clip_norm)


def correlator(strategy: Strategy, dtype: str) -> Correlate:
    """Return a function that computes row t of N z, given t and a function that draws rows of z.

    Call it for t = 0, 1, 2 and so on, without gaps: it keeps state between calls.

    Args:
        strategy: strategy with matrix C, whose left inverse is N.
        dtype: dtype of the noise and of the state, "float32" or "float64".
    """
    return _interpreted(strategy.recursion(), dtype)


def _interpreted(recursion: Recursion, dtype: str) -> Correlate:
    made: Correlate | None = None
    match recursion:
        case Feedback():
            made = _past_outputs(recursion)
        case MovingSum():
            made = _past_draws(recursion)
        case Buffers():
            made = _decaying_buffers(*recursion.constants(dtype))
        case TreeNodes():
            made = _tree(recursion)
        case Restart():
            made = _restarted(recursion, dtype)
        case WholeMatrix():
            raise Refused(
                f"The noise of {type(recursion.strategy).__name__} cannot be made on the device: the noise of every "
                "step depends on all random draws of the run.",
                hint="use source='host', or a plan of family banded, toeplitz, blt, banded-inverse or tree",
            )
    if made is None:
        raise TypeError(f"{type(recursion).__name__} is not one of the recursions of antiphase.strategies")
    return made


def _decaying_buffers(scale: Array, loss: Array) -> Correlate:
    """Return a function that computes the noise y = z - sum_i scale_i b_i, then adds y - loss_i b_i to each buffer b_i.

    The factor loss_i is 1 minus the decay of buffer i; see `Buffers.constants`.
    """
    held: list[torch.Tensor] = []

    def make(step: int, draw: Draw) -> torch.Tensor:
        out = draw(step).clone()
        held.extend(torch.zeros_like(out) for _ in range(len(scale) - len(held)))
        for weight, buffer in zip(scale, held, strict=True):
            out.sub_(buffer, alpha=float(weight))
        for rate, buffer in zip(loss, held, strict=True):
            buffer.add_(torch.sub(out, buffer, alpha=float(rate)))
        return out

    return make


def _past_outputs(recursion: Feedback) -> Correlate:
    """Return a function that computes the noise y by forward substitution: C y = z, where C is banded."""
    past: deque[torch.Tensor] = deque(maxlen=recursion.bands - 1)

    def make(step: int, draw: Draw) -> torch.Tensor:
        row, out = recursion.row(step), draw(step).clone()
        for c, y in zip(row[1:], past, strict=False):
            out.sub_(y, alpha=float(c))
        out.div_(float(row[0]))
        past.appendleft(out)
        return out

    return make


def _past_draws(recursion: MovingSum) -> Correlate:
    """Return a function that computes the noise y_t = sum_j coefficients_j z_(t-j), from the most recent rows of z."""
    coefficients = [float(c) for c in recursion.coefficients]
    past: deque[torch.Tensor] = deque(maxlen=len(coefficients))

    def make(step: int, draw: Draw) -> torch.Tensor:
        past.appendleft(draw(step))
        out = torch.zeros_like(past[0])
        for c, old in zip(coefficients, past, strict=False):
            out.add_(old, alpha=c)
        return out

    return make


def _tree(recursion: TreeNodes) -> Correlate:
    """Return a function that computes the noise of a binary tree, whose leaves are the steps; see `TreeNodes`.

    A step completes a node if it is the last leaf below the node. The value of a completed node is
    w * z + (1 - w) * (left + right). Here z is the node's own draw, w is its weight, and left and right are the values
    of its children. The noise of all steps so far adds up to the values of all completed nodes whose parents are
    incomplete. So the noise of a step is the value of the highest node that the step completes, minus the values of the
    nodes that this node replaces in the sum.
    """
    waiting: list[torch.Tensor] = []

    def make(step: int, draw: Draw) -> torch.Tensor:
        first = recursion.first_row(step)
        node = draw(first)
        replaced = torch.zeros_like(node)
        for level in range(recursion.completed_level(step)):
            if step >> level & 1:
                left = waiting.pop()
                node, replaced = node + left, replaced + left
            weight = own_weight(level + 1)
            node = weight * draw(first + level + 1) + (1.0 - weight) * node
        waiting.append(node)
        return node - replaced

    return make


def _restarted(recursion: Restart, dtype: str) -> Correlate:
    """Return a function that computes each block of steps with the same recursion, restarted with new rows of z."""
    block = recursion.inner
    inner = _interpreted(block, dtype)

    def make(step: int, draw: Draw) -> torch.Tensor:
        nonlocal inner
        number, inside = divmod(step, block.steps)
        if inside == 0:
            inner = _interpreted(block, dtype)
        return inner(inside, lambda row: draw(number * block.rows + row))

    return make


def _numpy_dtype(like: torch.Tensor) -> np.dtype[Any]:
    return np.dtype(str(like.dtype).removeprefix("torch."))
