"""Derivatives of delta and of the noise of balls-in-bins with respect to the Gram matrix of the modes.

A bin is a step of the epoch. Its mode is the sum of the columns of |C| at this step of every epoch. Let G be the Gram
matrix of the modes, K = G / noise_std^2, and b the number of bins. Delta is the mean of a convex function F of the
likelihood ratio L = sum_i u_i, with u_i = exp(x_i - K_ii / 2) / b and x ~ N(0, K). Each u_i has mean 1 / b for every K,
and Price's theorem gives

    d(delta) = sum_ij D_ij dK_ij,        D_ij = E[F''(L) u_i u_j] / 2.

F is a hockey-stick function: (L - e^eps)_+ for removing and (1 - e^eps L)_+ for adding an example. F'' is therefore
concentrated where the loss Y = log L equals eps (removal) or -eps (addition). Let w_i = u_i / L be the probability of
bin i given the sample. Then

    D = e^eps p(Y = eps) E[w w^T | Y = eps] / 2   or   p(Y = -eps) E[w w^T | Y = -eps] / 2,

where p is the density of Y for x ~ N(0, K). At constant delta, the noise satisfies d(log noise) = <D, dG> / (2 <D, G>).
The estimate takes O(samples * b^2) time for any number of steps, and needs no derivatives of samples.

Reference: Price 1958; Choquette-Choo et al. 2025 (near-exact amplification), App. D, differentiates samples instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.balls_in_bins import BinsPair, best_power, best_tilt
from antiphase._montecarlo.estimator import log_weights
from antiphase._montecarlo.power import Power
from antiphase._montecarlo.tilt import Tilt

SMALLEST_KERNEL_WIDTH = 0.2  # width of the kernel density estimate of Y, in standard deviations of the sampled losses


@dataclass(frozen=True)
class Slopes:
    """Estimates of log delta, for removal or addition, and of its derivatives.

    Args:
        log_delta: logarithm of delta.
        by_gram: derivatives of log delta with respect to the entries of K = G / noise_std^2, which are D / delta.
        by_log_noise: derivative of log delta with respect to log noise_std.
        alpha: power of the likelihood ratio in the `Power` estimator; 0 for addition, which uses `Tilt`.
    """

    log_delta: float
    by_gram: Array
    by_log_noise: float
    alpha: int


def delta_slopes(
    pair: BinsPair, epsilon: float, samples: int, seed: np.random.SeedSequence, *, adding: bool, alpha: int = 0
) -> Slopes:
    """Return estimates of log delta and its derivatives. They serve to guide a search and prove nothing.

    Args:
        pair: the modes and the noise level.
        epsilon: epsilon at which delta is estimated.
        samples: number of samples; a few thousand are enough.
        seed: seed of the samples; calls with the same seed use common random numbers.
        adding: True for the addition of an example, False for its removal.
        alpha: power of the likelihood ratio in the `Power` estimator; 0 for the best one. The estimates are a smooth
            function of the noise only if alpha stays the same.
    """
    from scipy.special import logsumexp

    estimator: Power | Tilt
    alpha = 0 if adding else alpha or best_power(pair.split, epsilon)
    estimator = Power(pair.split, alpha) if alpha else best_tilt(pair.split, epsilon)
    draws, modes = estimator.draw_modes(np.random.Generator(np.random.SFC64(seed)), samples)
    log_delta = float(logsumexp(log_weights(estimator, draws, epsilon))) - math.log(samples)
    sign = -1.0 if adding else 1.0
    losses = -sign * draws.shifts  # log-likelihood ratios without the part that all modes have in common (`split.py`)
    # Log weights that turn the samples into samples of N(0, I). The ratios do that for addition. For removal, they turn
    # the samples into samples of the mixture, so the log-likelihood ratio of the mixture is subtracted.
    log_ratios = draws.ratios if adding else draws.ratios - losses
    rho = estimator.rho
    deviation = math.sqrt(max(rho, SMALLEST_KERNEL_WIDTH**2 * float(losses.var())))
    z = (sign * epsilon - losses + rho / 2.0) / deviation
    scale = max(sign * epsilon, 0.0) - math.log(2.0 * samples * deviation * math.sqrt(2.0 * math.pi))
    logs = log_ratios - z**2 / 2.0 + scale
    bins = modes - losses[:, None] - math.log(pair.split.bins) + (logs[:, None] - log_delta) / 2.0
    root = np.exp(bins)
    by_gram = root.T @ root
    whole = pair.gram / pair.noise_std**2
    return Slopes(log_delta, by_gram, -2.0 * float((by_gram * whole).sum()), alpha)
