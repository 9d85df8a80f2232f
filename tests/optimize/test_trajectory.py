"""The trajectory term, the second term of `Curvatures`: its definition against dense algebra, and its gradient.

A test also checks that it prevents strategies with little noise at the end and far too much before.
"""

import numpy as np
import pytest

import antiphase as ap
from antiphase._objective import TRAINING, training_objective
from antiphase._optimize import AmplifiedProblem, quick_amplified_blt
from antiphase._optimize.curvature_error import banded_error, sampled_rows

pytestmark = pytest.mark.integration  # the searches take long

N = 10
SCHEDULE = ap.Momentum(0.6, np.linspace(1.0, 0.2, N))
OBJECTIVE = ap.Curvatures([0.05, 0.4], [1.0, 2.0], trajectory=0.7)


def by_definition(strategy, workload, objective):
    """Return J from its definition.

    The first term takes the last row for each curvature. The second takes all rows for curvature 0. Its weight is such
    that for independent noise, it is `objective.trajectory` times the first.
    """

    def at_end(noising):
        rows = [workload.with_curvature(h).matrix(N)[-1] @ noising for h in objective.values]
        return sum(p * row @ row for p, row in zip(objective.shares, rows, strict=True))

    def on_the_way(noising):
        return np.square(workload.matrix(N) @ noising).sum() / N

    noising, plain = strategy.noising(), np.eye(N)
    weight = objective.trajectory * at_end(plain) / on_the_way(plain)
    return at_end(noising) + weight * on_the_way(noising)


@pytest.mark.parametrize("workload", [ap.PrefixSum(), SCHEDULE])
@pytest.mark.parametrize(
    "strategy",
    [
        ap.strategies.Identity(N),
        ap.strategies.Toeplitz(np.array([1.0, 0.5, 0.2]), N),
        ap.strategies.BLT.from_decays([0.9, 0.5], [0.7, 0.2], N),
        ap.strategies.Tree(N),
    ],
)
def test_error_is_that_of_the_definition(strategy, workload):
    found = ap.error(strategy, workload, OBJECTIVE).value
    assert found**2 == pytest.approx(by_definition(strategy, workload, OBJECTIVE), rel=1e-10)


def test_weight_one_counts_both_equally_for_independent_noise():
    plain, twice = (ap.Curvatures([0.1], trajectory=t) for t in (0.0, 1.0))
    errors = [ap.error(ap.strategies.Identity(N), SCHEDULE, which).value for which in (plain, twice)]
    assert errors[1] ** 2 == pytest.approx(2 * errors[0] ** 2)


