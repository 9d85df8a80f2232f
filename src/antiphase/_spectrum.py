"""The spectrum of a Hessian by stochastic Lanczos quadrature, which needs only products of the Hessian with vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._objective import Curvatures, Steps

NEGLIGIBLE = 1e-6  # curvatures below this fraction of the largest are rounding errors

MAX_RATE_CURVATURE = 1.9  # plain SGD diverges at 2 and above


def lanczos_quadrature(
    multiply: Callable[[Array], Array], size: int, *, iterations: int, probes: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return nodes and weights of an estimate of the spectral density of a symmetric matrix.

    For every function f, trace f(H) / size is about sum_i weight_i f(node_i); the weights add up to 1. Each probe is a
    random vector of signs. The Lanczos recursion from it, with full reorthogonalization, gives a Gauss quadrature that
    is exact for polynomials of degree up to 2 x iterations - 1.

    Args:
        multiply: returns H v.
        size: number of rows of H.
        iterations: Lanczos iterations per probe.
        probes: number of random vectors to average over.
        rng: source of the random vectors.

    Reference: Golub and Meurant 2010, chapter 7; Ghorbani, Krishnan and Xiao 2019 for Hessians of neural networks.

    >>> nodes, weights = lanczos_quadrature(lambda v: 3.0 * v, 5, iterations=4, probes=2, rng=np.random.default_rng(0))
    >>> float(nodes @ weights)
    3.0
    """
    from scipy.linalg import eigh_tridiagonal

    all_nodes, all_weights = [], []
    for _ in range(probes):
        start = rng.choice([-1.0, 1.0], size) / np.sqrt(size)
        diagonal, beside = _lanczos(multiply, start, min(iterations, size))
        nodes, vectors = eigh_tridiagonal(diagonal, beside)
        all_nodes.append(nodes)
        all_weights.append(vectors[0] ** 2 / probes)
    return np.concatenate(all_nodes), np.concatenate(all_weights)


def _lanczos(multiply: Callable[[Array], Array], start: Array, iterations: int) -> tuple[Array, Array]:
    """Return diagonal and subdiagonal of the tridiagonal matrix of H in the Krylov space of `start`."""
    basis = [start]
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(iterations):
        product = np.asarray(multiply(basis[-1]), np.float64)
        if not np.isfinite(product).all():
            raise InvalidArgument(
                "A product of the Hessian with a vector is not finite.", hint="check the loss at these parameters"
            )
        diagonal.append(float(basis[-1] @ product))
        size = np.linalg.norm(product)
        for _ in range(2):  # twice is enough to keep the basis orthogonal
            for vector in basis:
                product -= (vector @ product) * vector
        rest = np.linalg.norm(product)
        if rest <= 1e-10 * max(size, np.finfo(float).tiny) or len(diagonal) == iterations:
            break
        beside.append(float(rest))
        basis.append(product / rest)
    return np.array(diagonal), np.array(beside)


def curvatures_from_spectrum(
    multiply: Callable[[Array], Array],
    size: int,
    *,
    owner: str,
    learning_rate: float,
    clip_factor: float,
    iterations: int,
    probes: int,
    seed: int,
    steps: Steps | float,
) -> Curvatures:
    """Return the positive curvatures, times the learning rate, each weighted by curvature x density.

    These are the weights of the excess loss of a quadratic model: the sum over directions of curvature x variance / 2.
    """
    rate = _check.real(owner, "learning_rate", learning_rate, np.finfo(float).tiny, 1e300, "use the largest one")
    factor = _check.real(owner, "clip_factor", clip_factor, np.finfo(float).tiny, 1.0, "use 1 if nothing is clipped")
    count = _check.positive_integer(owner, "iterations", iterations, "20 is usual")
    number = _check.positive_integer(owner, "probes", probes, "4 is usual")
    nodes, weights = lanczos_quadrature(
        multiply, size, iterations=count, probes=number, rng=np.random.default_rng(seed)
    )
    kept = (nodes > NEGLIGIBLE * nodes.max(initial=0.0)) & (weights > 0.0)
    if not kept.any():
        raise InvalidArgument(
            "The loss has no direction of positive curvature at these parameters.",
            hint="estimate the spectrum after some steps on public data, or use the planner's default objective",
        )
    values = np.minimum(rate * factor * nodes[kept], MAX_RATE_CURVATURE)
    order = np.argsort(values)
    return Curvatures(values[order], (nodes[kept] * weights[kept])[order], steps)
