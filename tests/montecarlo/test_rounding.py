"""No certified delta falls below the truth by rounding: each bound on an error against 60 digits."""

import math

import mpmath as mp
import numpy as np
import pytest

import antiphase as ap
from antiphase import PoissonMinSeparation
from antiphase._kernels.bins import draw_cores, draw_powers
from antiphase._montecarlo import MonteCarlo, dominating_pair
from antiphase._montecarlo.balls_in_bins import best_cores, bins_pair
from antiphase._montecarlo.betting import log_wealth, upper_limit
from antiphase._montecarlo.certificate import SamplingPlan, run_certified
from antiphase._montecarlo.gaussian import divergence_error, log_divergence, upper_divergence
from antiphase._montecarlo.guarantee import pair_delta
from antiphase._montecarlo.min_separation import Absent, Joined
from antiphase._montecarlo.pilot import Effort, run_pilot
from antiphase._montecarlo.power import Power
from antiphase._montecarlo.samples import randomness
from antiphase._montecarlo.split import Split, split
from antiphase._montecarlo.tilt import Tilt
from antiphase.strategies import Identity, Toeplitz
from tests.montecarlo.cases import grams
from tests.montecarlo.oracle import integrated_delta
from tests.montecarlo.test_separated import patterns

NEARLY_SINGULAR = {
    "two nearly equal modes": np.array([[1.0, 1.0 - 1e-13], [1.0 - 1e-13, 1.0]]),
    "a dropped eigenvalue": np.array([[1.0, 0.5], [0.5, 0.25 + 5e-14]]),
    "a tiny mode": np.diag([1.0, 1e-14, 1e-30]) + 1e-16,
    "three in a plane": np.array([[2.0, 1.0, 1.5], [1.0, 2.0, 1.5], [1.5, 1.5, 1.5 + 1e-14]]),
}


def gaussian(e: float, root: mp.mpf) -> mp.mpf:
    """D(e) of the Gaussian mechanism with means `root` apart."""
    return mp.ncdf(root / 2 - e / root) - mp.exp(e) * mp.ncdf(-root / 2 - e / root)


@pytest.mark.parametrize("root", [1e-6, 1e-5, 1e-3, 0.1, 1.0, 10.0, 300.0])
def test_the_error_of_the_divergence_is_within_its_bound(root):
    with mp.workdps(60):
        for z in (*np.linspace(-30.0, 38.0, 69), -1e-3, 1e-6):
            e = float(z * root + root**2 / 2.0)
            exact = gaussian(mp.mpf(e), mp.sqrt(mp.mpf(root**2)))
            if mp.log(exact) > -740.0:
                assert abs(float(log_divergence(e, root**2) - mp.log(exact))) <= divergence_error(root**2)
            assert upper_divergence(e, root**2) >= exact


@pytest.mark.parametrize("noise", [1e-1, 1.0, 1e4, 1e6])
@pytest.mark.parametrize("bins", [1, 2])
def test_bounds_without_samples_are_never_below_the_gaussian_mechanism(noise, bins):
    """Equal modes are one Gaussian mechanism. In its tail the logarithm was off by 5e-9, and 1e-9 was allowed for."""
    pair, root = bins_pair(np.ones((bins, bins)), noise), 1 / mp.mpf(noise)
    with mp.workdps(60):
        for z in np.linspace(0.0, 38.0, 39):
            e = float(z / noise + 0.5 / noise**2)
            assert pair.upper(e).value >= gaussian(mp.mpf(e), root)


@pytest.mark.parametrize("name", [*NEARLY_SINGULAR, *grams()])
def test_no_entry_of_the_modes_that_are_sampled_is_too_small(name):
    gram = {**NEARLY_SINGULAR, **grams()}[name]
    for common in (True, False):
        modes = split(gram, common=common).outward(gram)
        root = modes.root.astype(np.longdouble)
        assert (modes.rho + root @ root.T - gram).min() >= 0.9e-10 * np.diag(gram).max()


