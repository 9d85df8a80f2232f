"""Computes delta of balls-in-bins by convolution instead of sampling, if the modes are orthogonal.

A bin is a step of the epoch. Its mode is the sum of the columns of |C| at this step of every epoch. For C = I, all
modes are orthogonal, and the mechanism is known as random allocation. Let b be the number of bins, and let k_i be the
length of mode i divided by noise_std. The likelihood ratio of the dominating pair (see `pair.py`) is S / b with
S = sum_i L_i, where the L_i = exp(k_i x_i - k_i^2 / 2) are independent under x ~ N(0, I), and

    delta_remove = E (S - b e^eps)_+ / b,        delta_add = e^eps E (b e^-eps - S)_+ / b.

These are expectations of functions that are convex in every L_i. The probability mass of each L_i between two points of
a grid is moved to these two points so that the mean is preserved. By Jensen's inequality, this does not decrease either
expectation. The error is of second order in the grid spacing. All sums have only non-negative terms, so the relative
rounding error of each result is small. Mass beyond the grid is not moved, because (S - b e^eps)_+ is linear there. For
this mass, it is enough to store two numbers for each partial sum and each grid point x: the probability that the sum
exceeds x, and E (sum - x)_+.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.gaussian import log_divergence

FINE, COARSE = 1 << 12, 1 << 9  # numbers of grid points
MARGIN = 1e-6  # relative margin for rounding
TINY = 1e-300  # smallest bound that is returned, to cover underflow
LARGEST_EPSILON = 700.0  # for larger epsilon, e^epsilon overflows and the bound is 1
SMALLEST = 1e-10  # squared norms of modes are rounded up to at least this


@dataclass(frozen=True)
class Allocation:
    """Orthogonal modes, grouped by squared norm.

    Args:
        squares: distinct squared norms of the modes, divided by noise_std^2.
        counts: number of modes with each squared norm.
    """

    squares: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def bins(self) -> int:
        """Number of bins, b."""
        return sum(self.counts)


def allocation(gram: Array, noise_std: float) -> Allocation | None:
    """Return the modes as an `Allocation` if they are orthogonal, else None.

    Args:
        gram: Gram matrix of the modes.
        noise_std: standard deviation of the noise.

    >>> allocation(np.eye(3), 2.0)
    Allocation(squares=(0.25,), counts=(3,))
    """
    if np.any(gram - np.diag(np.diag(gram))):
        return None
    squares, counts = np.unique(np.diag(gram) / noise_std**2, return_counts=True)
    return Allocation(tuple(squares.tolist()), tuple(counts.tolist()))


def allocation_delta(modes: Allocation, epsilon: float, points: int = FINE) -> tuple[float, float]:
    """Return upper bounds on delta for removing and for adding an example.

    Args:
        modes: squared norms of the modes, with counts.
        epsilon: epsilon at which to bound delta, non-negative.
        points: number of grid points; more points give a tighter bound.

    >>> remove, add = allocation_delta(Allocation((1.0,), (1,)), 1.0)
    >>> round(remove, 4), round(add, 4)
    (0.1269, 0.1269)

    Reference: the dominating pair is from Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2, with C = I.
    """
    if epsilon > LARGEST_EPSILON:
        return 1.0, 1.0
    b = modes.bins
    still = sum(count for square, count in zip(modes.squares, modes.counts, strict=True) if square == 0.0)
    upper = b * math.exp(epsilon) - still  # a mode of norm 0 has L = 1
    lower = b * math.exp(-epsilon) - still
    remove = _total(modes, upper, points).excesses[-1] / b if still < b else 0.0
    add = _shortfall(modes, lower, points) * math.exp(epsilon) / b if lower > 0.0 and still < b else 0.0
    return _rounded_up(float(remove)), _rounded_up(float(add))


def _rounded_up(value: float) -> float:
    """Return the value, increased to cover rounding errors and underflow, and at most 1."""
    return min(1.0, max(value * (1.0 + MARGIN), TINY))


def _shortfall(modes: Allocation, strike: float, points: int) -> float:
    """Return E (strike - S)_+, where S is the sum of all L_i."""
    grid = np.linspace(0.0, strike, points + 1)
    return float(_total(modes, strike, points).masses @ (strike - grid))


@dataclass(frozen=True)
class _Sum:
    """A non-negative random variable S: its mean, and Pr(S = x), Pr(S > x) and E (S - x)_+ for each grid point x."""

    masses: Array
    tails: Array
    excesses: Array
    mean: float


def _total(modes: Allocation, top: float, points: int) -> _Sum:
    """Return the sum of the L_i of all modes other than 0, on a grid from 0 to `top` with points + 1 points."""
    zero = np.zeros(points + 1)
    total = _Sum(np.eye(1, points + 1)[0], zero, zero, 0.0)
    for square, count in zip(modes.squares, modes.counts, strict=True):
        if square > 0.0:
            total = _add(total, _multiple(_single(max(square, SMALLEST), top, points), count))
    return total


def _multiple(term: _Sum, count: int) -> _Sum:
    """Return the sum of `count` independent copies, by repeated doubling."""
    if count == 1:
        return term
    half = _multiple(term, count // 2)
    both = _add(half, half)
    return _add(both, term) if count % 2 else both


def _add(first: _Sum, second: _Sum) -> _Sum:
    """Return the sum of two independent variables.

    If the first variable exceeds a grid point x, the sum exceeds x as well. The excess of the sum over x is then linear
    in both variables.
    """
    from antiphase._kernels import convolve_rows

    rows = np.stack([second.masses, second.tails, second.excesses])
    out = np.empty_like(rows)
    convolve_rows(first.masses, rows, out)
    out[1] += first.tails
    out[2] += first.excesses + second.mean * first.tails
    return _Sum(out[0], out[1], out[2], first.mean + second.mean)


def _single(square: float, top: float, points: int) -> _Sum:
    """Return one L_i, with log L_i ~ N(-square / 2, square), on a grid with one extra cell above `top`."""
    x = np.linspace(0.0, top * (1.0 + 1.0 / points), points + 2)
    root = math.sqrt(square)
    with np.errstate(divide="ignore"):
        edges = np.log(x)
    mass = _masses(np.append(edges, np.inf) / root + root / 2.0)
    moment = _masses(edges / root - root / 2.0)  # E [L; cell] is the mass of the cell if log L ~ N(square / 2, square)
    step = x[1]
    up = np.clip((moment - x[:-1] * mass[:-1]) / step, 0.0, mass[:-1])
    masses = mass.copy()
    masses[:-1] -= up
    masses[1:] += up
    tails = np.cumsum(masses[::-1])[::-1]
    excesses = np.exp(log_divergence(edges[:-1], square))
    excesses[0] = 1.0
    return _Sum(masses[:-1], tails[1:], excesses, 1.0)


def _masses(edges: Array) -> Array:
    """Return the standard normal mass between each two adjacent edges, accurate in both tails."""
    from scipy.special import ndtr

    low, high = edges[:-1], edges[1:]
    return np.where(low > 0.0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
