"""Bounds hold at their confidence over many repetitions, and are as tight as stated."""

import math

import numpy as np
import pytest
from scipy.stats import nct, norm

import antiphase as ap
from antiphase.audit import (
    counting_bound,
    gaussian_bound,
    one_run_bounds,
    reference_scores,
    scores,
    signal_ratio,
    simulate,
    steinke_epsilon,
    tradeoff_epsilon,
)
from antiphase.audit._counting import (
    _valid,
    combined_epsilon,
    counted_epsilon,
    lower_limit,
    planned_threshold,
    upper_limit,
)
from antiphase.audit._gaussian_form import _noncentrality, _tail
from antiphase.audit._one_run import steinke_p_value
from tests.audit.mechanisms import CASES, RANDOM, mechanism

DELTA = 1e-5


def gaussian_scores(rng, mu, count):
    z = rng.standard_normal((2, count))
    return mu * z[0] + mu**2 / 2, mu * z[1] - mu**2 / 2


def too_many(failures, trials, rate):
    """Whether so many failures have probability below 1e-4 if each has probability `rate`."""
    from scipy.stats import binom

    return binom.sf(failures - 1, trials, rate) < 1e-4


def test_clopper_pearson_limits_by_their_definition():
    from scipy.stats import binom

    p, q = float(lower_limit(7, 50, 0.03)), float(upper_limit(7, 50, 0.03))
    assert binom.sf(6, 50, p) == pytest.approx(0.03)
    assert binom.cdf(7, 50, q) == pytest.approx(0.03)
    assert float(lower_limit(0, 50, 0.03)) == 0.0
    assert float(upper_limit(50, 50, 0.03)) == 1.0


@pytest.mark.parametrize("weight", [0.04, 0.25, 1.0])
@pytest.mark.parametrize("rates", [(0.731, 0.269), (0.1, 0.1 / math.e), (0.02, 0.02 / math.e)])
def test_combined_epsilon_covers_exactly(rates, weight):
    """The failure probability, summed over all counts: at most alpha, and not far below it for the best weight."""
    from scipy.stats import binom

    n, alpha = 100, 0.1
    first, second = (binom.pmf(np.arange(n + 1), n, rate) for rate in rates)
    failure = 0.0
    for k0 in np.flatnonzero(second > 1e-5):
        low, high = 0, n + 1  # the bound grows with k1: find the first k1 whose bound is above epsilon
        while low < high:
            middle = (low + high) // 2
            above = combined_epsilon((middle, n, int(k0), n), 0.0, alpha, weight, 200, 25) > math.log(
                rates[0] / rates[1]
            )
            low, high = (low, middle) if above else (middle + 1, high)
        failure += second[k0] * first[low:].sum()
    assert failure <= alpha
    assert failure > 0.005 or weight < 1.0 or rates[0] < 0.05