def test_without_that_a_dropped_eigenvalue_is_missing():
    gram = NEARLY_SINGULAR["a dropped eigenvalue"]
    parts = split(gram)
    assert (parts.rho + parts.rest - gram).min() < -2e-14


@pytest.mark.parametrize("name", ["correlated", "sparse", "uneven", "singular"])
def test_delta_increases_with_every_entry_of_the_gram_matrix(name):
    """What makes the larger Gram matrix safe: 2 modes on a grid, each entry in turn."""
    gram = grams()[name][:2, :2] + 0.05 * np.eye(2)
    before = integrated_delta(gram, 0.8, 1.0, points=601)
    for more in ([[0.02, 0.0], [0.0, 0.0]], [[0.0, 0.02], [0.02, 0.0]], [[0.0, 0.0], [0.0, 0.02]]):
        after = integrated_delta(gram + np.array(more), 0.8, 1.0, points=601)
        assert (np.array(after) > np.array(before)).all()


@pytest.mark.parametrize("noise", [0.08, 1.0, 1e3])
@pytest.mark.parametrize("name", ["sparse", "uneven", "two nearly equal modes", "three in a plane"])
def test_weights_for_removal_are_as_accurate_as_they_say(name, noise):
    gram = {**NEARLY_SINGULAR, **grams()}[name]
    modes = split(gram).outward(gram).scaled(noise)
    for alpha in (1, 3, 8):
        estimator, seed = Power(modes, alpha), np.random.SFC64(5)
        if alpha * modes.largest > 600.0:
            continue
        found = estimator.draw(np.random.Generator(seed), 20)
        rng, indices = np.random.Generator(np.random.SFC64(5)), np.zeros((20, alpha), dtype=np.int32)
        if alpha == 1:
            indices[:, 0] = rng.integers(modes.bins, size=20)
        else:
            draw_powers(np.exp(modes.rest), rng.random((20, alpha)), indices, np.zeros(20))
        noises = rng.standard_normal((20, modes.bins))
        with mp.workdps(60):
            rest = exact_products(modes)
            for s in range(20):
                loss = exact_loss(modes, rest, noises[s], indices[s])
                ratio = -(alpha - 1) * loss
                for k in range(alpha):
                    sums = [mp.fsum(rest[i, j] for i in indices[s, :k]) for j in range(modes.bins)]
                    ratio += mp.log(mp.fsum(mp.exp(x) for x in sums) / modes.bins)
                assert abs(found.shifts[s] + loss) <= estimator.loss_error
                assert abs(found.ratios[s] - ratio) <= estimator.ratio_error


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_weights_by_cores_are_as_accurate_as_they_say(noise):
    modes = split(grams()["sparse"]).outward(grams()["sparse"]).scaled(noise)
    estimator = best_cores(modes, 2.0, 6)[0]
    found = estimator.draw(np.random.Generator(np.random.SFC64(6)), 20)
    rng = np.random.Generator(np.random.SFC64(6))
    sizes = 1 + np.searchsorted(np.cumsum(estimator.weights) / estimator.weights.sum(), rng.random(20), side="right")
    cores = (estimator._core_probabilities[sizes - 1] <= rng.random(20)[:, None]).sum(axis=1)
    indices, unused = np.empty((20, estimator.alpha), dtype=np.int32), np.empty(20)
    kinds = cores.astype(np.int32), sizes.astype(np.int32)
    draw_cores(np.exp(modes.rest), *kinds, rng.random((20, estimator.alpha)), indices, unused)
    noises, b, alpha, checked = rng.standard_normal((20, modes.bins)), modes.bins, estimator.alpha, 0
    with mp.workdps(60):
        rest = exact_products(modes)
        for s in range(20):
            if found.ratios[s] == -np.inf:
                continue
            k, counts = int(sizes[s]), np.zeros(b, dtype=int)
            counts[cores[s]] = k
            squares = mp.fsum(mp.exp(k * (k - 1) * rest[i, i] / 2) for i in range(b))
            ratio = mp.log(mp.binomial(alpha, k) / mp.mpf(float(estimator.weights[k - 1])) * squares) - k * mp.log(b)
            for i in indices[s, k:]:
                allowed = [j for j in range(b) if j != cores[s] and counts[j] < k]
                sums = (mp.fsum(int(counts[t]) * rest[t, j] for t in range(b)) for j in allowed)
                ratio += mp.log(mp.fsum(mp.exp(x) for x in sums) / b)
                counts[i] += 1
            loss = exact_loss(modes, rest, noises[s], indices[s])
            ratio += -mp.log(int((counts == k).sum())) - (alpha - 1) * loss
            assert abs(found.shifts[s] + loss) <= estimator.loss_error
            assert abs(found.ratios[s] - ratio) <= estimator.ratio_error
            checked += 1
    assert checked > 5


