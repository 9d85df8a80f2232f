"""Split the modes into a common part, which is integrated exactly, and a rest.

Let K be the Gram matrix of the modes divided by noise_std^2, and rho = 1 / (1^T K^-1 1). Every mode is the sum of one
common vector of squared length rho and a rest orthogonal to it; the rests have the Gram matrix K - rho 1 1^T >= 0. The
pair of distributions depends only on K, so the log-likelihood ratio is that of a Gaussian mechanism with rho plus an
independent log mean_j exp(<rest_j, x> - |rest_j|^2 / 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._check import Array
from antiphase._errors import AntiphaseError
from antiphase._montecarlo.gaussian import SMALLEST_ROOT
from antiphase._montecarlo.rounding import GRAM

SMALLEST_SQUARE = 1e-280  # below the squared norm of any C that has an accountant; all modes may be 0
NEGLIGIBLE = 1e-13  # eigenvalues below this, relative to the largest, count as rounding errors


@dataclass(frozen=True)
class Split:
    """K = rho 1 1^T + rest, rest = root root^T.

    Args:
        rho: squared length of the common part.
        root: square root of the Gram matrix of the rests; one row per bin.
    """

    rho: float
    root: Array

    def scaled(self, noise_std: float) -> Split:
        """Return the same modes under noise that is larger by the factor `noise_std`."""
        return Split(self.rho / noise_std**2, self.root / noise_std)

    def outward(self, gram: Array) -> Split:
        """Return modes with a larger common part, such that no entry of K is below `gram` or its unrounded value.

        **Guarantee**: delta of the returned modes is at least that of the true ones; see `rounding.py`.
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
        """|rest_j|^2 / 2."""
        return np.diag(self.rest) / 2.0

    @cached_property
    def largest(self) -> float:
        """Largest |rest_j|^2."""
        return float(np.diag(self.rest).max())

    @cached_property
    def known_factors(self) -> list[float]:
        """Cache of `power.log_factor`."""
        return [0.0]

    @cached_property
    def whole(self) -> Array:
        """K, with entries that rounding made negative set to 0."""
        return np.maximum(self.rest + self.rho, 0.0)


def split(gram: Array, *, common: bool = True) -> Split:
    """Split the modes under unit noise, with the largest possible common part, even if K is singular.

    The rest is rebuilt from its non-negative eigenvalues, so that sampling and weighting use the same matrix. It
    differs from K only by rounding, which `outward` compensates. If `common` is false, there is no common part.

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
    # Use the symmetric root: eigenvectors of equal eigenvalues, and thus samples based on them, depend on the machine.
    return Split(rho, (vectors[:, kept] * np.sqrt(values[kept])) @ vectors[:, kept].T)
