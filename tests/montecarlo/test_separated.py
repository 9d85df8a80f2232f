"""Random min-separation: the recursion against all patterns, and Poisson sampling where it is that."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from antiphase import PoissonMinSeparation
from antiphase._errors import NotProved
from antiphase._kernels.separation import log_ratios
from antiphase._montecarlo import Sampling, calibrate, delta, dominating_pair, epsilon, verify
from antiphase._montecarlo._plain import plain_means
from antiphase._montecarlo._samples import randomness
from antiphase._montecarlo._separated import Patterns, separated_columns
from antiphase.strategies import BLT, Dense, Identity, Toeplitz
from tests.catalog import random_banded


def patterns(steps: int, given: PoissonMinSeparation) -> dict[tuple[int, ...], float]:
    """Every pattern with its probability, step by step from the definition."""
    b, rate = given.separation, given.rate
    eligible = 1.0 / (1.0 + (b - 1) * rate)
    starts = {0: eligible, **dict.fromkeys(range(1, b), rate * eligible)} if given.warm_start else {0: 1.0}
    found: dict[tuple[int, ...], float] = {}
    for start, chance in starts.items():
        for coins in itertools.product((0, 1), repeat=steps):
            taken, free, probability = [], start, chance
            for t, coin in enumerate(coins):
                if t >= free:
                    probability *= rate if coin else 1.0 - rate
                    if coin:
                        taken.append(t)
                        free = t + b
                elif coin:  # no coin is tossed
                    probability = 0.0
            found[tuple(taken)] = found.get(tuple(taken), 0.0) + probability
    return {pattern: p for pattern, p in found.items() if p > 0.0}


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("separation", "rate"), [(1, 0.3), (2, 0.2), (3, 0.6), (4, 1.0), (9, 0.5)])
def test_the_recursion_is_the_mean_over_patterns(separation, rate, warm):
    given, n = PoissonMinSeparation(separation, rate, warm_start=warm), 7
    strategy = random_banded(np.random.default_rng(1), n, min(separation, n), signed=True)
    columns, c = separated_columns(strategy, separation) / 1.5, np.abs(strategy.encoder()) / 1.5
    y = np.random.default_rng(2).normal(size=(20, n)) * 2.0
    found = np.empty(20)
    log_ratios(columns, separation, rate, warm, y, found)
    known = patterns(n, given)
    assert math.fsum(known.values()) == pytest.approx(1.0)
    total = np.zeros(20)
    for pattern, probability in known.items():
        mode = c[:, list(pattern)].sum(axis=1)
        total += probability * np.exp(y @ mode - mode @ mode / 2.0)
    np.testing.assert_allclose(found, np.log(total), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("warm", [False, True])
def test_sampled_patterns_have_their_probabilities(warm):
    """Columns of disjoint size 1000 under noise 1: which steps an example joined can be read off."""
    given, n = PoissonMinSeparation(2, 0.3, warm_start=warm), 6
    pair = dominating_pair(Identity(n), given, 1e-3)
    rng, count = np.random.default_rng(3), 40_000
    from antiphase._kernels.separation import add_patterns
    from antiphase._montecarlo._separated import _starts

    noise = np.zeros((count, n))
    add_patterns(pair.columns, 2, 0.3, _starts(given, rng, count), rng.random((count, 4)), noise)
    known = patterns(n, given)
    rows, counts = np.unique(noise, axis=0, return_counts=True)
    assert len(rows) == len(known)
    for row, seen in zip(rows, counts, strict=True):
        probability = known[tuple(np.flatnonzero(row))]
        assert abs(seen - count * probability) < 5.0 * math.sqrt(count * probability)


@pytest.mark.parametrize("at", [0.3, 1.0])
def test_separation_one_with_independent_noise_is_poisson_sampling(at):
    rate, noise, n = 0.1, 1.0, 30
    pair = dominating_pair(Identity(n), PoissonMinSeparation(1, rate), noise)
    means = plain_means(pair, at, 1 << 17, randomness(1), 1)
    exact = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4
    ).self_compose(n)
    value = max(mean.value for mean in means)
    error = max(mean.error for mean in means)
    truth = exact.get_delta_for_epsilon(at)
    assert abs(value - truth) < 4.0 * error + 1e-3 * truth
    assert error < 0.03 * truth


def test_confident_numbers_lie_above_the_exact_ones():
    rate, noise, n = 0.1, 1.0, 30
    exact = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate).self_compose(n)
    case, sampling = (Identity(n), PoissonMinSeparation(1, rate)), Sampling(samples=1 << 16, workers=1, seed=1)
    found = delta(*case, noise, 0.5, sampling=sampling)
    truth = exact.get_delta_for_epsilon(0.5)
    assert found.kind == "confident"
    assert truth < found.value < 1.25 * truth
    found = epsilon(*case, noise, 0.05, sampling=sampling)
    truth = exact.get_epsilon_for_delta(0.05)
    assert found.kind == "confident"
    assert truth < found.value < truth + 0.1


@pytest.mark.slow
def test_calibrated_noise_is_verified():
    strategy, given = Toeplitz([1.0, 0.5, 0.25], 40), PoissonMinSeparation(3, 0.05, warm_start=True)
    sampling = Sampling(samples=1 << 17, seed=1)
    noise, bound = calibrate(strategy, given, 1.0, 1e-3, sampling=sampling)
    assert 0.97 < bound.value <= 1.0
    assert bound.kind == "confident"
    assert verify(strategy, given, 1.01 * noise, 1.0, 1e-3, sampling=sampling).value == 1e-3


def test_a_warm_start_amplifies_the_same_or_more_than_none():
    case = Toeplitz([1.0, 0.5], 20), Sampling(samples=1 << 14, workers=1, seed=1)
    for warm in (False, True):
        given = PoissonMinSeparation(2, 0.05, warm_start=warm)
        pair = dominating_pair(case[0], given, 1.5)
        assert delta(case[0], given, 1.5, 0.5, sampling=case[1]).value < pair.upper(0.5).value


@pytest.mark.parametrize(
    "strategy", [Toeplitz([1.0, 0.5, 0.2], 8), BLT([0.5], [0.2], 8), Dense(np.triu(np.ones((4, 4))))], ids=type
)
def test_more_bands_than_the_separation_are_refused(strategy):
    with pytest.raises(NotProved, match="at most 2 bands"):
        dominating_pair(strategy, PoissonMinSeparation(2, 0.1), 1.0)


def test_trailing_zero_bands_do_not_count():
    assert separated_columns(Dense(np.eye(4) + 0.5 * np.eye(4, k=-1)), 2).shape == (4, 2)


def test_plain_weights_are_at_most_one():
    pair = dominating_pair(Identity(5), PoissonMinSeparation(1, 0.5), 0.5)
    for part in (True, False):
        found = Patterns(pair, taking_part=part).draw(np.random.default_rng(1), 100)
        assert not found.ratios.any()
        assert np.isfinite(found.shifts).all()
