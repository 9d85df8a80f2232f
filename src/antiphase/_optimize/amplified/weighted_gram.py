"""Weighted sum <H, G> of the entries of the Gram matrix of the balls-in-bins modes, and its gradient.

Under balls-in-bins, an example in bin i of b bins takes part in steps i, i + b, i + 2b, and so on. The mode of the bin
is the sum of the columns of |C| for these steps. Here |C| holds the absolute values of the entries of the strategy
matrix C. G is the Gram matrix of all modes, and <H, G> is the sum of the products H_ij G_ij.

Let noise_std be the standard deviation of the noise that the privacy budget requires. With the weights H from
`noise_estimate`, log noise_std and log <H, G> / 2 have the same gradient with respect to C. So <H, G>, a quadratic form
in the modes, takes the place of the squared sensitivity.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array


class ToeplitzWeightedGram:
    """Computes <H, G> as a function of the coefficients of a Toeplitz C, in O(n log n + b^3) for b bins.

    The modes are copies of one vector m, shifted down by 0, ..., b - 1 rows and truncated to n rows. Without the
    truncation, <H, G> would be a quadratic form in m. The matrix of this form is Toeplitz, and its entries are the sums
    of the diagonals of H. The code computes the quadratic form and then subtracts the contribution of the truncated
    rows.

    Args:
        H: the weights, a symmetric b x b matrix.
        steps: number of steps, n.

    >>> ToeplitzWeightedGram(np.eye(2), 4)(np.array([1.0, 0.5]))[0]
    4.75
    """

    def __init__(self, H: Array, steps: int) -> None:
        b = len(H)
        self._H, self._steps, self._bins = H, steps, b
        sums = np.array([np.trace(H, k) for k in range(b)])
        self._kernel = np.concatenate([sums[:0:-1], sums])
        q, i = np.ogrid[: b - 1, :b]
        index = steps + q - i
        inside = (i > q) & (index >= 0)
        self._index = np.where(inside, index, steps)  # index `steps` refers to an appended 0

    def __call__(self, c: Array) -> tuple[float, Array]:
        """Return <H, G> and its gradient with respect to the coefficients.

        <H, G> depends on the absolute values of the coefficients. For coefficients of 0, the derivative is one-sided,
        from the right.
        """
        from scipy.signal import fftconvolve

        n, b = self._steps, self._bins
        padded = np.zeros(-(-n // b) * b)
        padded[: len(c)] = np.abs(c)
        m = padded.reshape(-1, b).cumsum(axis=0).ravel()[:n]
        y = fftconvolve(m, self._kernel)[b - 1 : b - 1 + n]
        cut = np.append(m, 0.0)[self._index]
        product = cut @ self._H
        gradient = np.zeros(len(padded) + 1)
        gradient[:n] = y
        np.subtract.at(gradient, self._index, product)
        by_mode = gradient[: len(padded)]
        by_mode[n:] = 0.0
        back = by_mode.reshape(-1, b)[::-1].cumsum(axis=0)[::-1].ravel()[: len(c)]
        return float(m @ y - (cut * product).sum()), 2.0 * back * np.where(c < 0.0, -1.0, 1.0)


class BLTWeightedGram:
    """Computes <H, G> for a batch of BLTs (buffered linear Toeplitz strategies).

    The coefficients of a BLT are c_0 = 1 and c_i = sum_j scale_j exp(-rate_j (i - 1)), with exp(-rate_j) = decay_j.

    Args:
        H: the weights, a symmetric b x b matrix.
        steps: number of steps, n.
    """

    def __init__(self, H: Array, steps: int) -> None:
        self._square, self._lags = ToeplitzWeightedGram(H, steps), np.arange(steps - 1.0)

    def __call__(self, rate: Array, scale: Array) -> tuple[Array, Array, Array]:
        """Return <H, G>, of shape (batch,), and its derivatives for rates and scales, of shape (batch, d)."""
        values, by_rate, by_scale = np.empty(len(rate)), np.empty_like(rate), np.empty_like(scale)
        for s in range(len(rate)):
            powers = np.exp(-rate[s][:, None] * self._lags)
            values[s], gradient = self._square(np.concatenate([[1.0], scale[s] @ powers]))
            by_scale[s] = powers @ gradient[1:]
            by_rate[s] = -scale[s] * (powers @ (self._lags * gradient[1:]))
        return values, by_rate, by_scale


class BandedWeightedGram:
    """Computes <H, G> as a function of the columns of a banded C, in O(n b^2) for b bins.

    C has at most b bands. So among the columns for the steps of one bin, each row of C has at most one nonzero entry.

    Args:
        H: the weights, a symmetric b x b matrix.
        steps: number of steps, n.
        bands: number of bands of C; columns[j, r] = C[j + r, j] for r < bands.
    """

    def __init__(self, H: Array, steps: int, bands: int) -> None:
        self._H = H
        j, r = np.ogrid[:steps, :bands]
        self._inside = j + r < steps
        self._row = np.minimum(j + r, steps - 1)
        self._bin = np.broadcast_to(j % len(H), self._row.shape)

    def __call__(self, columns: Array) -> tuple[float, Array]:
        """Return <H, G> and its gradient with respect to the columns."""
        rows = np.zeros((len(columns), len(self._H)))
        inside = self._inside
        rows[self._row[inside], self._bin[inside]] = np.abs(columns[inside])
        product = rows @ self._H
        gradient = np.where(inside, 2.0 * product[self._row, self._bin], 0.0) * np.where(columns < 0.0, -1.0, 1.0)
        return float((rows * product).sum()), gradient
