"""Brute force for small cases: integrals on a grid, and samples of the whole n-dimensional mechanism."""

import numpy as np
from scipy.special import logsumexp

from antiphase.strategies import Strategy


def modes(strategy: Strategy, bins: int) -> np.ndarray:
    """One row a bin: the sum of the columns of |C| that share it."""
    columns = np.abs(strategy.encoder())
    return np.stack([columns[:, i::bins].sum(axis=1) for i in range(bins)])


def loss(modes: np.ndarray, noise_std: float, y: np.ndarray) -> np.ndarray:
    """log P/Q at each row of y."""
    products = (y @ modes.T - (modes**2).sum(axis=1) / 2.0) / noise_std**2
    return logsumexp(products, axis=1) - np.log(len(modes))


def integrated_delta(gram: np.ndarray, noise_std: float, epsilon: float, points: int = 401) -> tuple[float, float]:
    """Both directions, by the trapezoidal rule on a grid, for up to 3 modes."""
    values, vectors = np.linalg.eigh(gram / noise_std**2)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    reach = 8.5 + np.abs(root).max()
    axis = np.linspace(-reach, reach, points)
    x = np.stack([g.ravel() for g in np.meshgrid(*[axis] * root.shape[1], indexing="ij")])
    q = np.exp(-(x**2).sum(axis=0) / 2.0) / (2.0 * np.pi) ** (root.shape[1] / 2.0)
    p = q * np.exp(root @ x - (root**2).sum(axis=1)[:, None] / 2.0).mean(axis=0)
    cell = (axis[1] - axis[0]) ** root.shape[1]
    first, second = (np.maximum(a - np.exp(epsilon) * b, 0.0).sum() * cell for a, b in ((p, q), (q, p)))
    return float(first), float(second)


def sampled_losses(modes: np.ndarray, noise_std: float, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Privacy losses of P against Q and of Q against P, by samples of all n coordinates."""
    rng = np.random.default_rng(seed)
    noise = noise_std * rng.standard_normal((2, samples, modes.shape[1]))
    taking_part = noise[0] + modes[rng.integers(len(modes), size=samples)]
    return loss(modes, noise_std, taking_part), -loss(modes, noise_std, noise[1])


def mean_weight(losses: np.ndarray, epsilon: float) -> tuple[float, float]:
    """delta and its standard error."""
    weights = np.maximum(-np.expm1(epsilon - losses), 0.0)
    return float(weights.mean()), float(weights.std() / np.sqrt(len(losses)))
