"""Optimisation under amplification: gradients, an optimum by brute force, and comparison with plain optimisation.

A strategy optimised for amplification must never need more noise than one optimised without.
"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

import antiphase as ap
from antiphase._montecarlo import bins_gram
from antiphase._optimize.amplified import optimizer as module
from antiphase._optimize.amplified.families import BandedFamily, BLTFamily, ToeplitzFamily
from antiphase._optimize.amplified.noise_estimate import NoiseEstimator
from antiphase._optimize.amplified.optimizer import toeplitz_starts
from antiphase._optimize.amplified.weighted_gram import BandedWeightedGram, BLTWeightedGram, ToeplitzWeightedGram
from antiphase.strategies import BLT, Banded, Toeplitz
from tests.montecarlo.oracle import integrated_delta

pytestmark = pytest.mark.integration  # the searches take long

BUDGET = ap.Budget(1.0, 1e-5)
SMALL = ap.BallsInBins(4, 8)


def weights(b: int) -> np.ndarray:
    root = np.random.default_rng(b).random((b, b + 2))
    return root @ root.T


def numeric(function, x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    return np.array([(function(x + h * e) - function(x - h * e)) / (2.0 * h) for e in np.eye(len(x))])


@pytest.mark.parametrize(("n", "b", "bands"), [(12, 4, 3), (13, 4, 13), (8, 4, 8), (5, 7, 5), (6, 1, 3)])
def test_toeplitz_modes(n, b, bands):
    H, c = weights(b), np.random.default_rng(1).normal(size=bands)
    square = ToeplitzWeightedGram(H, n)
    value, gradient = square(c)
    gram = bins_gram(Toeplitz(c, n), ap.BallsInBins(-(-n // b), b))
    assert value == pytest.approx((H * gram).sum(), rel=1e-12)
    np.testing.assert_allclose(gradient, numeric(lambda x: square(x)[0], c), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("n", "b", "bands"), [(12, 4, 3), (13, 4, 4), (5, 7, 5)])
def test_banded_modes(n, b, bands):
    H, rng = weights(b), np.random.default_rng(2)
    columns = rng.normal(size=(n, bands)) * (np.add.outer(np.arange(n), np.arange(bands)) < n)
    square = BandedWeightedGram(H, n, bands)
    value, gradient = square(columns)
    gram = bins_gram(Banded(columns), ap.BallsInBins(-(-n // b), b))
    assert value == pytest.approx((H * gram).sum(), rel=1e-12)
    inside = columns != 0.0
    found = numeric(lambda x: square(x.reshape(n, bands))[0], columns.ravel()).reshape(n, bands)
    np.testing.assert_allclose(gradient[inside], found[inside], rtol=1e-6, atol=1e-6)
    assert not gradient[~inside].any()


def test_blt_modes():
    H, decay, scale = weights(4), np.array([0.9, 0.4]), np.array([0.3, 0.2])
    square = BLTWeightedGram(H, 14)
    value, by_rate, by_scale = square(-np.log(decay)[None], scale[None])
    assert value[0] == pytest.approx((H * bins_gram(BLT(decay, scale, 14), ap.BallsInBins(4, 4))).sum(), rel=1e-12)
    rate = -np.log(decay)
    np.testing.assert_allclose(by_rate[0], numeric(lambda x: square(x[None], scale[None])[0][0], rate), rtol=1e-6)
    np.testing.assert_allclose(by_scale[0], numeric(lambda x: square(rate[None], x[None])[0][0], scale), rtol=1e-6)


def exact_noise(gram: np.ndarray, budget: ap.Budget) -> float:
    """Return the noise_std that the budget requires for the modes with this Gram matrix, by numerical integration."""

    def excess(log_noise: float) -> float:
        found = max(integrated_delta(gram, math.exp(log_noise), budget.epsilon, points=301))
        return math.log(max(found, 1e-300) / budget.delta)

    return math.exp(brentq(excess, -1.0, 3.0, xtol=1e-4))


def test_the_gradient_of_the_noise():
    gram, budget = np.array([[1.5, 0.6], [0.6, 1.2]]), ap.Budget(1.0, 1e-3)
    level = NoiseEstimator(budget, 1 << 16, 1)(gram)
    noise = exact_noise(gram, budget)
    assert math.exp(level.log_noise) == pytest.approx(noise, rel=3e-3)
    assert (level.weights * gram).sum() == pytest.approx(1.0)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        step = np.zeros((2, 2))
        step[i, j] = step[j, i] = 0.02
        slope = math.log(exact_noise(gram + step, budget) / exact_noise(gram - step, budget)) / 2.0
        assert (level.weights * step).sum() / 2.0 == pytest.approx(slope, rel=0.05)


@pytest.mark.parametrize("target", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_best_of_two_coefficients_by_brute_force(target):
    """n = 4, two bins: noise by integrals, error by definition, over all second coefficients."""
    budget, participation = ap.Budget(target, 1e-3), ap.BallsInBins(2, 2)

    def loss(a: float) -> float:
        strategy = Toeplitz([1.0, a], 4)
        return exact_noise(bins_gram(strategy, participation), budget) * ap.error(strategy, ap.PrefixSum()).rms

    best = minimize_scalar(loss, bounds=(0.0, 0.95), method="bounded", options={"xatol": 5e-3})
    found = ap.optimize("toeplitz", steps=4, participation=participation, budget=budget, bands=2)
    c = found.strategy.encoder()
    assert loss(c[1, 0] / c[0, 0]) <= 1.003 * best.fun
    assert best.fun <= found.loss <= 1.01 * best.fun


def candidates(family: str):
    """Return strategies of the family that were optimised without amplification."""
    if family == "blt":
        return [ap.optimize("blt", steps=32, participation=SMALL, buffers=d).strategy for d in (1, 2)]
    return [ap.optimize(family, steps=32, participation=SMALL, bands=bands).strategy for bands in (1, 2, 4, 8)]


@pytest.mark.parametrize("family", ["blt", *(pytest.param(f, marks=pytest.mark.slow) for f in ("toeplitz", "banded"))])
def test_never_worse_than_without_amplification(family):
    options = {"blt": {"buffers": 2}, "toeplitz": {"bands": 8}, "banded": {}}[family]
    reports: list[float] = []
    found = ap.optimize(
        family,
        steps=32,
        participation=SMALL,
        budget=BUDGET,
        progress=lambda iteration, loss: reports.append(loss),
        **options,
    )
    noise = ap.calibrate(found.strategy, SMALL, BUDGET)
    assert noise.guarantee.value <= 1.0
    assert found.loss == pytest.approx(noise.mechanism.noise_std * ap.error(found.strategy, ap.PrefixSum()).rms)
    for strategy in candidates(family):
        other = ap.calibrate(strategy, SMALL, BUDGET).mechanism.noise_std
        assert found.loss <= 1.005 * other * ap.error(strategy, ap.PrefixSum()).rms
    assert found.converged
    assert found.iterations == len(reports) > 1
    assert found.lower_bound is None


@pytest.mark.parametrize(
    ("steps", "bins", "bands"), [(2048, 128, 128), (65_536, 1000, 32), (16_384, 128, 64), (64, 16, 16), (5, 7, 5)]
)
def test_as_many_bands_as_bins_where_that_is_quick(steps, bins, bands):
    assert module._default_bands(steps, bins) == bands


@pytest.mark.slow
def test_the_best_known_strategy_is_kept_where_the_search_goes_astray(monkeypatch):
    """By calibrated noise, not by the few samples of the search."""

    def astray(problem, family, start, estimator, limits, min_gain):
        return module.evaluate_point(problem, Toeplitz(np.ones(8), 32), start.point, estimator)

    monkeypatch.setattr(module, "descend", astray)
    found = ap.optimize("toeplitz", steps=32, participation=SMALL, budget=BUDGET, bands=8)
    known = toeplitz_starts(module.AmplifiedProblem(32, SMALL, ap.PrefixSum(), "rms", BUDGET), 8)
    losses = [ap.calibrate(s, SMALL, BUDGET).mechanism.noise_std * ap.error(s, ap.PrefixSum()).rms for s in known]
    assert found.loss == pytest.approx(min(losses))


@pytest.mark.parametrize(
    "family", ["toeplitz", *(pytest.param(f, marks=pytest.mark.integration) for f in ("banded", "blt"))]
)
def test_the_last_iterate_in_several_directions(family):
    """The loss is noise x error under the objective, below that of the optimum for the rms error."""
    promise, what = ap.BallsInBins(4, 8), ap.Curvatures.log_uniform(1e-2, 1.0, 5)
    options = {"buffers": 2} if family == "blt" else {"bands": 8}
    given = {"steps": 32, "participation": promise, "workload": ap.Momentum(0.9), "budget": BUDGET, **options}
    found, rms = ap.optimize(family, objective=what, **given), ap.optimize(family, **given)

    def loss(strategy):
        noise = ap.calibrate(strategy, promise, BUDGET).mechanism.noise_std
        return noise * ap.error(strategy, ap.Momentum(0.9), what).value

    assert loss(found.strategy) == pytest.approx(found.loss, rel=1e-6)
    assert found.loss < 0.99 * loss(rms.strategy)
    if family == "banded":  # the beginning of the run gets no more noise for a better end
        np.testing.assert_allclose(np.linalg.norm(found.strategy.columns, axis=1), 1.0, rtol=1e-9)


def test_amplification_changes_the_optimum():
    """At a small epsilon less noise is cancelled than without amplification: the second coefficient is smaller."""
    found = ap.optimize("toeplitz", steps=32, participation=SMALL, budget=BUDGET, bands=8).strategy
    without = ap.optimize("toeplitz", steps=32, participation=SMALL, bands=8).strategy
    (c, d), (e, f) = (s.encoder()[:2, 0] for s in (found, without))
    assert d / c < 0.9 * f / e


def test_the_same_result_every_time_and_limits():
    runs = [
        ap.optimize("toeplitz", steps=16, participation=ap.BallsInBins(4, 4), budget=BUDGET, max_iterations=2)
        for _ in range(2)
    ]
    assert runs[0].strategy == runs[1].strategy
    assert runs[0].loss == runs[1].loss
    assert (runs[0].iterations, runs[0].converged) == (2, False)


@pytest.mark.parametrize(
    "objective",
    ["rms", "max", ap.Curvatures([0.01, 0.3]), ap.Curvatures([0.01, 0.3], steps="all")],
    ids=["rms", "max", "last", "all"],
)
@pytest.mark.parametrize(
    "workload", [ap.Momentum(0.9), ap.Momentum(0.5, learning_rates=ap.schedules.linear(16))], ids=["fixed", "schedule"]
)
def test_each_family_descends_for_fixed_weights(workload, objective):
    """One step on the tangent never raises it, for every workload and objective."""
    H, n = weights(4), 16
    families = [
        (ToeplitzFamily(n, workload, objective), np.array([0.7, 0.2, 0.1])),
        (BLTFamily(n, workload, objective), np.array([3.0, 1.0, 0.5, 0.0])),
        (BandedFamily(n, workload, objective, 2), np.append(np.full(n * 2 - 1, 0.5), 0.0)),  # none below the last row
    ]
    for family, point in families:

        def tangent(x: np.ndarray, family=family) -> float:
            strategy = family.strategy(x)
            gram = bins_gram(strategy, ap.BallsInBins(4, 4))
            return ap.error(strategy, workload, objective).value * math.sqrt((H * gram).sum())

        end = family.minimize_tangent(point, H)
        assert tangent(end) < (1.01 if objective == "max" else 0.999) * tangent(point)
        around = np.random.default_rng(3).normal(size=(20, len(point))) * (point != 0.0)
        if objective == "rms" or (objective != "max" and not isinstance(family, BLTFamily)):  # BLTs take a few steps
            assert all(tangent(end + 1e-3 * np.linalg.norm(end) * d) > 0.9999 * tangent(end) for d in around)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"family": "dense"}, "'family'"),
        ({"participation": ap.FixedEpochs(4, 8)}, "'participation'"),
        ({"participation": ap.BallsInBins(4, 8, max_batch=9)}, "'participation'"),
        ({"budget": 1.0}, "'budget'"),
        ({"family": "banded", "bands": 9}, "'bands'"),
        ({"family": "blt", "buffers": 11}, "'buffers'"),
        ({"buffers": 2}, "no option"),
    ],
)
def test_bad_arguments(arguments, match):
    given = {"family": "toeplitz", "steps": 32, "participation": SMALL, "budget": BUDGET, **arguments}
    with pytest.raises(ap.InvalidArgument, match=match):
        ap.optimize(given.pop("family"), **given)
