"""The Fourier mechanism, based on the square root of a circulant prefix sum over twice as many steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Strategy, check_rows, check_steps
from antiphase.strategies._gram import Gram
from antiphase.strategies._recursion import WholeMatrix
from antiphase.strategies._stream import Stream
from antiphase.strategies._toeplitz_gram import SymmetricGram

Decoder = Literal["direct", "optimal"]
Spectrum = NDArray[np.complex128]


@final
@record
class Fourier(Strategy):
    """The strategy C is the first n columns of R, the circulant square root of the circulant prefix sum over 2n steps.

    The first column of R^2 is n ones followed by n zeros. Its discrete Fourier transform v has v_0 = n, v_k = 0 for
    other even k, and v_k = 1 - i cot(pi k / 2n) for odd k. R is the real circulant matrix whose first column has the
    transform sqrt(v), with the principal branch of the root. The Gram matrix X = C^T C is symmetric Toeplitz. It is the
    top left n x n block of the circulant matrix whose first column has the transform |v|.

    The first n rows of R C are the prefix-sum matrix S, so N = S^-1 (first n rows of R) is a left inverse of C. This is
    the direct decoder. The optimal decoder is the pseudo-inverse N = X^-1 C^T, which has the smallest error for every
    workload. With either decoder, each output uses all random draws z, so the noise of all steps is computed in
    advance. Products with C and N take O(n log n) time. The optimal decoder also needs a precomputation of O(n^2) time
    for each n.

    Args:
        steps: number of steps, n.
        decoder: "direct" or "optimal".

    Reference: Choquette-Choo et al. 2023 (multi-epoch), App. C, J and K.

    >>> Fourier(1).encoder().round(6).tolist()
    [[1.0], [0.0]]
    """

    steps: int
    decoder: Decoder = "direct"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("Fourier", self.steps))
        if not isinstance(self.decoder, str) or self.decoder not in get_args(Decoder):
            raise _check.invalid(
                "Fourier",
                "decoder",
                "'direct' or 'optimal'",
                self.decoder,
                "use 'optimal', which has the smaller error",
            )

    @property
    def rows(self) -> int:
        """Number of rows of C, 2n."""
        return 2 * self.steps

    def rows_at(self, step: int) -> int:
        """Return `rows` for the first step, and 0 for all other steps."""
        return self.rows * (step == 0)

    def gram_column(self) -> Array:
        """Return the first column g of X, so that X[i, j] = g[|i - j|]."""
        return np.fft.irfft(magnitudes(self.steps), 2 * self.steps)[: self.steps]

    def inverse_column(self) -> Array:
        """Return the first column of X^-1."""
        return _inverse_column(self.steps)

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis."""
        x = check_rows(self, "multiply", x, self.steps)
        out = _circulate(_roots(self.steps), x.reshape(self.steps, -1))
        return out.reshape(self.rows, *x.shape[1:])

    def solve(self, z: ArrayLike) -> Array:
        """Return N z along the first axis."""
        z = check_rows(self, "solve", z, self.rows)
        n, root, flat = self.steps, _roots(self.steps), z.reshape(self.rows, -1)
        if self.decoder == "direct":
            out = np.diff(_circulate(root, flat)[:n], axis=0, prepend=0.0)
        else:
            out = _solve_gram(self.inverse_column(), _circulate(root.conj(), flat)[:n])
        return out.reshape(n, *z.shape[1:])

    @property
    def first_is_monotone(self) -> bool:
        """Always true: `first` returns all of C."""
        return True

    def gram(self, *, absolute: bool = False) -> Gram:
        """Return the symmetric Toeplitz X from `gram_column`; with `absolute`, the dense Gram matrix of |C|."""
        return super().gram(absolute=True) if absolute else SymmetricGram(self.gram_column())

    def encoding_stream(self) -> Stream:
        """Return a stream that yields all rows of C x in the last step."""
        return _FourierEncoding(self)

    def recursion(self) -> WholeMatrix:
        """Return `WholeMatrix`, because each output uses all of z."""
        return WholeMatrix(self, is_ordinary=True)


def magnitudes(steps: int) -> Array:
    """Return |v_k| for k = 0, ..., n, with the transform v defined in `Fourier`.

    |v_k| is n for k = 0, 1 / sin(pi k / 2n) for odd k and 0 for all other even k.
    """
    out = np.zeros(steps + 1)
    out[0] = steps
    out[1::2] = 1.0 / np.sin(np.pi * np.arange(1, steps + 1, 2) / (2 * steps))
    return out


def _roots(steps: int) -> Spectrum:
    """Return sqrt(v_k) for k = 0, ..., n, with the transform v defined in `Fourier`.

    For odd k, v_k has the phase -(pi / 2)(1 - k / n). Computing the root from this formula makes sqrt(v_n) exactly
    real.
    """
    phase = -0.25 * np.pi * (1.0 - np.arange(steps + 1) / steps)
    return np.where(np.arange(steps + 1) % 2 == 1, np.exp(1j * phase), 1.0) * np.sqrt(magnitudes(steps))


def _circulate(spectrum: Spectrum, x: Array) -> Array:
    """Return M x, where x is padded with zeros and M is the circulant matrix whose first column has this transform."""
    size = 2 * (len(spectrum) - 1)
    return np.fft.irfft(spectrum[:, None] * np.fft.rfft(x, size, axis=0), size, axis=0)


@lru_cache(maxsize=8)
def _inverse_column(steps: int) -> Array:
    from scipy.linalg import solve_toeplitz

    out = np.asarray(solve_toeplitz(Fourier(steps).gram_column(), np.eye(1, steps)[0]))
    out.setflags(write=False)
    return out


def _solve_gram(first: Array, y: Array) -> Array:
    """Return X^-1 y by the Gohberg-Semencul formula: four products with triangular Toeplitz matrices.

    X^-1 = (F F^T - G G^T) / first_0. F and G are lower-triangular Toeplitz. The first column of F is the
    argument `first`, which is the first column of X^-1. The first column of G is (0, first_{n-1}, ..., first_1).
    """
    n = len(first)
    total = np.zeros_like(y)
    for sign, column in ((1.0, first), (-1.0, wrapped(first))):
        spectrum = np.fft.rfft(column, 2 * n)
        total += sign * _circulate(spectrum, _circulate(spectrum.conj(), y)[:n])[:n]
    return total / first[0]


def wrapped(first: Array) -> Array:
    """Return (0, first_{n-1}, ..., first_1), the first column of G in the Gohberg-Semencul formula."""
    return np.concatenate([[0.0], first[:0:-1]])


class _FourierEncoding(Stream):
    def __init__(self, strategy: Fourier) -> None:
        self._strategy = strategy
        self._past: list[Array] = []

    def step(self, value: Array) -> Array:
        self._past.append(value)
        if len(self._past) < self._strategy.steps:
            return np.empty((0, *value.shape))
        return self._strategy.multiply(np.stack(self._past))
