"""The error in directions of several curvatures against dense algebra, and its special cases."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase._objective import Curvatures
from antiphase.strategies import BLT, BandedInverse, Identity, Toeplitz, Tree
from tests.catalog import every_strategy, every_workload

VALUES, WEIGHTS = [0.0, 0.01, 0.3, 1.0], [1.0, 2.0, 0.5, 3.0]
STEPS = ("last", "all", 0.3)


def brute_force(C, A, objective):
    """J from its definition."""
    n, shares = C.steps, objective.weights / objective.weights.sum()
    noise = [A_h.matrix(n) @ C.noising() for A_h in objective.workloads(A)]
    if objective.steps == "all":
        return float(shares @ [np.square(rows).sum() / n for rows in noise])
    averaged = 1 if objective.steps == "last" else max(1, round(objective.steps * n))
    return float(shares @ [np.square(rows[n - averaged :].mean(axis=0)).sum() for rows in noise])


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, *(pytest.param(n, marks=pytest.mark.integration) for n in (12, 33))])
def test_error_equals_dense_algebra(n, steps):
    objective = Curvatures(VALUES, WEIGHTS, steps)
    for name, C in every_strategy(n):
        for workload, A in every_workload(n):
            found = ap.error(C, A, objective)
            assert found.value**2 == pytest.approx(brute_force(C, A, objective), rel=1e-8), (name, workload)
            if isinstance(steps, str):
                counted = found.per_step[n - objective.counted_steps(n) :]
                assert found.value**2 == pytest.approx(counted.mean(), rel=1e-8), (name, workload)


@pytest.mark.parametrize("n", [7, 12])
def test_flat_directions_over_all_steps_are_the_rms(n):
    for _, C in every_strategy(n):
        for _, A in every_workload(n):
            found, old = ap.error(C, A, Curvatures([0.0], steps="all")), ap.error(C, A)
            assert found.value == old.rms == old.value  # bit for bit
            assert ap.error(C, A, "max").value == old.max


LONG = {
    "identity": Identity(100_000),
    "toeplitz": Toeplitz(Toeplitz.square_root(16).coefficients, 100_000),
    "toeplitz-300": Toeplitz.square_root(100_000, 300),
    "inverse": BandedInverse.square_root(8, 100_000),
    "blt": BLT([0.999, 0.9], [0.01, 0.1], 100_000),
    "normalized": Toeplitz(Toeplitz.square_root(16).coefficients, 100_000, column_normalized=True),
    "tree": Tree(100_000),
}


@pytest.mark.parametrize("name", LONG)
def test_long_runs_by_rows_and_by_closed_sums_agree(name):
    """A schedule that is constant in all but name takes the path of the rows."""
    C, objective = LONG[name], Curvatures.log_uniform(1e-3, 1.0, 5)
    rates = np.full(C.steps, 0.5)
    rates[0] = np.nextafter(0.5, 0.0)
    closed, rows = ap.Momentum(0.9, np.full(C.steps, 0.5)), ap.Momentum(0.9, rates)
    assert ap.error(C, closed, objective).value == pytest.approx(ap.error(C, rows, objective).value, rel=1e-9)


def test_average_of_a_long_run_is_that_of_the_noise_it_averages():
    """For independent noise and no momentum, step t enters the mean of the last m iterates once it has come."""
    n, m = 100_000, 20_000
    found = ap.error(Identity(n), ap.PrefixSum(), Curvatures([0.0], steps=0.2)).value ** 2
    assert found == pytest.approx(n - m + sum((k / m) ** 2 for k in range(1, m + 1)), rel=1e-9)


def test_averages_have_less_noise_than_their_iterates():
    C, A = LONG["blt"], ap.Momentum(0.9)
    average, last = (ap.error(C, A, Curvatures([1e-2], steps=steps)).value for steps in (0.2, "last"))
    assert average < 0.2 * last


@pytest.mark.parametrize("steps", ["last", 0.25])
def test_simulated_models_have_the_predicted_variance(steps):
    """Heavy-ball SGD on a quadratic, step by step, with the noise of a BLT: not the algebra of the library."""
    n, h, beta, runs = 60, 0.05, 0.8, 40_000
    C, rates = BLT([0.9], [0.5], n), np.linspace(1.0, 0.3, n)
    noise = C.noising() @ np.random.default_rng(0).standard_normal((n, runs))
    theta, momentum, kept = np.zeros(runs), np.zeros(runs), []
    for t in range(n):
        momentum = beta * momentum + h * theta + noise[t]
        theta = theta - rates[t] * momentum
        kept.append(theta)
    model = kept[-1] if steps == "last" else np.mean(kept[-15:], axis=0)
    found = ap.error(C, ap.Momentum(beta, rates), Curvatures([h], steps=steps)).value ** 2
    assert np.var(model) == pytest.approx(found, rel=0.04)


def test_one_direction_of_plain_sgd_forgets():
    """Variance of an autoregression: sum over the past of (1 - h)^(2 t), whatever the number of steps."""
    h = 0.01
    expected = 1.0 / (1.0 - (1.0 - h) ** 2)
    assert ap.error(Identity(10**6), ap.PrefixSum(), Curvatures([h])).value ** 2 == pytest.approx(expected, rel=1e-12)


def test_a_million_steps_with_the_whole_mixture():
    C, objective = Toeplitz(Toeplitz.square_root(32).coefficients, 10**6), Curvatures.log_uniform(1e-3, 1.0)
    short = Toeplitz(C.coefficients, 10**5)
    long_, cut = ap.error(C, ap.Momentum(0.9), objective).value, ap.error(short, ap.Momentum(0.9), objective).value
    assert math.isclose(long_, cut, rel_tol=1e-12)


def test_a_billion_steps_of_a_blt_stop_where_the_response_has_died_out():
    objective, A = Curvatures([0.01, 0.5]), ap.Momentum(0.9)
    found, cut = (ap.error(BLT([0.999, 0.9], [0.01, 0.1], n), A, objective).value for n in (10**9, 10**5))
    assert math.isclose(found, cut, rel_tol=1e-12)


def test_loss_is_sensitivity_times_error():
    C, A, promise = Toeplitz([1.0, 0.5], 12), ap.Momentum(0.9), ap.FixedEpochs(3, 4)
    objective = Curvatures([0.1, 0.2])
    expected = ap.sensitivity(C, promise).value * ap.error(C, A, objective).value
    assert ap.loss(C, A, promise, objective) == expected


def test_scaling_the_weights_changes_nothing():
    C, A = Toeplitz([1.0, 0.5], 12), ap.PrefixSum()
    one, other = Curvatures([0.1, 0.2], [1.0, 3.0]), Curvatures([0.1, 0.2], [2.0, 6.0])
    assert ap.error(C, A, one).value == ap.error(C, A, other).value


def test_curvatures_are_stored_as_given():
    for steps in STEPS:
        objective = Curvatures(VALUES, WEIGHTS, steps)
        assert ap.from_json(ap.to_json(objective)) == objective
    assert Curvatures([0.1, 0.2]) == Curvatures([0.1, 0.2], [1.0, 1.0], "last")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "non-empty"),
        (([-0.1],), "non-negative"),
        (([0.1], [1.0, 2.0]), "of length 1, like values"),
        (([0.1], [0.0]), "positive"),
        (([0.1], [1.0], "first"), "'all', 'last' or a fraction"),
        (([0.1], [1.0], 0.0), "finite number"),
        (([0.1], [1.0], 1.5), "finite number"),
        (([0.1], [1.0], True), "finite number"),
    ],
)
def test_bad_curvatures_are_refused(arguments, message):
    with pytest.raises(ap.InvalidArgument, match=message):
        Curvatures(*arguments)


def test_a_direction_in_which_sgd_diverges_is_refused():
    with pytest.raises(ap.InvalidArgument, match="diverges"):
        ap.error(Identity(4), ap.PrefixSum(), Curvatures([2.0]))


def test_an_unknown_objective_is_refused():
    for call in (
        lambda o: ap.error(Identity(4), ap.PrefixSum(), o),
        lambda o: ap.loss(Identity(4), ap.PrefixSum(), ap.SingleParticipation(), o),
    ):
        with pytest.raises(ap.InvalidArgument, match="'rms', 'max' or Curvatures"):
            call("mean")
