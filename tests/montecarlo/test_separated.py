"""Random min-separation: the recursion against all patterns, and Poisson sampling where it is that."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import logsumexp

import antiphase as ap
from antiphase import PoissonMinSeparation
from antiphase._errors import NotProved
from antiphase._montecarlo import MonteCarlo, calibrate, delta, dominating_pair, epsilon, verify
from antiphase._montecarlo.estimator import log_weights
from antiphase._montecarlo.min_separation import Absent, Joined, log_means, separated_columns
from antiphase._montecarlo.patterns import Law, count_probabilities
from antiphase._montecarlo.plain_sampling import plain_means
from antiphase._montecarlo.samples import draws, randomness
from antiphase._montecarlo.verification import try_claim
from antiphase.strategies import BLT, Banded, Dense, Identity, Toeplitz
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


SAMPLINGS = [(1, 0.3), (2, 0.2), (3, 0.6), (4, 1.0), (9, 0.5)]


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("separation", "rate"), SAMPLINGS)
def test_the_recursion_is_the_mean_over_patterns(separation, rate, warm):
    """With numbers of moderate size, and with some so large that only their logarithms have a range."""
    given, n, noise = PoissonMinSeparation(separation, rate, warm_start=warm), 7, 1.5
    strategy = random_banded(np.random.default_rng(1), n, min(separation, n), signed=True)
    pair, c = dominating_pair(strategy, given, noise), np.abs(strategy.encoder()) / noise
    y = np.random.default_rng(2).normal(size=(20, n)) * np.linspace(1.0, 400.0, 20)[:, None]
    weights = np.random.default_rng(3).normal(size=n)
    found = log_means(pair, y, [1.0, 2.5], [-pair.squares / 2.0, weights])
    known = patterns(n, given)
    assert math.fsum(known.values()) == pytest.approx(1.0)
    exponents: list[list[np.ndarray]] = [[], []]
    for pattern, probability in known.items():
        mode = c[:, list(pattern)].sum(axis=1)
        exponents[0].append(np.log(probability) + y @ mode - mode @ mode / 2.0)
        exponents[1].append(np.log(probability) + 2.5 * (y @ mode) + weights[list(pattern)].sum())
    np.testing.assert_allclose(found, logsumexp(exponents, axis=1), rtol=1e-10, atol=1e-12)


def test_the_recursion_over_many_steps_keeps_its_range():
    """20,000 steps: values beyond floating point both ways, against the recursion by logarithms."""
    n = 20_000
    for given, scale in ((PoissonMinSeparation(3, 0.5), 0.5), (PoissonMinSeparation(3, 0.5, warm_start=True), 4.0)):
        pair = dominating_pair(Toeplitz([1.0, 0.5], n), given, 1.0 / scale)
        for shift in (-2.0, 2.0):
            y = np.random.default_rng(4).normal(size=(1, n)) + shift
            products = pair.scaled[:, 0] * y[0] + np.append(pair.scaled[:-1, 1] * y[0, 1:], 0.0)
            found = log_means(pair, y, [1.0], [-pair.squares / 2.0])[0, 0]
            assert found == pytest.approx(Law(given, products - pair.squares / 2.0).log_mean, rel=1e-10)
            assert abs(found) > 1000.0


@pytest.mark.parametrize("warm", [False, True])
def test_sampled_patterns_have_their_probabilities(warm):
    """C = I without noise: which steps an example joined can be read off. Also with weights of the steps."""
    given, n = PoissonMinSeparation(2, 0.3, warm_start=warm), 6
    for exponents in (np.zeros(n), np.array([0.0, 0.5, -0.5, 1.0, 0.2, -1.0])):
        law, count, noise = Law(given, exponents), 40_000, np.zeros((40_000, n))
        law.add(np.ones((n, 1)), noise, np.random.default_rng(3))
        known = {p: chance * math.exp(exponents[list(p)].sum()) for p, chance in patterns(n, given).items()}
        assert law.log_mean == pytest.approx(math.log(math.fsum(known.values())), abs=1e-12)
        known = {pattern: weight / math.exp(law.log_mean) for pattern, weight in known.items()}
        joins = [math.fsum(chance for p, chance in known.items() if t in p) for t in range(n)]
        np.testing.assert_allclose(law.joins, joins, rtol=1e-12)
        rows, counts = np.unique(noise, axis=0, return_counts=True)
        assert len(rows) == len(known)
        for row, seen in zip(rows, counts, strict=True):
            probability = known[tuple(np.flatnonzero(row))]
            assert abs(seen - count * probability) < 5.0 * math.sqrt(count * probability)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("separation", "rate"), SAMPLINGS)
def test_numbers_of_participations(separation, rate, warm):
    given, n = PoissonMinSeparation(separation, rate, warm_start=warm), 7
    found = count_probabilities(given, n)
    for k, chance in enumerate(found):
        exact = math.fsum(p for pattern, p in patterns(n, given).items() if len(pattern) == k)
        assert chance == pytest.approx(exact, abs=1e-15)
    assert found.sum() == pytest.approx(1.0)


def test_participations_beyond_the_largest_number_are_all_of_it(monkeypatch):
    given = PoissonMinSeparation(2, 0.4, warm_start=True)
    whole = count_probabilities(given, 30)
    monkeypatch.setattr("antiphase._montecarlo.patterns.MAX_OPERATIONS", 150)
    short = count_probabilities(given, 30)
    assert len(short) == 6
    np.testing.assert_allclose(short, [*whole[:5], whole[5:].sum()], rtol=1e-12)


def poisson_delta(noise: float, rate: float, steps: int, at: float) -> float:
    """Exact to 1e-4 of it."""
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4
    )
    return float(one.self_compose(steps).get_delta_for_epsilon(at))


@pytest.mark.parametrize(("noise", "at"), [(3.0, 2.1), (2.0, 4.2), (1.0, 13.2)])
def test_tilted_samples_agree_with_privacy_losses(noise, at):
    """delta about 1e-4, 1e-5 and 1e-6: of as many plain samples 3, 0.3 and 0.03 would be hits."""
    pair = dominating_pair(Identity(30), PoissonMinSeparation(1, 0.3), noise)
    truth, values = poisson_delta(noise, 0.3, 30, at), []
    for estimator in pair.estimators(at):
        weights = np.exp(log_weights(estimator, draws(estimator, 1 << 15, randomness(1), 1), at))
        values.append((weights.mean(), weights.std() / math.sqrt(len(weights))))
    (value, error), (smaller, _) = values
    assert truth < 2e-4
    assert abs(value - truth) < 4.0 * error + 1e-3 * truth
    assert error < 0.1 * truth
    assert smaller < truth


def test_one_percent_of_noise_decides():
    """The noise at which delta is exactly the claim, by privacy losses: 1 % less is refused, a little more is not."""
    rate, n, at, noise = 0.3, 20, 1.5, 2.0
    claim = poisson_delta(noise, rate, n, at)
    sampling = MonteCarlo(samples=1 << 18, workers=1)
    pairs = [dominating_pair(Identity(n), PoissonMinSeparation(1, rate), f * noise) for f in (0.99, 1.03)]
    outcomes = [try_claim(pair, at, claim, 1, randomness(5), sampling) for pair in pairs]
    assert outcomes[0].bound is None
    assert outcomes[1].bound is not None
    assert outcomes[1].bound.kind == "confident"


@pytest.mark.parametrize("warm", [False, True])
def test_bands_and_starts_agree_with_plain_samples(warm):
    """Tilted and plain samples of one mechanism, both directions, where there is no exact answer."""
    given = PoissonMinSeparation(3, 0.2, warm_start=warm)
    pair, at = dominating_pair(Toeplitz([1.0, 0.6, 0.3], 24), given, 2.0), 1.0
    plain = plain_means(pair, at, 1 << 17, randomness(2), 1)
    for mean, estimator in zip(plain, pair.estimators(at), strict=True):
        assert estimator.slope > 0.1
        weights = np.exp(log_weights(estimator, draws(estimator, 1 << 15, randomness(3), 1), at))
        error = weights.std() / math.sqrt(len(weights))
        assert abs(weights.mean() - mean.value) < 4.0 * math.hypot(error, mean.error)
        assert error < 0.05 * weights.mean()


@pytest.mark.parametrize("warm", [False, True])
def test_no_sample_anywhere_exceeds_its_bound(warm):
    """The inequalities hold at every point, so also at points of a wild distribution; `log_weights` would raise."""
    given, rng = PoissonMinSeparation(2, 0.3, warm_start=warm), np.random.default_rng(6)
    pair = dominating_pair(random_banded(rng, 9, 2, signed=False), given, 0.8)
    half = pair.squares / 2.0
    y = (
        rng.normal(size=(4000, 9)) * rng.choice([0.1, 1.0, 5.0], size=(4000, 1))
        + rng.choice([-3.0, 0.0, 3.0], 4000)[:, None]
    )
    for slope in (0.1, 1.0, 4.0):
        s, joined = 1.0 + slope, Joined(pair, slope)
        losses, density = log_means(pair, y, [1.0, s], [-half, -(s**2 - s + 1.0) * half])
        assert (losses - density + joined.law.log_mean <= joined.log_factor - slope * losses).all()
        for law in (np.zeros(9), -half, rng.normal(size=9)):
            absent = Absent(pair, slope, Law(given, law))
            ratios = slope * (y @ absent.mean) + slope**2 * (absent.mean @ absent.mean) / 2.0
            assert (ratios <= absent.log_factor + slope * losses).all()


def test_the_density_of_tilted_samples_is_a_density():
    """The mean of its inverse over its own samples is 1: what makes the weights unbiased."""
    pair = dominating_pair(Toeplitz([1.0, 0.5], 6), PoissonMinSeparation(2, 0.4, warm_start=True), 2.0)
    found = Joined(pair, 0.5).draw(np.random.default_rng(7), 1 << 17)
    inverse = np.exp(found.ratios + found.shifts)
    assert abs(inverse.mean() - 1.0) < 4.0 * inverse.std() / math.sqrt(len(inverse))
    assert inverse.std() < 3.0


def test_small_delta_is_amplified():
    """At 1e-5 and 1e-6: below all bounds without samples, and never below the exact epsilon of Poisson sampling."""
    rate, n, noise = 0.3, 30, 2.5
    case, sampling = (Identity(n), PoissonMinSeparation(1, rate), noise), MonteCarlo(workers=1, seed=1, samples=1 << 17)
    exact = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate).self_compose(n)
    pair, last = dominating_pair(*case), 0.0
    for at in (1e-5, 1e-6):
        found = epsilon(*case, at, sampling=sampling)
        assert found.kind == "confident"
        assert max(last, exact.get_epsilon_for_delta(at)) < found.value < 1.2 * exact.get_epsilon_for_delta(at)
        assert pair.upper(found.value).value > 20.0 * at
        last = found.value


def test_bounds_without_samples_hold():
    """The mean over the numbers of participations lies between the truth and the worst pattern."""
    rate, n, noise = 0.3, 30, 2.0
    pair = dominating_pair(Identity(n), PoissonMinSeparation(1, rate), noise)
    for at in (0.5, 2.0, 6.0):
        assert poisson_delta(noise, rate, n, at) < pair._known(at) < pair._unamplified(at)
        assert pair.upper(at).value <= pair._known(at)


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
    case, sampling = (Identity(n), PoissonMinSeparation(1, rate)), MonteCarlo(samples=1 << 16, workers=1, seed=1)
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
    sampling = MonteCarlo(samples=1 << 17, seed=1)
    noise, bound = calibrate(strategy, given, 1.0, 1e-3, sampling=sampling)
    assert 0.97 < bound.value <= 1.0
    assert bound.kind == "confident"
    assert verify(strategy, given, 1.01 * noise, 1.0, 1e-3, sampling=sampling).value == 1e-3


def test_no_noise_is_never_the_answer():
    """delta above the probability to take part at all would allow it."""
    with pytest.raises(NotProved, match="no noise at all"):
        calibrate(Identity(10), PoissonMinSeparation(2, 1e-6), 1.0, 1e-3)


def test_a_warm_start_amplifies_the_same_or_more_than_none():
    case = Toeplitz([1.0, 0.5], 20), MonteCarlo(samples=1 << 14, workers=1, seed=1)
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
    for estimator in pair.plain():
        found = estimator.draw(np.random.default_rng(1), 100)
        assert not found.ratios.any()
        assert np.isfinite(found.shifts).all()


@pytest.mark.integration
def test_residue_classes_that_share_no_scale():
    """At rate 1 an example that starts at step t meets t, t + b, ...: the others' likelihood is another's."""
    d = np.where(np.arange(120) % 2 == 0, 1.0, 0.01)
    promise = ap.PoissonMinSeparation(2, 1.0, warm_start=True)
    found = ap.delta(ap.Mechanism(Banded(d[:, None]), promise, 0.15), 0.3)
    assert 0.49 < found.value <= 1.0  # half of all examples meet the large columns, and are seen
    far = ap.epsilon(ap.Mechanism(Identity(1000), ap.PoissonMinSeparation(10, 1.0, warm_start=True), 3**-0.5), 1e-8)
    assert 150.0 < far.value < 260.0


def test_a_bound_that_underflows_is_not_zero():
    for promise in (ap.PoissonMinSeparation(1, 0.5), ap.BallsInBins(1, 3)):
        assert ap.delta(ap.Mechanism(Identity(3), promise, 20.0), 4.0).value > 0.0
