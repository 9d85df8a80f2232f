"""Discretises the privacy loss distribution of one step on a grid, without underestimating any divergence.

A pair of distributions (P, Q) has the privacy loss L = log(dP/dQ). The probability mass of each cell between two grid
points of L is moved to the ends of the cell so that its mass under P and its mass under Q are both preserved
("connect the dots"). The hockey-stick divergence is then exact at grid points and overestimated in between. The mass
below the grid is moved up to the first grid point, and the mass above the grid is moved to infinity.

The noise is Gaussian with standard deviation 1, and an example shifts it by mu, the inverse of the noise multiplier,
with probability `rate`. N(v) is the normal distribution with mean v and unit variance. The pairs are

    removal         (1 - rate) N(0) + rate N(mu)   against   N(0)
    addition        N(0)                           against   (1 - rate) N(0) + rate N(mu)
    substitution    (1 - rate) N(0) + rate N(v)    against   (1 - rate) N(0) + rate N(w)

In a substitution, the example replaces another one. The shifts v and w are vectors of any dimension, and the norms |v|,
|w| and |v - w| are at most mu. At every epsilon >= 0 and in both directions, the divergence of a substitution is at
most the divergence of `removal`. To see this, let t = e^epsilon >= 1. The divergence of a substitution is

    rate E[(1 - a X - b Y)_+],     a = (t - 1) (1 - rate) / rate,     b = t,

with X = dN(0)/dN(v) and Y = dN(w)/dN(v) under N(v). X and Y are log-normal with mean 1, and their logarithms have
standard deviations |v| and |v - w|. The expectation of a convex function of a X + b Y is largest if X and Y are
comonotone and have the largest standard deviations. That is the case for w = 0 and |v| = mu, which is `removal`. For
the other direction, exchange v and w. The function `substitution` therefore returns the symmetric loss distribution
whose divergence equals that of `removal` at every epsilon >= 0.

Reference: Doroshenko et al. 2022, Alg. 1 (connect the dots); Zhu, Dong and Wang 2022, Def. 7 and Thm 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array

ROUNDING = 1e-13  # bound on the relative error of a cell's mass; mass is moved upwards to compensate
WIDEST = 700.0  # in cells wider than this, all mass moves to the upper end
LOWER_TAIL = 9.0  # the grid starts at an output 9 standard deviations from 0; the mass beyond it is below 1e-18


@dataclass(frozen=True)
class LossGrid:
    """Probabilities of the losses (start + i) * interval, and the probability of an infinite loss."""

    interval: float
    start: int
    probabilities: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The grid points."""
        return np.arange(self.start, self.start + len(self.probabilities), dtype=np.float64) * self.interval


def removal(mu: float, rate: float, interval: float, log_tail: float) -> LossGrid:
    """Return the privacy loss distribution of (1 - rate) N(0) + rate N(mu) against N(0).

    Args:
        mu: size of the shift.
        rate: probability of the shift.
        interval: grid spacing.
        log_tail: logarithm of the probability mass that may be moved to an infinite loss.

    >>> grid = removal(1.0, 1.0, 0.01, -30.0)
    >>> round(float(grid.probabilities @ grid.losses), 4)
    0.5
    """
    index = _indices(_loss(-LOWER_TAIL, mu, rate), _loss(_quantile(log_tail) + mu, mu, rate), interval)
    edges = np.concatenate([[-np.inf], _position(index * interval, mu, rate), [np.inf]])
    return _connect_dots(interval, index, _log_masses(edges, mu, rate), _log_masses(edges, mu, 0.0))


def addition(mu: float, rate: float, interval: float, log_tail: float) -> LossGrid:
    """Return the privacy loss distribution of N(0) against (1 - rate) N(0) + rate N(mu). Arguments as for `removal`."""
    index = _indices(-_loss(LOWER_TAIL, mu, rate), -_loss(-_quantile(log_tail), mu, rate), interval)
    edges = np.concatenate([[np.inf], _position(-index * interval, mu, rate), [-np.inf]])
    return _connect_dots(interval, index, _log_masses(edges, mu, 0.0), _log_masses(edges, mu, rate))


def substitution(mu: float, rate: float, interval: float, log_tail: float) -> LossGrid:
    """Return a symmetric loss distribution with the same divergence as `removal` at every epsilon >= 0.

    Arguments as for `removal`. Positive losses have the same probabilities as in `removal`. Negative losses have
    p(-l) = e^-l p(l), as symmetry requires. The remaining probability is at zero.
    """
    grid = removal(mu, rate, interval, log_tail)
    positive = grid.probabilities[1 - grid.start :]
    negative = (positive * np.exp(-interval * np.arange(1, len(positive) + 1)))[::-1]
    at_zero = max(0.0, 1.0 - grid.infinite - float(positive.sum()) - float(negative.sum()))
    return LossGrid(interval, -len(negative), np.concatenate([negative, [at_zero], positive]), grid.infinite)


