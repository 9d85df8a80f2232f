"""Chooses how a canary (artificial example) takes part, so that it leaks as much as the participation allows.

A pattern u describes in which steps a canary takes part. Entry t is the sign of its contribution in step t, or 0 if it
does not take part in step t.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._participation import (
    BallsInBins,
    Deterministic,
    EveryStep,
    FixedEpochs,
    MinSeparation,
    Participation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase.strategies import Strategy

SWEEPS = 6


def worst_pattern(strategy: Strategy, participation: Deterministic) -> Array:
    """Return a pattern u with large |C u|, as defined in the module's docstring.

    No pattern leaks more in these cases:

    - `SingleParticipation`,
    - `EveryStep` and `FixedEpochs`, if no entry of C^T C is negative,
    - `MinSeparation`, if the columns of C are orthogonal and the number of participations is not limited.

    In all other cases, other patterns may leak more. A canary that leaks less than possible makes an audit weaker,
    never wrong.

    Args:
        strategy: strategy matrix, C.
        participation: participation that the pattern must satisfy.
    """
    n = strategy.steps
    gram = _gram(strategy)
    found = max(_candidates(gram, participation, n), key=lambda u: _size(gram, u))
    return best_signs(gram, found)


def best_signs(gram: Array, used: Array) -> Array:
    """Return the steps `used` with signs for which u^T X u is large, where X is `gram`.

    Changes one sign at a time, as long as this increases u^T X u. If no entry of X is negative, all signs are +1.
    """
    u = np.abs(used)
    if (gram >= 0.0).all():
        return u
    steps = np.flatnonzero(u)
    for _ in range(SWEEPS):
        before = u.copy()
        for t in steps:
            pull = gram[t] @ u - gram[t, t] * u[t]
            u[t] = -1.0 if pull < 0.0 else 1.0
        if np.array_equal(before, u):
            break
    return u


def canary_signs(strategy: Strategy, participation: Participation) -> Array:
    """Return, for each step, the sign of a canary's contribution if it takes part in the step."""
    if isinstance(participation, BallsInBins):
        gram = _gram(strategy)
        same_bin = np.arange(strategy.steps) % participation.steps_per_epoch
        return best_signs(gram * (same_bin[:, None] == same_bin[None, :]), np.ones(strategy.steps))
    if isinstance(participation, Deterministic):
        signs = worst_pattern(strategy, participation)
        return np.where(signs == 0.0, 1.0, signs)
    # The columns of C for the steps of one canary are nonzero in different rows, so |C u| does not depend on signs.
    return np.ones(strategy.steps)


def _size(gram: Array, u: Array) -> float:
    """Return u^T |X| u, where |X| holds the absolute values of the entries of X = C^T C, which is `gram`.

    If no entry of X is negative, this is |C u|^2 for the best signs of u.
    """
    steps = np.flatnonzero(u)
    return float(np.abs(gram[np.ix_(steps, steps)]).sum())


def _gram(strategy: Strategy) -> Array:
    C = strategy.encoder()
    return C.T @ C


def _candidates(gram: Array, participation: Deterministic, n: int) -> list[Array]:
    if isinstance(participation, EveryStep):
        return [np.ones(n)]
    if isinstance(participation, (SingleParticipation, FixedEpochs)):
        return [_flags(pattern, n) for pattern in participation.patterns(n)]
    if isinstance(participation, ShuffledEpochs):
        return [_ascent(gram, participation, n)]
    assert isinstance(participation, MinSeparation)
    b, k = participation.separation, participation.largest_count(n)
    regular = [_flags(range(start, n, b), n) for start in range(min(b, n))]
    regular = [_flags(np.flatnonzero(u)[:k], n) for u in regular] + [_flags(np.flatnonzero(u)[-k:], n) for u in regular]
    return [*regular, _heaviest(np.diag(gram), b, k)]


def _heaviest(weights: Array, separation: int, most: int) -> Array:
    """Return a pattern whose steps have a large sum of weights, with at most `most` steps, `separation` or more apart.

    If `most` is no restriction, dynamic programming finds the largest sum. Otherwise, steps are chosen greedily.
    """
    n = len(weights)
    if most >= -(-n // separation):
        best = np.zeros(n + 1)
        for t in range(n - 1, -1, -1):
            best[t] = max(best[t + 1], weights[t] + best[min(n, t + separation)])
        u, t = np.zeros(n), 0
        while t < n:
            if weights[t] + best[min(n, t + separation)] >= best[t + 1]:
                u[t] = 1.0
                t += separation
            else:
                t += 1
        return u
    order = np.argsort(-weights, kind="stable")
    taken: list[int] = []
    for t in order:
        if len(taken) < most and all(abs(int(t) - s) >= separation for s in taken):
            taken.append(int(t))
    return _flags(taken, n)


def _ascent(gram: Array, participation: ShuffledEpochs, n: int) -> Array:
    """Return a pattern with one step per epoch. Replaces the step of one epoch at a time by a better one."""
    b = participation.steps_per_epoch
    epochs = [range(start, min(start + b, n)) for start in range(0, n, b)]
    chosen = [max(steps, key=lambda t: gram[t, t]) for steps in epochs]
    for _ in range(SWEEPS):
        before = list(chosen)
        for i, steps in enumerate(epochs):
            others = chosen[:i] + chosen[i + 1 :]
            chosen[i] = max(steps, key=lambda t: gram[t, t] + 2.0 * float(np.abs(gram[t, others]).sum()))
        if before == chosen:
            break
    return _flags(chosen, n)


def _flags(steps: object, n: int) -> Array:
    u = np.zeros(n)
    u[list(steps)] = 1.0  # type: ignore[call-overload]
    return u


def norms(signals: Array) -> Array:
    """Return the norm of each column."""
    return np.sqrt(np.einsum("tc,tc->c", signals, signals))


def is_square(strategy: Strategy) -> bool:
    """Return whether C is square. If it is, then C y = C x + z for the released sums y = x + N z."""
    return strategy.rows == strategy.steps


def whiten(strategy: Strategy, released: Array) -> Array:
    """Return W y for released sums y, where W whitens the noise: W N z is white, with the variance of z.

    For a square C, W is C itself. If C has more rows than columns, as for a tree, the released sums do not determine
    all rows of z. W is then the inverse Cholesky factor of N N^T.

    Args:
        strategy: strategy matrix, C.
        released: one row for each step.
    """
    if is_square(strategy):
        return strategy.multiply(released)
    from scipy.linalg import solve_triangular

    N = strategy.noising()
    return np.asarray(solve_triangular(np.linalg.cholesky(N @ N.T), released, lower=True))


def largest_signal(strategy: Strategy, participation: Participation) -> float:
    """Return |W u|, where u is the pattern from `worst_pattern` and W is the matrix in `whiten`.

    This is a canary's signal in standard deviations of the noise, if noise_std is 1.
    """
    u = worst_pattern(strategy, participation.worst_case)
    return math.sqrt(float((whiten(strategy, u[:, None]) ** 2).sum()))