@pytest.mark.parametrize("noise", [0.08, 1.0, 1e3])
@pytest.mark.parametrize("name", ["sparse", "uneven", "two nearly equal modes"])
def test_weights_for_addition_are_as_accurate_as_they_say(name, noise):
    gram = {**NEARLY_SINGULAR, **grams()}[name]
    modes = split(gram).outward(gram).scaled(noise)
    weights = np.random.default_rng(1).dirichlet(np.ones(modes.bins))
    for slope in (0.0, 1.0, 30.0):
        estimator = Tilt(modes, slope, weights)
        found = estimator.draw(np.random.Generator(np.random.SFC64(5)), 20)
        mean = weights @ modes.root
        x = np.random.Generator(np.random.SFC64(5)).standard_normal((20, len(mean))) - slope * mean
        with mp.workdps(60):
            rest = exact_products(modes)
            for s in range(20):
                loss = exact_loss(modes, rest, x[s], [])
                square = mp.fsum(mp.mpf(m) ** 2 for m in mean.tolist())
                product = mp.fsum(mp.mpf(m) * mp.mpf(y) for m, y in zip(mean.tolist(), x[s].tolist(), strict=True))
                assert abs(found.shifts[s] - loss) <= estimator.loss_error
                assert abs(found.ratios[s] - (slope * product + slope**2 * square / 2)) <= estimator.ratio_error


def exact_products(modes: Split) -> mp.matrix:
    root = mp.matrix(modes.root.tolist())
    return root * root.T


def exact_loss(modes: Split, rest: mp.matrix, x: np.ndarray, indices: object) -> mp.mpf:
    products = mp.matrix(modes.root.tolist()) * mp.matrix(x.tolist())
    b = modes.bins
    logs = (products[j] + mp.fsum(rest[int(i), j] for i in indices) - rest[j, j] / 2 for j in range(b))
    return mp.log(mp.fsum(mp.exp(a) for a in logs) / b)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("noise", [0.1, 1.0, 1e3])
def test_weights_of_patterns_are_as_accurate_as_they_say(noise, warm):
    given, n = PoissonMinSeparation(2, 0.3, warm_start=warm), 5
    pair = dominating_pair(Toeplitz([1.0, 0.7], n), given, noise).outward
    columns = np.array([[pair.scaled[t, i - t] if t <= i < t + 2 else 0.0 for i in range(n)] for t in range(n)])
    law = patterns(n, given)
    for slope in (0.0, 0.5, 3.0):
        joined, absent = Joined(pair, slope), Absent(pair, slope, Joined(pair, 0.5).law)
        rng = np.random.Generator(np.random.SFC64(5))
        y = rng.standard_normal((8, n))
        joined.law.add((1.0 + slope) * pair.scaled, y, rng)
        x = np.random.Generator(np.random.SFC64(5)).standard_normal((8, n)) - slope * absent.mean
        drawn = [e.draw(np.random.Generator(np.random.SFC64(5)), 8) for e in (joined, absent)]
        with mp.workdps(60):
            c = mp.matrix(columns.tolist())
            squares = [mp.fsum(c[t, i] ** 2 for i in range(n)) for t in range(n)]
            half = {p: mp.fsum(squares[t] for t in p) / 2 for p in law}
            log_a = mp.log(mp.fsum(q * mp.exp(slope * half[p]) for p, q in law.items()))
            for s in range(8):
                for points, side in ((y, 0), (x, 1)):
                    inner = [mp.fsum(c[t, i] * mp.mpf(float(points[s, i])) for i in range(n)) for t in range(n)]
                    whole = {p: mp.fsum(inner[t] for t in p) for p in law}
                    loss = mp.log(mp.fsum(q * mp.exp(whole[p] - half[p]) for p, q in law.items()))
                    f = 1.0 + slope
                    density = mp.fsum(q * mp.exp(f * whole[p] - (f**2 - f + 1) * half[p]) for p, q in law.items())
                    if side == 0:
                        assert abs(drawn[0].shifts[s] + loss) <= joined.loss_error
                        exact = loss - mp.log(density) + log_a if slope else mp.mpf(0)
                        assert abs(drawn[0].ratios[s] - exact) <= joined.ratio_error
                    else:
                        assert abs(drawn[1].shifts[s] - loss) <= absent.loss_error