def test_combined_epsilon_is_tighter_than_two_limits():
    for counts in [(500, 1000, 100, 1000), (60, 5000, 8, 5000), (2500, 5000, 2000, 5000)]:
        best = max(combined_epsilon(counts, DELTA, 0.05, weight) for weight in (0.04, 0.1, 0.25, 0.5, 1.0))
        assert best > counted_epsilon(counts, DELTA, 0.05, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("planned", [True, False])
def test_counting_bound_covers_where_it_is_tightest(planned):
    """Randomised response leaks epsilon at every threshold, so its bound fails as often as any can."""
    epsilon, count, failures, trials = 1.0, 400, 0, 60
    rng, p = np.random.default_rng(1), math.exp(1.0) / (1 + math.exp(1.0))

    def draw(size, probability):
        return (rng.random(size) < probability) + 1e-9 * rng.random(size)

    reference = (draw(20_000, p), draw(20_000, 1 - p)) if planned else None
    for _ in range(trials):
        found = counting_bound(draw(count, p), draw(count, 1 - p), 0.0, 0.9, reference=reference)
        failures += found.measured_epsilon_at_least > epsilon
    assert not too_many(failures, trials, 0.1)


def test_counting_bound_covers_scores_that_are_not_identically_distributed():
    """Half of the canaries leak nothing: the mean probabilities obey the same inequality."""
    epsilon, count, failures, trials, rng = 1.0, 400, 0, 40, np.random.default_rng(2)
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for _ in range(trials):
        rates = np.where(np.arange(count) % 2, 0.5, p), np.where(np.arange(count) % 2, 0.5, 1 - p)
        inside, outside = ((rng.random(count) < rate).astype(float) for rate in rates)
        found = counting_bound(inside, outside, 0.0, 0.9, assumes="independent canaries")
        failures += found.measured_epsilon_at_least > epsilon
    assert not too_many(failures, trials, 0.1)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("mean", [1e-9, 0.01, 0.05, 0.2, 0.25, 0.5, 0.9])
def test_p_values_cover_scores_that_are_not_identically_distributed(count, mean):
    """The worst case of Hoeffding 1956: m of n indicators have equal probabilities, the others never occur."""
    from scipy.stats import binom

    n = 1000
    stated = math.exp(_valid(np.array([binom.logsf(count - 1, n, mean / n)]), count, False)[0])
    for m in (1, 2, 3, 5, 10, 100, n):
        assert binom.sf(count - 1, m, mean / m) <= stated * (1.0 + 1e-12)


def best_fixed_threshold(mu, count, delta, alpha, rng):
    """The mean bound of the best threshold there is, known in advance, with the usual halves of alpha."""
    inside = [gaussian_scores(rng, mu, count) for _ in range(40)]
    at = np.linspace(-(mu**2), mu**2 / 2 + 5 * mu, 60)
    means = []
    for t in at:
        counts = [((i >= t).sum(), count, (o >= t).sum(), count) for i, o in inside]
        means.append(np.mean([counted_epsilon(c, delta, alpha, 0.5) for c in counts]))
    return max(means)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_counting_bound_is_at_least_95_percent_of_the_best_threshold(epsilon):
    rng, count = np.random.default_rng(3), 5000
    given = mechanism("every step", epsilon)
    mu = ap.gdp(given).value
    reference = gaussian_scores(rng, mu, 400_000)
    ours = [
        counting_bound(*gaussian_scores(rng, mu, count), DELTA, reference=reference).measured_epsilon_at_least
        for _ in range(4)
    ]
    assert np.mean(ours) >= 0.95 * best_fixed_threshold(mu, count, DELTA, 0.05, rng)


def test_counting_bound_finds_a_leak_that_the_claim_does_not_suggest():
    """Noise is missing: the planned threshold may lie above all scores, and the held-out one finds it."""
    mu = 1.0
    rng = np.random.default_rng(4)
    inside, outside = np.full(2000, 0.1 * mu), np.full(2000, -0.1 * mu)
    found = counting_bound(inside, outside, DELTA, reference=gaussian_scores(rng, mu, 100_000))
    assert found.measured_epsilon_at_least > 4.0


def test_noncentral_t_is_that_of_scipy():
    for t, freedom, center in [(2.0, 10, 1.0), (-1.0, 5, 0.5), (5.0, 40, 6.0)]:
        assert _tail(t, freedom, center) == pytest.approx(nct.sf(t, freedom, center), abs=2e-5)
    assert _tail(3.0, 30, _noncentrality(3.0, 30, 0.05)) == pytest.approx(0.05, abs=1e-6)


def test_signal_ratio_covers_exactly():
    rng, trials, count, above, below = np.random.default_rng(5), 400, 30, 0, 0
    signals, present = np.linspace(0.5, 2.0, count), np.arange(count) % 2 == 0
    for _ in range(trials):
        values = 7.0 + 3.0 * (1.2 * signals * present + rng.standard_normal(count))
        found = signal_ratio(values, signals, present, 0.9)
        above += found.lower > 1.2
        below += found.upper < 1.2
    assert abs(above / trials - 0.1) < 4 * math.sqrt(0.09 / trials)
    assert abs(below / trials - 0.1) < 4 * math.sqrt(0.09 / trials)


def test_canaries_that_never_take_part_do_not_count_as_noise():
    """With them, the noise would look 3 % too small, and a right program would be flagged."""
    given = mechanism("cyclic poisson")
    release = simulate(given, canaries=200_000, quiet=2, secret=ap.Secret.insecure(12))
    found = scores(given, release)
    assert 0.04 < (found.signals == 0.0).mean() < 0.09
    ratio = signal_ratio(found.values, found.signals, found.present, 0.999)
    assert ratio.lower < 1.0 < ratio.upper


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("name", ["every step", "min separation, replace"])
def test_gaussian_bound_is_at_least_85_percent_of_the_claim(name, epsilon):
    given = mechanism(name, epsilon)
    found = scores(given, simulate(given, canaries=100_000, quiet=2, secret=ap.Secret.insecure(6)))
    bound, ratio = gaussian_bound(given, found, DELTA)
    claim = ap.epsilon(given, DELTA).value
    assert 0.85 * claim < bound.measured_epsilon_at_least < 1.05 * claim
    assert 0.9 < ratio.lower < ratio.estimate < ratio.upper < 1.1


def test_scores_are_the_log_likelihood_ratio():
    """E exp(score) over absent canaries is 1, and over present ones E exp(-score) is 1, for every participation."""
    for name in CASES:
        given = mechanism(name, 1.0)
        found = scores(given, simulate(given, canaries=40_000, quiet=2, secret=ap.Secret.insecure(7)))
        for ratios in (found.outside, -found.inside):
            values = np.exp(ratios)
            error = values.std() / math.sqrt(len(values))
            assert abs(values.mean() - 1.0) < 5 * error + 1e-3, name


@pytest.mark.parametrize("name", RANDOM)
def test_reference_scores_have_the_distribution_of_simulated_ones(name):
    from scipy.stats import ks_2samp

    given = mechanism(name, 4.0)
    found = scores(given, simulate(given, canaries=8000, quiet=2, secret=ap.Secret.insecure(8)))
    reference = reference_scores(given, found.signals, 40_000, seed=3)
    for ours, theirs in zip((found.inside, found.outside), reference, strict=True):
        assert ks_2samp(ours, theirs).pvalue > 1e-4


def test_steinke_p_value_without_delta_is_binomial():
    from scipy.stats import binom

    bias = math.exp(1.5) / (1 + math.exp(1.5))
    assert steinke_p_value(1000, 100, 90, 1.5, 0.0) == pytest.approx(binom.sf(89, 100, bias))
    assert steinke_p_value(1000, 100, 90, 1.5, 1e-3) > steinke_p_value(1000, 100, 90, 1.5, 0.0)
    assert steinke_epsilon(100, 50, 25, 0.0, 0.05) == 0.0


def test_one_run_bounds_cover_and_the_trade_off_function_is_tighter():
    rng, mu, m, trials, failures = np.random.default_rng(9), 1.0, 1000, 8, 0
    claim = ap.epsilon(ap.Mechanism(ap.strategies.Identity(1), ap.EveryStep(), 1 / mu), DELTA).value
    reference, sums = gaussian_scores(rng, mu, 50_000), np.zeros(2)
    for _ in range(trials):
        present = rng.random(m) < 0.5
        ratios = mu * rng.standard_normal(m) + np.where(present, mu**2 / 2, -(mu**2) / 2)
        found = one_run_bounds(ratios, present, DELTA, 0.9, reference=reference)
        values = [bound.measured_epsilon_at_least for bound in found]
        failures += max(values) > claim
        sums += values
    assert failures == 0  # both are far from tight
    assert sums[1] > sums[0] > 0


def test_trade_off_bound_grows_with_correct_guesses():
    values = [tradeoff_epsilon(1000, 100, correct, DELTA, 0.05) for correct in (50, 70, 90, 100)]
    assert values == sorted(values)
    assert values[0] == 0.0 < values[-1]


def test_the_planned_threshold_is_nearly_the_best_one():
    rng, mu, count = np.random.default_rng(10), 1.5, 5000
    test = planned_threshold(gaussian_scores(rng, mu, 200_000), (count, count), DELTA, 0.05)
    where = (test.at - mu**2 / 2) / mu if not test.below else (-test.at - mu**2 / 2) / mu
    p, q = norm.sf(where), norm.sf(where + mu)
    assert count * q < 20
    assert count * p > 20
