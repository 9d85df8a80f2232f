"""Sensitivity of a Toeplitz strategy under one pattern, with its gradient."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._sensitivity._earliest_blocks import earliest_blocks


def earliest_square(coefficients: Array, steps: int, separation: int, count: int) -> tuple[float, Array]:
    """|C u|^2 for the earliest pattern, and its gradient.

    **Guarantee**: it is the squared sensitivity where there are at most `separation` coefficients (columns of a
    pattern are then orthogonal, and later ones are cut shorter), and where the coefficients are non-negative and
    non-increasing.

    Reference: Kalinin and Lampert 2024, Thm 2; Choquette-Choo et al. 2023 (amplified banded), Thm 2.

    >>> earliest_square(np.array([1.0, 0.5]), steps=4, separation=3, count=2)[0]
    2.25
    """
    width, blocks = min(separation, len(coefficients)), -(-len(coefficients) // separation)
    found = earliest_blocks(coefficients, steps, separation, count)
    weighted = 2.0 * found.times[:, None] * found.values
    back = np.zeros((blocks + 1, width))
    np.add.at(back, found.high, weighted)
    np.subtract.at(back, found.low, weighted)
    gradient = back[:0:-1].cumsum(axis=0)[::-1].reshape(-1)[: len(coefficients)]
    return float(0.5 * np.vdot(weighted, found.values)), gradient


def adjacent_square(coefficients: Array, count: int) -> tuple[float, Array]:
    """|C u|^2 for shuffled epochs with every second pair of epochs meeting in adjacent steps, and its gradient.

    k rho_0 + 2 floor(k / 2) rho_1, with rho the autocorrelation of the coefficients, for at most as many coefficients
    as an epoch has steps. A guide for the search only: the loss reported is that of the worst pattern.

    >>> adjacent_square(np.array([1.0, 0.5]), count=2)[0]
    3.5
    """
    c, pairs = coefficients, 2.0 * (count // 2)
    neighbours = np.pad(c[1:], (0, 1)) + np.pad(c[:-1], (1, 0))
    gradient = 2.0 * count * c + pairs * neighbours
    return float(0.5 * np.einsum("i,i", c, gradient)), gradient