def mixture(first: LossGrid, second: LossGrid, weight: float) -> LossGrid:
    """Return the loss distribution of a mechanism that runs one of two mechanisms at random and reveals which one.

    It runs `second` with probability `weight`, and `first` otherwise.
    """
    start = min(first.start, second.start)
    stop = max(grid.start + len(grid.probabilities) for grid in (first, second))
    out = np.zeros(stop - start)
    for grid, share in ((first, 1.0 - weight), (second, weight)):
        offset = grid.start - start
        out[offset : offset + len(grid.probabilities)] += share * grid.probabilities
    return LossGrid(first.interval, start, out, (1.0 - weight) * first.infinite + weight * second.infinite)


def deviation(mu: float, rate: float) -> float:
    """Return the standard deviation of the privacy loss of `removal`, accurate to three digits."""
    z = np.linspace(-LOWER_TAIL, LOWER_TAIL + mu, 2000)
    weight = (1.0 - rate) * np.exp(-(z**2) / 2.0) + rate * np.exp(-((z - mu) ** 2) / 2.0)
    loss = _loss(z, mu, rate)
    mean = np.average(loss, weights=weight)
    return float(np.sqrt(np.average((loss - mean) ** 2, weights=weight)))


def span(mu: float, rate: float, log_tail: float) -> float:
    """Return an upper bound on the width of the grid that `removal`, `addition` or `substitution` would use."""
    x = max(_quantile(log_tail), LOWER_TAIL) + mu
    return 2.0 * float(_loss(x, mu, rate) - _loss(-x, mu, rate))


def _connect_dots(interval: float, index: Array, log_p: Array, log_q: Array) -> LossGrid:
    """Return the grid with the mass of each cell moved to the ends of the cell.

    Args:
        interval: grid spacing.
        index: grid points, in units of `interval`.
        log_p: log mass under P of the cell below the grid, of each cell between grid points, and of the cell above the
            grid.
        log_q: log masses of the same cells under Q.
    """
    p = np.exp(log_p)
    cells = p[1:-1]
    to_lower = np.zeros(len(cells))
    if interval < WIDEST:
        # Let a and b be the masses that move to the ends of the cell [l, l + interval]. Solve a + b = mass under P and
        # a e^-l + b e^-(l + interval) = mass under Q for a, and subtract a bound on the rounding error.
        scaled_q = np.exp(log_q[1:-1] + index[1:] * interval)
        to_lower = np.clip((scaled_q - (1.0 + ROUNDING) * cells) / math.expm1(interval), 0.0, cells)
    masses = np.zeros(len(index))
    masses[0] = p[0]
    masses[:-1] += to_lower
    masses[1:] += cells - to_lower
    return LossGrid(interval, int(index[0]), masses, float(p[-1]))


def _log_masses(edges: Array, mu: float, rate: float) -> Array:
    """Return the log mass of (1 - rate) N(0) + rate N(mu) between each two adjacent edges."""
    with np.errstate(divide="ignore"):
        parts = (np.log1p(-rate) + _log_normal(edges), np.log(rate) + _log_normal(edges - mu))
    if rate == 0.0:
        return parts[0]
    return parts[1] if rate == 1.0 else np.logaddexp(*parts)


def _log_normal(edges: Array) -> Array:
    """Return the log mass of N(0) between each two adjacent edges, accurate in both tails."""
    from scipy.special import log_ndtr

    low, high = np.minimum(edges[:-1], edges[1:]), np.maximum(edges[:-1], edges[1:])
    flip = low > -high
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    log_high = log_ndtr(high)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = log_high + np.log(-np.expm1(log_ndtr(low) - log_high))
    return np.where(low < high, out, -np.inf)


def _loss(x: Array | float, mu: float, rate: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + mu * x - mu**2 / 2.0)


def _position(loss: Array, mu: float, rate: float) -> Array:
    """Return the x at which `_loss` equals `loss`, or -inf if `loss` is below the range of `_loss`."""
    if rate == 1.0:
        return loss / mu + mu / 2.0
    with np.errstate(divide="ignore"):
        small = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / rate, -1.0))
    large = loss - math.log(rate) + np.log1p(-(1.0 - rate) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss < 1.0, small, large) / mu + mu / 2.0


def _quantile(log_tail: float) -> float:
    from scipy.special import ndtri_exp

    return -float(ndtri_exp(log_tail))


def _indices(lowest: Array, highest: Array, interval: float) -> Array:
    return np.arange(math.floor(lowest / interval), math.ceil(highest / interval) + 1, dtype=np.float64)
