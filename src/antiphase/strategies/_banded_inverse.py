"""Strategies whose inverse is banded Toeplitz, so that noise is a weighted sum of the last few draws."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies._banded import last_nonzero
from antiphase.strategies._base import Rescale, Strategy, check_steps, exponents
from antiphase.strategies._recursion import Feedback, MovingSum
from antiphase.strategies._stream import Inverse, Stream, noising_stream
from antiphase.strategies._toeplitz import filter_coefficients
from antiphase.strategies._toeplitz_gram import ToeplitzGram, check_column


@final
@record
class BandedInverse(Strategy):
    """A strategy matrix C with C^-1[i, j] = coefficients[i - j]. The noise is a weighted sum of the last few draws.

    Args:
        coefficients: the first column of C^-1, at most `steps` numbers. The first must not be zero. Missing
            coefficients count as zero.
        steps: number of steps, n.

    Reference: Kalinin, McKenna, Upadhyay and Lampert 2025 (banded inverse square root);
    Choquette-Choo et al. 2024 (the two-term case).

    >>> BandedInverse([1.0, -0.5], 3).encoder().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]]
    """

    coefficients: Array
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("BandedInverse", self.steps))
        object.__setattr__(self, "coefficients", filter_coefficients("BandedInverse", self.coefficients, self.steps))

    @classmethod
    def square_root(cls, bands: int, steps: int, workload: Workload = PrefixSum()) -> BandedInverse:
        """Return the strategy whose coefficients are the first `bands` coefficients of the square root of A^-1.

        The workload A must be Toeplitz. As a power series, A^-1 is (1 - x) for a prefix sum. With momentum beta, weight
        decay wd and learning rate eta, it is (1 - (1 - eta wd) x) (1 - beta x), up to a constant factor.

        Args:
            bands: number of coefficients.
            steps: number of steps, n.
            workload: workload matrix, A.

        >>> BandedInverse.square_root(3, 8).coefficients.tolist()
        [1.0, -0.5, -0.125]
        """
        owner = "BandedInverse.square_root"
        count = _check.positive_integer(owner, "bands", bands)
        inverse = workload.toeplitz_inverse
        if inverse is None:
            raise _check.invalid(
                owner, "workload", "the same at every step", "a learning-rate schedule", "use a constant learning rate"
            )
        return cls(_series_root(inverse / inverse[0], count), steps)

    @classmethod
    def geometric(cls, decay: float, steps: int) -> BandedInverse:
        """Return the lower-triangular strategy C[i, j] = decay^(i - j). Its noise in step t is z_t - decay * z_{t-1}.

        >>> BandedInverse.geometric(0.5, 2).noising().tolist()
        [[1.0, 0.0], [-0.5, 1.0]]
        """
        rate = _check.real("BandedInverse.geometric", "decay", decay, 0.0, 1.0, "use a decay in [0, 1]")
        n = check_steps("BandedInverse.geometric", steps)
        return cls(np.array([1.0, -rate][:n]), n)

    @property
    def bands(self) -> int:
        """Number of diagonals of C^-1, including the main one."""
        return len(self.coefficients)

    def strategy_coefficients(self) -> Array:
        """Return the first column of C, shape (steps,)."""
        from scipy.signal import lfilter

        impulse = np.zeros(self.steps)
        impulse[0] = 1.0
        return lfilter([1.0], self.coefficients, impulse)

    @property
    def diagonals(self) -> int:
        """`steps`, or 1 if C is diagonal."""
        return 1 if last_nonzero(self.coefficients) == 1 else self.steps

    @property
    def is_extensible(self) -> bool:
        """Always true: no entry depends on the number of steps."""
        return True

    @property
    def first_is_monotone(self) -> bool:
        """True if the first column of C has no negative entry."""
        return bool(self.strategy_coefficients().min() >= 0.0)

    def first(self, steps: int) -> BandedInverse:
        """Return the leading steps x steps block of C."""
        return replace(self, coefficients=self.coefficients[:steps], steps=steps)

    def toeplitz_column(self) -> Array:
        """Return `strategy_coefficients()`. Raises `NotProved` if the column is too long."""
        check_column(self.steps)
        return self.strategy_coefficients()

    def gram(self, *, absolute: bool = False) -> ToeplitzGram:
        """Return the Gram matrix C^T C, computed from the first column of C."""
        column = self.toeplitz_column()
        return ToeplitzGram(np.abs(column) if absolute else column, self.steps)

    def scale_exponents(self) -> tuple[int, int]:
        """Return (-p, -q), where p and q are the binary exponents of the largest and the first coefficient of C^-1."""
        low, high = exponents(self.coefficients[:1])[0], exponents(self.coefficients)[1]
        return -high, -low

    def rescaled(self, scale: Rescale, inverse: Rescale) -> BandedInverse:
        """Return the strategy with the function `inverse` applied to its coefficients."""
        return replace(self, coefficients=inverse(self.coefficients))

    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x by forward substitution with C^-1."""
        return Inverse(noising_stream(Feedback.toeplitz(self.coefficients, self.steps)))

    def recursion(self) -> MovingSum:
        """Return a `MovingSum` recursion over the last `bands` rows of z, the random draws."""
        return MovingSum(self.steps, self.coefficients)


def _series_root(series: Array, count: int) -> Array:
    """Return the first `count` coefficients of the power series sqrt(series), where series[0] = 1."""
    root = np.zeros(count)
    root[0] = 1.0
    for i in range(1, count):
        given = series[i] if i < len(series) else 0.0
        root[i] = (given - root[1:i] @ root[i - 1 : 0 : -1]) / 2.0
    return root
