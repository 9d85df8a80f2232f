"""Splits each mode into a part common to all modes, which is integrated exactly, and a rest, which is sampled.

In balls-in-bins, a bin is a step of the epoch. Its mode is the sum of the columns of |C| at this step of every epoch,
here divided by noise_std. Let K be the Gram matrix of these modes, and rho = 1 / (1^T K^-1 1), where 1 is the vector of
ones. Every mode is the sum of a common vector of squared length rho and a vector orthogonal to it, which is called the
rest of the mode. The rests have the Gram matrix K - rho 1 1^T, which is positive semidefinite. The guarantee compares
the mixture of unit Gaussians at the modes with a unit Gaussian at 0. Since the common vector is orthogonal to all
rests, the log-likelihood ratio of this mixture and this Gaussian is the sum of two independent terms. The first is the
log-likelihood ratio of a Gaussian mechanism with squared distance rho. The second is
log mean_j exp(<rest_j, x> - |rest_j|^2 / 2), where x is the output divided by noise_std.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._montecarlo.gaussian import SMALLEST_ROOT
from antiphase._montecarlo.rounding import GRAM

SMALLEST_SQUARE = 1e-280  # avoids a division by zero if all modes are 0; smaller than any squared norm in use
NEGLIGIBLE = 1e-13  # eigenvalues below this fraction of the largest are treated as rounding errors


@dataclass(frozen=True)
class Split:
    """Modes with the Gram matrix K = rho 1 1^T + root root^T.

    Args:
        rho: squared length of the common part.
        root: square root of the Gram matrix of the rests, one row per bin.
    """

    rho: float
    root: Array

    def scaled(self, noise_std: float) -> Split:
        """Return the modes divided by `noise_std`."""
        return Split(self.rho / noise_std**2, self.root / noise_std)

    def outward(self, gram: Array) -> Split:
        """Return modes with a larger common part, so that no entry of K is below its exact value, despite rounding.

        Here `gram` is the Gram matrix from which this split was computed.

        **Guarantee**: delta for the returned modes is at least delta for the exact modes; see `rounding.py`.
        """
        missing = max(float((gram - self.rho - self.rest).max()), 0.0)
        return Split(self.rho + missing + GRAM * float(np.diag(gram).max()), self.root)

    @property
    def bins(self) -> int:
        """Number of bins, b."""
        return len(self.root)

    @cached_property
    def rest(self) -> Array:
        """Gram matrix of the rests."""
        product: Array = self.root @ self.root.T
        return (product + product.T) / 2.0

    @cached_property
    def half(self) -> Array:
        """|rest_j|^2 / 2 for each bin j."""
        return np.diag(self.rest) / 2.0

    @cached_property
    def largest(self) -> float:
        """Largest |rest_j|^2."""
        return float(np.diag(self.rest).max())

    @cached_property
    def known_factors(self) -> list[float]:
        """Results of `power.log_factor`, without its MARGIN, for alpha = 1, 2, ..., as far as they are known."""
        return [0.0]

    @cached_property
    def whole(self) -> Array:
        """The Gram matrix K of the modes. Entries that rounding made negative are replaced by 0."""
        return np.maximum(self.rest + self.rho, 0.0)


def split(gram: Array, *, common: bool = True) -> Split:
    """Return the split of modes with the Gram matrix `gram`, with the largest possible common part.

    `gram` may be singular. The Gram matrix of the rests is rebuilt from its non-negligible eigenvalues, so that samples
    and weights use the same matrix. The rebuilt K differs from `gram` only by rounding errors, for which `outward`
    compensates. If `common` is false, there is no common part.

    >>> round(split(np.array([[2.0, 1.0], [1.0, 2.0]])).rho, 12)
    1.5
    """
    values, vectors = np.linalg.eigh(gram)
    floor = NEGLIGIBLE * max(values[-1], SMALLEST_SQUARE)
    along = vectors.sum(axis=0) ** 2
    rho = 1.0 / float((along / np.maximum(values, floor)).sum())
    if rho < SMALLEST_ROOT**2 or not common:
        rho = 0.0
    values, vectors = np.linalg.eigh(gram - rho)
    if values[0] < -1e-9 * abs(values[-1] + rho):
        raise AntiphaseError(
            f"The Gram matrix has the eigenvalue {values[0]}, which is too negative to be a rounding error.",
            hint="pass a symmetric positive semidefinite matrix",
        )
    kept = values > floor
    # Use the symmetric root, because the eigenvectors of equal eigenvalues depend on the machine.
    return Split(rho, (vectors[:, kept] * np.sqrt(values[kept])) @ vectors[:, kept].T)