def test_gradient_for_banded_strategies():
    rng = np.random.default_rng(0)
    columns = np.where(np.add.outer(np.arange(N), np.arange(3)) < N, 1.0, 0.0) * (
        np.array([1.0, 0.5, 0.2]) + 0.1 * rng.normal(size=(N, 3))
    )
    function, gradient = banded_error(SCHEDULE, OBJECTIVE, N, 3), np.empty((N, 3))
    function(columns, 1.0, gradient)
    direction, scratch, step = rng.normal(size=(N, 3)) * (columns != 0), np.empty((N, 3)), 1e-6
    ahead, behind = (function(columns + sign * step * direction, 1.0, scratch) for sign in (1, -1))
    assert (gradient * direction).sum() == pytest.approx((ahead - behind) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("family", ["toeplitz", "blt", "banded-inverse", "banded", "dense"])
def test_every_family_states_the_loss_under_the_whole_objective(family):
    options = {"toeplitz": {"bands": 3}, "blt": {"buffers": 1}, "banded-inverse": {"bands": 2}, "banded": {"bands": 4}}
    once = ap.SingleParticipation()
    found = ap.optimize(
        family, steps=N, participation=once, workload=SCHEDULE, objective=OBJECTIVE, **options.get(family, {})
    )
    assert found.loss == pytest.approx(ap.loss(found.strategy, SCHEDULE, once, OBJECTIVE), rel=1e-6)


def test_dense_is_as_good_as_all_bands_and_above_its_bound():
    once = ap.SingleParticipation()
    dense, banded = (
        ap.optimize(family, steps=N, participation=once, workload=SCHEDULE, objective=OBJECTIVE, **options)
        for family, options in (("dense", {}), ("banded", {"bands": N}))
    )
    assert dense.loss <= banded.loss * (1 + 5e-3)
    assert dense.lower_bound <= dense.loss <= dense.lower_bound * (1 + 5e-3)


def test_free_columns_do_not_drown_early_steps():
    """Without the trajectory term they do: several times the noise of a Toeplitz strategy over the run."""
    steps, promise = 48, ap.FixedEpochs(6, 8)
    last = ap.Curvatures.log_uniform(1e-3, 1.0, 5)
    both = ap.Curvatures.log_uniform(1e-3, 1.0, 5, trajectory=1.0)

    def rms_noise(family, objective):
        made = ap.optimize(family, steps=steps, participation=promise, objective=objective, bands=8)
        return ap.loss(made.strategy, ap.PrefixSum(), promise)

    assert rms_noise("banded", last) > 3 * rms_noise("toeplitz", last)
    assert rms_noise("banded", both) < 1.2 * rms_noise("toeplitz", last)


def test_the_name_training_stands_for_the_documented_curvatures():
    strategy, workload = ap.strategies.Toeplitz(np.array([1.0, 0.5]), N), ap.PrefixSum()
    assert ap.error(strategy, workload, "training").value == ap.error(strategy, workload, TRAINING).value
    assert ap.Curvatures.log_uniform(1e-3, 0.3, 13, 0.25, trajectory=1.0) == TRAINING


@pytest.mark.parametrize("rate", [1e-9, 1e-3, 1.0, 50.0])
def test_curvatures_follow_the_learning_rate_as_far_as_training_converges(rate):
    values = training_objective(rate).values
    assert values.max() == pytest.approx(0.3 * min(max(rate, 1e-4), 3.0))
    assert values.max() / values.min() == pytest.approx(300.0)
    assert values.max() < 2.0


@pytest.mark.parametrize("workload", [ap.PrefixSum(), ap.Momentum(0.6), SCHEDULE])
@pytest.mark.parametrize(("family", "options"), [("toeplitz", {"bands": 3}), ("blt", {"buffers": 1})])
def test_searches_minimise_the_whole_objective(family, options, workload):
    """A brute-force search over the same two free numbers finds nothing better than 0.3 %."""
    flat = ap.Curvatures([1e-4], trajectory=1.0)  # the last iterate alone would be far from this optimum
    once = ap.SingleParticipation()
    found = ap.optimize(family, steps=N, participation=once, workload=workload, objective=flat, **options)
    best = np.inf
    for a in np.linspace(0.05, 0.99, 48):
        for b in np.linspace(0.0, 0.99, 48):
            made = ap.strategies.Toeplitz([1.0, a, a * b], N)
            if family == "blt":
                made = ap.strategies.BLT.from_decays([a], [a * b], N)
            best = min(best, ap.loss(made, workload, once, flat))
    assert found.loss <= best * (1 + 3e-3)
    last = ap.optimize(
        family, steps=N, participation=once, workload=workload, objective=flat.destination, **options
    ).strategy
    assert found.loss < ap.loss(last, workload, once, flat)


def test_sampled_rows_are_rows_of_the_workload():
    n = 40
    workload = ap.Momentum(0.6, np.linspace(1.0, 0.2, n))
    rows, matrix = sampled_rows(workload, n, n), workload.matrix(n)
    ends = [int(np.flatnonzero(row)[-1]) for row in rows.T]
    assert len(ends) == 8
    np.testing.assert_allclose(rows.T * np.sqrt(8), matrix[ends], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.diff(ends), 5)
    over_all, over_some = np.square(matrix).sum() / n, np.square(rows).sum()
    assert over_some == pytest.approx(over_all, rel=0.02)


def test_the_quick_search_in_bins_is_nearly_as_good_as_the_full_one():
    """Both are compared by calibrated noise, which neither search sees."""
    n, bins, budget = 60, ap.BallsInBins(4, 15), ap.Budget(4.0, 1e-5)
    workload, objective = ap.Momentum(0.9, np.linspace(1.0, 0.2, n)), training_objective(1.0)
    full = ap.optimize(
        "blt", steps=n, participation=bins, workload=workload, objective=objective, budget=budget, buffers=2
    )
    quick, estimate = quick_amplified_blt(AmplifiedProblem(n, bins, workload, objective, budget), buffers=2)
    noise = ap.calibrate(quick, bins, budget).mechanism.noise_std
    loss = noise * ap.error(quick, workload, objective).value
    assert loss == pytest.approx(full.loss, rel=0.01)
    assert estimate == pytest.approx(loss, rel=0.03)
