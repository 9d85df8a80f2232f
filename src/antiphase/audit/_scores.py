"""Attack scores: log-likelihood ratios of the two distributions of a release that the privacy proof compares.

One distribution is for a present canary (artificial example), the other one for an absent canary. Let y be the released
sums along the canary's direction. They are whitened: w = W y / noise_std, where the matrix W makes the noise white (see
`whiten` in `_canary.py`). The noise in w then consists of independent standard normals. A canary with contributions u
adds a = W u / noise_std to w. In the table, a^2 is the squared norm of a:

| participation | score of a canary |
|---|---|
| deterministic | <a, w> - a^2 / 2; under replace adjacency, 2 <a, w> |
| Poisson, cyclic Poisson | sum of log(1 - q + q exp(<a_t, w> - a_t^2 / 2)) over the steps t of the canary's group |
| balls in bins | log of the mean over the bins i of exp(<a_i, w> - a_i^2 / 2) |
| Poisson with a minimum separation | log of the mean over all patterns p of exp(<a_p, w> - a_p^2 / 2) |
| fixed size (under replace adjacency) | sum of log(M(a_t) / M(-a_t)) over the steps t of the canary's group |

Here q is the sampling rate, and a_t is the contribution to w of step t alone. The group of a canary is the set of steps
in which it can be sampled. A bin is a set of steps, and a_i is the contribution of the steps in bin i. A pattern p is a
possible set of all steps in which a canary takes part, and a_p is the contribution of these steps. The mean over
patterns weights each pattern by its probability. In the last row, M(a) = 1 - q + q exp(<a, w> - a^2 / 2).

By the Neyman-Pearson lemma, thresholds on these scores are the best tests of the two distributions. The audit's lower
bounds on epsilon are also valid for any other score, if it does not use the canary's coin. (The coin decides whether
the canary is present.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._accounting import Mechanism
from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    Deterministic,
    FixedSize,
    Poisson,
    PoissonMinSeparation,
)
from antiphase._workload import Workload
from antiphase.audit._canary import canary_signs, norms, whiten
from antiphase.audit._patterns import random_patterns
from antiphase.audit._release import Flags, Release

LARGEST_CHUNK = 4_000_000  # maximum number of values that are simulated at once
REFERENCE_VALUES = 30_000_000


@dataclass(frozen=True)
class Scores:
    """The scores of all canaries.

    Args:
        ratios: log-likelihood ratio of each canary, shape (canaries,).
        values: projection of the release on each canary's contributions, in standard deviations of the noise.
        signals: mean of each of the `values` if the canary is present, minus its mean if the canary is absent. This is
            the size of the canary's contributions or, under replace adjacency, twice their size.
        present: for each canary, True if its coin flip put it into the data.
    """

    ratios: Array
    values: Array
    signals: Array
    present: Flags

    @property
    def inside(self) -> Array:
        """Ratios of the canaries that are present."""
        return self.ratios[self.present]

    @property
    def outside(self) -> Array:
        """Ratios of the canaries that are absent."""
        return self.ratios[~self.present]


def scores(mechanism: Mechanism, release: Release) -> Scores:
    """Return the white-box scores of the canaries, computed from the released sums of all steps.

    Args:
        mechanism: mechanism that the program claims to run.
        release: the sums that the program released.

    >>> import antiphase as ap
    >>> from antiphase.audit import simulate
    >>> mechanism = ap.Mechanism(ap.strategies.Identity(4), ap.EveryStep(), noise_std=1.0)
    >>> found = scores(mechanism, simulate(mechanism, canaries=1000, secret=ap.Secret.insecure(1)))
    >>> bool(found.inside.mean() > found.outside.mean() + 3.0)
    True
    """
    w = whiten(mechanism.strategy, release.projections) / mechanism.noise_std
    a = _whitened_signals(mechanism, release.used)
    size = norms(a)
    safe = np.where(size > 0.0, size, 1.0)
    products = np.einsum("tc,tc->c", np.broadcast_to(a, w.shape), w)
    signals = np.broadcast_to(size, products.shape) * (2.0 if mechanism.adjacency == "replace" else 1.0)
    ratios = log_ratios(mechanism, w, release.used, a)
    return Scores(ratios, products / safe, np.array(signals), release.present)


def log_ratios(mechanism: Mechanism, w: Array, used: Array, a: Array | None = None) -> Array:
    """Return the log-likelihood ratio of each column of `w`.

    Args:
        mechanism: mechanism that the program claims to run.
        w: whitened release in standard deviations of the noise, shape (rows, canaries).
        used: sign of each canary's contribution in each step, 0 if it does not take part, shape (steps, canaries). For
            random participations, `used` only determines the canary's group (the steps in which it can be sampled).
        a: whitened contributions W u / noise_std of the canaries; None to compute them.
    """
    given = mechanism.participation
    if isinstance(given, Deterministic):
        a = _whitened_signals(mechanism, used) if a is None else a
        products = np.einsum("tc,tc->c", np.broadcast_to(a, w.shape), w)
        if mechanism.adjacency == "replace":
            return 2.0 * products
        return products - norms(a) ** 2 / 2.0
    if isinstance(given, BallsInBins):
        return _bins_ratios(mechanism, given, w)
    if isinstance(given, PoissonMinSeparation):
        return _separated_ratios(mechanism, given, w)
    if isinstance(given, (Poisson, CyclicPoisson, FixedSize)):
        return _step_ratios(mechanism, w, _groups_of(used, given.sampling_groups or 1))
    raise NotProved(f"There are no scores for {type(given).__name__}.", hint="use one of antiphase's participations")


def final_model_scores(release: Release, workload: Workload) -> Array:
    """Return the black-box score of each canary: how far the final model moved along the direction of the canary.

    The final model is the last row of the workload A applied to the released sums. An adversary without access to
    individual steps sees nothing else. Pass the scores of present and absent canaries to `counting_bound`. If the final
    model is not such a linear function, use any score that is high if a canary looks present, such as the negative loss
    on the canary.

    Args:
        release: the released sums.
        workload: optimizer that turns released sums into models.
    """
    return np.asarray(workload.matrix(release.steps)[-1] @ release.projections)


def sampling_rate(mechanism: Mechanism) -> float:
    """Return the probability that a canary takes part in a step of its group."""
    given = mechanism.participation
    if isinstance(given, (Poisson, CyclicPoisson)):
        return given.rate
    assert isinstance(given, FixedSize)
    assert mechanism.examples is not None
    return given.batch_size / (mechanism.examples // given.groups)


def reference_scores(mechanism: Mechanism, signals: Array, count: int, seed: int) -> tuple[Array, Array]:
    """Return scores of present and of absent canaries, simulated for the claimed mechanism.

    Thresholds are chosen with these scores, not with the data. The scores depend only on the claim and on the sizes of
    the contributions, never on coins or released values.

    Args:
        mechanism: mechanism that the program claims to run.
        signals: sizes of the canaries' contributions, for deterministic participations.
        count: number of scores of present canaries, and of absent canaries; fewer if there are many steps.
        seed: seed of the simulation.
    """
    rng = np.random.default_rng(seed)
    if isinstance(mechanism.participation, Deterministic):
        mu, z = rng.choice(signals, count), rng.standard_normal((2, count))
        # The formulas also hold under replace adjacency: scores are then 2 <a, w> for w = +-a + noise, and mu is 2 |a|.
        return mu**2 / 2.0 + mu * z[0], -(mu**2) / 2.0 + mu * z[1]
    n = mechanism.strategy.steps
    count = min(count, max(20_000, REFERENCE_VALUES // n))
    chunk = max(1, LARGEST_CHUNK // n)
    signs = canary_signs(mechanism.strategy, mechanism.participation)
    found: tuple[list[Array], list[Array]] = ([], [])
    for start in range(0, count, chunk):
        size = min(chunk, count - start)
        used = random_patterns(mechanism, size, rng) * signs[:, None]
        a = _whitened_signals(mechanism, used)
        for present, into in zip((1.0, -1.0 if mechanism.adjacency == "replace" else 0.0), found, strict=True):
            into.append(log_ratios(mechanism, present * a + rng.standard_normal(a.shape), used, a))
    return np.concatenate(found[0]), np.concatenate(found[1])


def _whitened_signals(mechanism: Mechanism, used: Array) -> Array:
    """Return W u / noise_std. If all canaries have the same pattern, the result has a single column."""
    if used.shape[1] > 1 and (used == used[:, :1]).all():
        used = used[:, :1]
    return whiten(mechanism.strategy, used) / mechanism.noise_std


def _groups_of(used: Array, groups: int) -> Array:
    """Return the index of each canary's group.

    The first step in which a canary takes part determines its group. For a canary that never takes part, return 0.
    """
    return np.argmax(used != 0.0, axis=0) % groups


def _column_products(mechanism: Mechanism, w: Array) -> tuple[Array, Array]:
    """Return <a_t, w> for each step and canary, and |a_t|^2 for each step.

    Here a_t = W e_t / noise_std, and e_t is the unit vector of step t.
    """
    strategy = mechanism.strategy
    columns = strategy.band_columns()
    if columns is not None:
        n, products = strategy.steps, np.zeros((strategy.steps, w.shape[1]))
        scaled = columns / mechanism.noise_std
        for r in range(scaled.shape[1]):
            products[: n - r] += scaled[: n - r, r, None] * w[r:]
        squares = sum(np.where(np.arange(n) + r < n, scaled[:, r], 0.0) ** 2 for r in range(scaled.shape[1]))
        return products, np.asarray(squares)
    matrix = whiten(strategy, np.eye(strategy.steps)) / mechanism.noise_std
    return matrix.T @ w, np.einsum("rt,rt->t", matrix, matrix)


def _step_ratios(mechanism: Mechanism, w: Array, group: Array) -> Array:
    groups = mechanism.participation.sampling_groups or 1
    q = sampling_rate(mechanism)
    products, squares = _column_products(mechanism, w)
    steps = np.arange(mechanism.strategy.steps) % groups
    out = np.zeros(w.shape[1])
    for g in range(groups):
        mine = group == g
        if not mine.any():
            continue
        x, half = products[steps == g][:, mine], squares[steps == g, None] / 2.0
        out[mine] = _log_mixture(x - half, q).sum(axis=0)
        if mechanism.adjacency == "replace":
            out[mine] -= _log_mixture(-x - half, q).sum(axis=0)
    return out


def _log_mixture(logs: Array, q: float) -> Array:
    """Return log(1 - q + q exp(logs))."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-q), math.log(q) + logs)


