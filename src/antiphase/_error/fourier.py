"""The error of the Fourier mechanism, computed without forming a matrix.

A is the workload matrix, C the strategy matrix, N the decoder (a left inverse of C), and z white noise.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._workload import Workload
from antiphase.strategies import Fourier, wrapped


def fourier_variances(strategy: Fourier, workload: Workload) -> Array:
    """Return an array of shape (steps,) with the variance of each row of A N z, where z has standard deviation 1.

    Let S be the prefix-sum matrix and X = C^T C. The product N N^T is S^-1 X S^-T for the direct decoder and X^-1 for
    the optimal decoder (see `Fourier`). Both products have the form (P P^T - M M^T) / p_0 with lower-triangular
    Toeplitz matrices P and M, where p_0 is the diagonal entry of P. The variances therefore follow from A P and A M.
    This takes O(n log n) time if the workload is Toeplitz, and O(n^2) time otherwise. The optimal decoder also takes
    O(n^2) time once for each n, to compute X^-1.

    Reference: Gohberg and Semencul 1972.

    >>> from antiphase import PrefixSum
    >>> fourier_variances(Fourier(2), PrefixSum()).round(6).tolist()
    [1.207107, 1.207107]
    >>> fourier_variances(Fourier(2, decoder="optimal"), PrefixSum()).round(6).tolist()
    [1.0, 1.171573]
    """
    n = strategy.steps
    bands = workload.inverse_bands(n)
    inverse = workload.toeplitz_inverse
    scale, plus, minus = factors(strategy)
    if inverse is not None:
        from scipy.signal import lfilter

        plus, minus = lfilter([1.0], inverse, plus), lfilter([1.0], inverse, minus)
        return np.cumsum((plus - minus) * (plus + minus)) / scale
    from antiphase._kernels import shifted_variances

    return (shifted_variances(plus, np.ones(n), bands) - shifted_variances(minus, np.ones(n), bands)) / scale


def factors(strategy: Fourier) -> tuple[float, Array, Array]:
    """Return p_0 and the first columns of P and M, as defined in `fourier_variances`."""
    if strategy.decoder == "optimal":
        first = strategy.inverse_column()
        return float(first[0]), first, wrapped(first)
    g = strategy.gram_column()
    rest = np.concatenate([[0.0], g[1:]])
    return float(g[0]), np.diff(g, prepend=0.0), np.diff(rest, prepend=0.0)
