"""Estimate the spectrum of a Hessian by stochastic Lanczos quadrature, from Hessian-vector products only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._objective import Curvatures, Steps

NEGLIGIBLE = 1e-6  # curvatures below this fraction of the largest one are discarded as rounding errors

MAX_RATE_CURVATURE = 1.9  # limit on learning rate x curvature; plain SGD diverges at 2

RATE_HINT = "with a schedule, use its largest learning rate"


def lanczos_quadrature(
    multiply: Callable[[Array], Array], size: int, *, iterations: int, probes: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return nodes and weights that approximate the spectral density of a symmetric matrix H.

    For a smooth function f, trace f(H) / size is about sum_i weight_i f(node_i). The weights add up to 1. Each probe v
    is a random vector with entries +1 and -1. The Lanczos recursion, with full reorthogonalization, starts from v. It
    gives a Gauss quadrature for v^T f(H) v / size that is exact for polynomials f of degree up to 2 x iterations - 1.

    Args:
        multiply: function that returns H v for a vector v.
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
    """Return the diagonal and the subdiagonal of the Lanczos tridiagonal matrix of H, starting from `start`."""
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
        for _ in range(2):  # two passes are enough to keep the basis orthogonal
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
    """Return `Curvatures` estimated from the positive part of the spectrum of a Hessian H.

    Each value is curvature x learning_rate x clip_factor, but at most 1.9. Its weight is curvature x spectral density.
    With these weights, the squared error under the objective is proportional to the excess loss that the noise causes
    in a quadratic model. This excess loss is the sum, over all directions, of curvature / 2 times the variance of the
    noise in the parameters.

    Args:
        multiply: function that returns H v for a vector v.
        size: number of rows of H.
        owner: name of the calling function, for error messages.
        learning_rate: the largest learning rate.
        clip_factor: factor by which clipping scales the mean gradient, in (0, 1].
        iterations: Lanczos iterations per probe.
        probes: number of random vectors to average over.
        seed: seed of the random vectors.
        steps: the steps over which noise is measured, as for `Curvatures`.
    """
    rate = _check.real(owner, "learning_rate", learning_rate, np.finfo(float).tiny, 1e300, RATE_HINT)
    factor = _check.real(owner, "clip_factor", clip_factor, np.finfo(float).tiny, 1.0, "use 1 if nothing is clipped")
    count = _check.positive_integer(owner, "iterations", iterations, "use for example 20")
    number = _check.positive_integer(owner, "probes", probes, "use for example 4")
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