def _bins_ratios(mechanism: Mechanism, given: BallsInBins, w: Array) -> Array:
    from scipy.special import logsumexp

    n, b = mechanism.strategy.steps, given.steps_per_epoch
    indicator = np.zeros((n, b))
    indicator[np.arange(n), np.arange(n) % b] = canary_signs(mechanism.strategy, given)
    bins = whiten(mechanism.strategy, indicator) / mechanism.noise_std  # column i is a_i
    logs = bins.T @ w - (norms(bins) ** 2 / 2.0)[:, None]
    return np.asarray(logsumexp(logs, axis=0)) - math.log(b)


def _separated_ratios(mechanism: Mechanism, given: PoissonMinSeparation, w: Array) -> Array:
    from antiphase._kernels import separated_log_means

    columns = mechanism.strategy.band_columns()
    if columns is None:
        raise NotProved("Scores under PoissonMinSeparation need a banded strategy.", hint="use Banded or Toeplitz")
    n = mechanism.strategy.steps
    inside = np.arange(n)[:, None] + np.arange(columns.shape[1])[None, :] < n
    scaled = np.where(inside, columns, 0.0) / mechanism.noise_std
    out, squares = np.empty((1, w.shape[1])), np.einsum("tr,tr->t", scaled, scaled)
    separated_log_means(
        np.ascontiguousarray(scaled.T),
        given.separation,
        given.rate,
        given.warm_start,
        np.ones(1),
        np.ascontiguousarray(-squares[None, :] / 2.0),
        np.ascontiguousarray(w.T),
        out,
    )
    return out[0]
