"""Buffered linear Toeplitz (BLT) strategies, whose noise needs only a few decaying buffers."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._record import record
from antiphase.strategies._base import Strategy, check_steps
from antiphase.strategies._recursion import Buffers
from antiphase.strategies._stream import Stream
from antiphase.strategies._toeplitz_gram import ToeplitzGram, check_column


@final
@record
class BLT(Strategy):
    """A lower-triangular Toeplitz strategy C with first column c_0 = 1, c_i = sum_j scale_j decay_j^(i - 1).

    Computing the noise needs one buffer for each decay, for any number of steps.

    Args:
        decay: one number in [0, 1] for each of d buffers, by which each step multiplies the buffer; theta_j in the
            literature.
        scale: the weight of each of the d buffers; omega_j in the literature.
        steps: number of steps, n.

    Reference: Dvijotham et al. 2024; McMahan, Xu and Zhang 2024.

    >>> BLT([0.5], [0.25], 3).encoder().tolist()
    [[1.0, 0.0, 0.0], [0.25, 1.0, 0.0], [0.125, 0.25, 1.0]]
    """

    decay: Array
    scale: Array
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("BLT", self.steps))
        decay = _check.array("BLT", "decay", self.decay, 1)
        scale = _check.array("BLT", "scale", self.scale, 1)
        if len(scale) != len(decay):
            raise _check.invalid(
                "BLT",
                "scale",
                f"as long as decay, {len(decay)}",
                f"{len(scale)} numbers",
                "give one scale for each decay",
            )
        if not ((decay >= 0) & (decay <= 1)).all():
            raise _check.invalid(
                "BLT", "decay", "in [0, 1]", decay.tolist(), "a buffer with a decay above 1 would grow without bound"
            )
        object.__setattr__(self, "decay", decay)
        object.__setattr__(self, "scale", scale)

    @classmethod
    def from_decays(cls, decay: ArrayLike, inverse_decay: ArrayLike, steps: int) -> BLT:
        """Return the BLT with the given decays of C and of C^-1.

        As a power series, C(x) = prod_j (1 - inverse_decay_j x) / prod_j (1 - decay_j x).

        Args:
            decay: the d decays of C, all different.
            inverse_decay: the d decays of C^-1.
            steps: number of steps, n.

        Reference: Dvijotham et al. 2024, Lemma 5.2.

        >>> BLT.from_decays([0.5], [0.25], 3).scale.tolist()
        [0.25]
        """
        theta = _check.array("BLT.from_decays", "decay", decay, 1)
        hat = _check.array("BLT.from_decays", "inverse_decay", inverse_decay, 1)
        if len(theta) != len(hat):
            raise _check.invalid(
                "BLT.from_decays",
                "inverse_decay",
                f"as long as decay, {len(theta)}",
                f"{len(hat)} numbers",
                "give one inverse decay for each decay",
            )
        if len(np.unique(theta)) < len(theta):
            raise _check.invalid(
                "BLT.from_decays", "decay", "all different", theta.tolist(), "merge buffers with the same decay"
            )
        return cls(theta, output_scale(theta, hat), steps)

    @property
    def buffers(self) -> int:
        """Number of buffers, d."""
        return len(self.decay)

    def coefficients(self, count: int | None = None) -> Array:
        """Return the first `count` entries of the first column of C; by default all `steps`."""
        return self.recursion().coefficients(self.steps if count is None else count)

    def inverse_decays(self) -> Array:
        """Return the decays of C^-1, largest first, as defined in `from_decays`.

        Raises `InvalidArgument` if some of them are complex, because C^-1 is then not a BLT with real decays.
        """
        roots = np.linalg.eigvals(np.diag(self.decay) - np.outer(np.ones(self.buffers), self.scale))
        if np.abs(roots.imag).max() > 1e-12 * max(1.0, np.abs(roots).max()):
            raise InvalidArgument(
                "The inverse of this BLT has complex decays.", hint="use non-negative scales, which give real decays"
            )
        return np.sort(roots.real)[::-1]

    @property
    def diagonals(self) -> int:
        """`steps`, because every diagonal can be non-zero."""
        return self.steps

    @property
    def is_extensible(self) -> bool:
        """Always true: no entry depends on the number of steps."""
        return True

    @property
    def first_is_monotone(self) -> bool:
        """True if the first column of C has no negative entry."""
        return bool(self.coefficients().min() >= 0.0)

    def first(self, steps: int) -> BLT:
        """Return the leading steps x steps block of C."""
        return replace(self, steps=steps)

    def toeplitz_column(self) -> Array:
        """Return all coefficients. Raises `NotProved` if the column is too long."""
        check_column(self.steps)
        return self.coefficients()

    def gram(self, *, absolute: bool = False) -> ToeplitzGram:
        """Return the Gram matrix C^T C, computed from the coefficients."""
        column = self.toeplitz_column()
        return ToeplitzGram(np.abs(column) if absolute else column, self.steps)

    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x with one buffer for each decay."""
        return _BufferEncoding(self)

    def recursion(self) -> Buffers:
        """Return a `Buffers` recursion, which adds each output to one buffer for each decay."""
        return Buffers(self.steps, self.decay, self.scale)


class _BufferEncoding(Stream):
    """Computes C x by Algorithm 2 of McMahan, Xu and Zhang 2024."""

    def __init__(self, strategy: BLT) -> None:
        self._decay, self._scale = strategy.decay, strategy.scale
        self._buffers: list[Array] | None = None

    def step(self, value: Array) -> Array:
        if self._buffers is None:
            self._buffers = [np.zeros_like(value) for _ in self._decay]
        out = value + sum(s * b for s, b in zip(self._scale, self._buffers, strict=True))
        self._buffers = [d * b + value for d, b in zip(self._decay, self._buffers, strict=True)]
        return out[None]


def output_scale(decay: Array, inverse_decay: Array) -> Array:
    """Return the array with entries scale_j = prod_k(decay_j - inverse_decay_k) / prod_{k != j}(decay_j - decay_k)."""
    gaps = decay[:, None] - decay[None, :]
    np.fill_diagonal(gaps, 1.0)
    return np.prod((decay[:, None] - inverse_decay[None, :]) / gaps, axis=1)