def test_errors_are_small_where_they_matter():
    """100 bins at the noise of a private run: the limit moves by less than a millionth."""
    gram = 0.5 * np.eye(100) + 0.1
    estimators = [*bins_pair(gram, 1.0).outward.estimators(2.0), *best_cores(split(gram), 2.0, 8)]
    estimators += dominating_pair(Toeplitz([1.0, 0.5], 200), PoissonMinSeparation(2, 0.05), 1.0).outward.estimators(1.0)
    for estimator in estimators:
        assert estimator.loss_error * (1.0 + estimator.slope) < 1e-7
        assert estimator.ratio_error < 1e-6
        assert estimator.bias < 1e-9


def test_the_limit_is_above_what_exact_sums_give():
    shares = np.random.default_rng(3).random(50_000) ** 9
    limit = upper_limit(shares, 0.3, 25.0)
    assert math.fsum(math.log1p(0.3 * (limit - w)) for w in shares) >= 25.0
    assert log_wealth(shares, 0.3, limit) >= 25.0


def test_what_is_drawn_wrongly_is_added(monkeypatch):
    pair = bins_pair(np.eye(4), 1.0)
    effort = Effort(1000, 10.0, randomness(1), workers=1)
    pilot = run_pilot(pair.estimators(1.0)[0], 1.0, 1000, effort)
    found = run_certified(SamplingPlan(pilot, 1000, 0.5, 0.0), effort, randomness(2))
    monkeypatch.setattr(Power, "bias", 0.125)
    more = run_certified(SamplingPlan(pilot, 1000, 0.5, 0.0), effort, randomness(2))
    assert more.value == pytest.approx(found.value + 0.125 * pilot.bound)


@pytest.mark.parametrize("noise", [0.2, 1.0, 30.0])
@pytest.mark.parametrize("name", NEARLY_SINGULAR)
def test_certified_delta_is_never_below_the_exact_one(name, noise):
    """Up to 3 bins that hardly differ or hardly exist, by a grid; the limit is wider than both the errors."""
    gram, sampling = NEARLY_SINGULAR[name], MonteCarlo(samples=1 << 14, workers=1, seed=1)
    for e in (0.5 / noise, 1.5 / noise):
        truth = max(integrated_delta(gram, noise, e, points=301 if noise > 0.5 else 1001))
        assert pair_delta(bins_pair(gram, noise), e, randomness(1), sampling).value >= truth * (1.0 - 1e-3)


@pytest.mark.parametrize("noise", [1e-3, 0.01, 1e5])
def test_extreme_noise_gives_a_bound_and_no_overflow(noise):
    for promise, strategy in (
        (ap.BallsInBins(1, 3), Identity(3)),
        (ap.BallsInBins(1, 3), Toeplitz([1.0, 0.5], 3)),
        (ap.PoissonMinSeparation(2, 0.5), Toeplitz([1.0, 0.5], 3)),
    ):
        found = ap.delta(ap.Mechanism(strategy, promise, noise), 800.0 if noise < 1.0 else 1.0)
        assert 0.0 < found.value <= 1.0
