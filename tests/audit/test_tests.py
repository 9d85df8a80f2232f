"""Tests of noise, contributions and participation: false alarms at most at their level, and what they see."""

from functools import partial
from itertools import combinations, product
from math import prod

import numpy as np
import pytest
from scipy.stats import binom

import antiphase as ap
from antiphase.audit import (
    Release,
    contribution_test,
    evaluate,
    noise_power,
    noise_test,
    participation_test,
    scale_power,
    scores,
    simulate,
)
from antiphase.audit._canary import whiten, worst_pattern
from antiphase.audit._participation_test import _dispersion, is_allowed
from antiphase.audit._simulation import drawn_patterns
from tests.audit.mechanisms import CASES, mechanism

STRATEGIES = {
    "identity": ap.strategies.Identity(12),
    "toeplitz": ap.strategies.Toeplitz([1.0, 0.5, 0.25], 12),
    "blt": ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], 12),
    "banded-inverse": ap.strategies.BandedInverse([1.0, -0.5, -0.125], 12),
    "tree": ap.strategies.Tree(12),
    "full tree": ap.strategies.Tree(12, decoder="full"),
    "fourier": ap.strategies.Fourier(12),
    "stamped": ap.strategies.Stamped(ap.strategies.Tree(4), 3),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_whitened_noise_is_white(name):
    strategy = STRATEGIES[name]
    W = whiten(strategy, strategy.noising())
    assert pytest.approx(np.eye(12), abs=1e-9) == W @ W.T


@pytest.mark.parametrize("name", ["toeplitz", "tree"])
def test_right_noise_departs_at_most_at_the_level(name):
    strategy, level, trials = STRATEGIES[name], 0.05, 400
    given = ap.Mechanism(strategy, ap.EveryStep(), 2.0)
    alarms = noise_power(given, 2.0 * strategy.noising(), 64, level, repetitions=trials)
    assert binom.sf(alarms * trials - 1, trials, level) > 1e-4


@pytest.mark.parametrize("scale", [0.95, 1.05])
def test_stated_power_against_a_wrong_scale(scale):
    """The part "scale" alone has the stated power, and the whole test has at least that."""
    strategy, directions = STRATEGIES["toeplitz"], 250
    given = ap.Mechanism(strategy, ap.EveryStep(), 2.0)
    stated = scale_power(12 * directions, scale)
    assert 0.5 < stated < 0.95
    found = noise_power(given, 2.0 * scale * strategy.noising(), directions, repetitions=200)
    assert found > stated - 0.12


WRONG = {
    "transposed": lambda C: np.linalg.inv(C.T),
    "not correlated": lambda C: np.eye(12) / np.linalg.norm(C[:, 0]),
    "reversed": lambda C: np.linalg.inv(C)[::-1, ::-1],
    "step before": lambda C: np.vstack([np.zeros(12), np.linalg.inv(C)[:-1]]),
    "C instead of its inverse": lambda C: C,
    "two steps swapped": lambda C: np.linalg.inv(C)[[0, 1, 2, 3, 5, 4, *range(6, 12)]],
    "first step twice": lambda C: np.linalg.inv(C)[[0, 0, *range(2, 12)]],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_covariance_is_seen(name):
    given = ap.Mechanism(STRATEGIES["toeplitz"], ap.EveryStep(), 2.0)
    actual = 2.0 * WRONG[name](given.strategy.encoder())
    assert noise_power(given, actual, 2048, repetitions=10) == 1.0


def test_noise_shared_by_two_directions_is_seen():
    given, rng = ap.Mechanism(STRATEGIES["toeplitz"], ap.EveryStep(), 2.0), np.random.default_rng(1)
    half = given.strategy.solve(2.0 * rng.standard_normal((12, 100)))
    assert "directions" in noise_test(given, np.hstack([half, half])).departures


def test_noise_that_is_not_normal_is_seen():
    given, rng = ap.Mechanism(STRATEGIES["identity"], ap.EveryStep(), 1.0), np.random.default_rng(2)
    assert noise_test(given, rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), (12, 400))).departures == ("shape",)


@pytest.mark.parametrize("name", CASES)
def test_worst_pattern_is_allowed_and_samplers_keep_their_promise(name):
    strategy, participation, *_ = CASES[name]
    pattern = worst_pattern(strategy, participation.worst_case)
    assert is_allowed(participation.worst_case, np.flatnonzero(pattern).tolist(), strategy.steps)
    size = np.linalg.norm(strategy.multiply(pattern))
    assert size == pytest.approx(ap.sensitivity(strategy, participation.worst_case).value, rel=1e-6)
    given = mechanism(name)
    if not isinstance(participation, ap.ShuffledEpochs):
        part = drawn_patterns(given, 200, ap.Secret.insecure(4))
        assert not participation_test(given, part).departs


BROKEN = {
    "gap": (ap.MinSeparation(4), [1, 4], False),
    "gap that is allowed": (ap.MinSeparation(4), [1, 5], True),
    "twice": (ap.SingleParticipation(), [1, 5], False),
    "another bin": (ap.BallsInBins(4, 4), [1, 5, 10, 13], False),
    "same bin": (ap.BallsInBins(4, 4), [1, 5, 9, 13], True),
    "bin left out once": (ap.BallsInBins(4, 4), [1, 5, 13], False),
    "another group": (ap.CyclicPoisson(4, 0.5), [1, 6], False),
    "epoch": (ap.ShuffledEpochs(4, 4), [4, 7], False),
    "another order": (ap.FixedEpochs(4, 4), [4, 9], False),
    "too often": (ap.MinSeparation(4, 2), [0, 4, 8], False),
    "no step of its bin": (ap.BallsInBins(1, 24), [], True),
    "its only step": (ap.BallsInBins(1, 24), [15], True),
    "a bin left out": (ap.BallsInBins(4, 4), [], False),
    "a first step after the epoch": (ap.BallsInBins(4, 4), [5, 9, 13], False),
    "a truncated step": (ap.BallsInBins(4, 4, max_batch=3), [5, 13], True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_promises(name):
    participation, steps, allowed = BROKEN[name]
    assert is_allowed(participation, steps, 16) is allowed


def test_shuffled_batches_are_not_poisson():
    given, rng = mechanism("poisson"), np.random.default_rng(5)
    bins = np.stack([rng.permutation(np.arange(400) % 4) for _ in range(4)])
    part = np.vstack([bins[t // 4] == t % 4 for t in range(16)])
    assert set(participation_test(given, part).departures) >= {"batch sizes", "counts"}


@pytest.mark.parametrize(("groups", "canaries"), [(2, 100), (4, 100), (4, 400)])
def test_batches_that_are_shuffled_within_groups_are_not_cyclic_poisson(groups, canaries):
    given = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 200), ap.CyclicPoisson(groups, 0.1), 1.0)
    rng = np.random.default_rng(7)
    group, part = rng.integers(groups, size=canaries), np.zeros((200, canaries), bool)
    for g in range(groups):
        members, own = np.flatnonzero(group == g), np.arange(g, 200, groups)
        for start in range(0, len(own), 10):
            slots = rng.permutation(len(members)) % 10
            for slot, step in enumerate(own[start : start + 10]):
                part[step, members[slots == slot]] = True
    assert "counts" in participation_test(given, part).departures


@pytest.mark.parametrize("warm_start", [False, True])
def test_another_rate_with_a_minimum_separation_is_seen(warm_start):
    strategy = ap.strategies.Identity(40)
    right, wrong = (
        ap.Mechanism(strategy, ap.PoissonMinSeparation(4, rate, warm_start=warm_start), 1.0) for rate in (0.1, 0.15)
    )
    for seed in range(20):
        assert not participation_test(right, drawn_patterns(right, 100, ap.Secret.insecure(seed))).departs
        assert participation_test(right, drawn_patterns(wrong, 100, ap.Secret.insecure(seed))).departures == ("rate",)


TOO_LARGE = {
    "fixed size": (ap.FixedSize(1, 40), ap.FixedSize(1, 60), "replace"),
    "fixed size from groups": (ap.FixedSize(4, 10), ap.FixedSize(4, 14), "replace"),
    "fixed size, too small": (ap.FixedSize(4, 10), ap.FixedSize(4, 7), "replace"),
    "truncated": (ap.Poisson(0.1, max_batch=60), ap.Poisson(0.15, max_batch=80), "zero-out"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_batches_of_another_size_are_seen(name):
    claimed, actual, adjacency = TOO_LARGE[name]
    strategy = ap.strategies.Identity(50)
    right, wrong = (ap.Mechanism(strategy, p, 1.0, adjacency, examples=402) for p in (claimed, actual))
    for seed in range(20):
        assert not participation_test(right, drawn_patterns(right, 402, ap.Secret.insecure(seed))).departs
    assert "rate" in participation_test(right, drawn_patterns(wrong, 402, ap.Secret.insecure(1))).departures


def shuffled(rng):
    """Batches of 20 from 400 examples, without replacement until all examples were drawn."""
    return np.vstack([rng.permutation(400) // 20 == np.arange(20)[:, None] for _ in range(2)])


NOT_FIXED_SIZE = {
    "the same batch": (lambda rng: np.tile(rng.permutation(400) < 20, (40, 1)), "counts"),
    "shuffled": (shuffled, "counts"),
    "22 examples": (lambda rng: rng.permuted(np.tile(np.arange(400) < 22, (40, 1)), axis=1), "batch sizes"),
    "poisson": (lambda rng: rng.random((40, 400)) < 0.05, "batch sizes"),
}


@pytest.mark.parametrize("name", NOT_FIXED_SIZE)
def test_batches_that_are_not_drawn_with_a_fixed_size_are_seen(name):
    given = ap.Mechanism(ap.strategies.Identity(40), ap.FixedSize(1, 20), 1.0, "replace", examples=400)
    draw, part = NOT_FIXED_SIZE[name]
    for seed in range(10):
        assert part in participation_test(given, draw(np.random.default_rng(seed)), 0.0033).departures


def test_canaries_of_several_runs_with_a_fixed_size_are_not_flagged(tmp_path):
    """Their batch sizes vary more than those of one run."""
    given = ap.Mechanism(ap.strategies.Identity(40), ap.FixedSize(1, 50), 1.0, "replace", examples=100)
    release = simulate(given, canaries=20, runs=4, quiet=4, secret=ap.Secret.insecure(1))
    release.save(tmp_path / "release.npz")
    assert not Release.load(tmp_path / "release.npz").single_run
    assert not participation_test(given, release.taking_part, single_run=release.single_run).departs
    assert participation_test(given, release.taking_part).departures == ("batch sizes",)
    assert simulate(given, canaries=20, quiet=4).single_run


def test_a_short_run_that_leaves_nobody_out_is_seen():
    given = ap.Mechanism(ap.strategies.Identity(5), ap.BallsInBins(1, 10), 1.0)
    part = np.arange(5)[:, None] == np.random.default_rng(8).integers(0, 5, 400)
    assert participation_test(given, part, 0.0033).departures == ("bins",)


def test_evenly_filled_bins_are_not_balls_in_bins():
    given = mechanism("balls in bins")
    bins = np.random.default_rng(6).permutation(np.arange(400) % 4)
    part = np.vstack([bins == t % 4 for t in range(16)])
    assert participation_test(given, part).departures == ("bins",)


@pytest.mark.parametrize("name", ["poisson", "balls in bins", "poisson min separation", "cyclic poisson"])
def test_right_batches_depart_at_most_at_the_level(name):
    given, trials, level = mechanism(name), 300, 0.1
    parts = (drawn_patterns(given, 120, ap.Secret.insecure(100 + i)) for i in range(trials))
    alarms = sum(participation_test(given, part, level).departs for part in parts)
    assert binom.sf(alarms - 1, trials, level) > 1e-4


LEVELS = (0.05, 0.01, 0.0033)
FEW = {
    "poisson": (ap.Poisson(0.3), 3, 3),
    "poisson, rarely drawn": (ap.Poisson(0.1), 3, 10),
    "cyclic poisson": (ap.CyclicPoisson(3, 0.5), 8, 10),
    "cyclic poisson, two groups": (ap.CyclicPoisson(2, 0.7), 8, 5),
    "bins": (ap.BallsInBins(4, 4), 16, 20),
    "bins of a short run": (ap.BallsInBins(1, 10), 5, 20),
    "fixed size": (ap.FixedSize(1, 3), 6, 5),
    "fixed size, all examples": (ap.FixedSize(1, 3), 6, 10),
}


@pytest.mark.parametrize("name", FEW)
def test_few_canaries_are_flagged_at_most_at_the_level(name):
    participation, steps, canaries = FEW[name]
    given = ap.Mechanism(ap.strategies.Identity(steps), participation, 1.0, "replace", examples=10)
    given = given if name.startswith("fixed") else ap.Mechanism(given.strategy, participation, 1.0)
    parts = (drawn_patterns(given, canaries, ap.Secret.insecure(i)) for i in range(200))
    found = [participation_test(given, part, level) for part in parts for level in LEVELS]
    for i, level in enumerate(LEVELS):
        alarms = sum(test.departs for test in found[i::3])
        assert binom.sf(alarms - 1, 200, level) > 1e-4, level


def poisson_patterns(rate, steps):
    """All steps in which an example can take part, with their probabilities."""
    coins = product([False, True], repeat=steps)
    return {coin: prod(rate if head else 1.0 - rate for head in coin) for coin in coins}


def assert_level(given, outcomes):
    """The exact probability of a false alarm is at most the level; `outcomes` are pairs of flags and probability."""
    alarms = dict.fromkeys(LEVELS, 0.0)
    for flags, probability in outcomes:
        p_values = participation_test(given, flags).p_values
        smallest = len(p_values) * min(p for _, p in p_values)
        for level in LEVELS:
            alarms[level] += probability * (smallest <= level)
    assert all(alarm <= level for level, alarm in alarms.items()), alarms


def test_exact_level_of_poisson():
    patterns = poisson_patterns(0.3, 3)
    outcomes = ((np.array(cs).T, prod(patterns[c] for c in cs)) for cs in product(patterns, repeat=3))
    assert_level(ap.Mechanism(ap.strategies.Identity(3), ap.Poisson(0.3), 1.0), outcomes)


@pytest.mark.parametrize("warm_start", [False, True])
def test_exact_level_of_a_minimum_separation(warm_start):
    """A warm start of separation 2: with the stationary probability, an example took part in step -1."""
    participation = ap.PoissonMinSeparation(2, 0.7, warm_start=warm_start)
    away = 0.7 / 1.7 if warm_start else 0.0

    def chance(coin, eligible):
        head, *rest = coin or (False,)
        own = (0.7 if head else 0.3) if eligible else float(not head)
        return own * (chance(rest, not head) if rest else 1.0)

    patterns = {c: away * chance(c, False) + (1.0 - away) * chance(c, True) for c in product([False, True], repeat=6)}
    patterns = {c: p for c, p in patterns.items() if p > 0.0}
    assert sum(patterns.values()) == pytest.approx(1.0)
    outcomes = ((np.array(cs).T, prod(patterns[c] for c in cs)) for cs in product(patterns, repeat=2))
    assert_level(ap.Mechanism(ap.strategies.Identity(6), participation, 1.0), outcomes)


@pytest.mark.parametrize(("bins", "steps"), [(2, 4), (3, 3), (3, 2)])
def test_exact_level_of_balls_in_bins(bins, steps):
    given = ap.Mechanism(ap.strategies.Identity(steps), ap.BallsInBins(2, bins), 1.0)
    places = product(range(bins), repeat=4)
    assert_level(given, ((np.arange(steps)[:, None] % bins == np.array(own), bins**-4.0) for own in places))


@pytest.mark.parametrize("canaries", [3, 5])
def test_exact_level_of_a_fixed_size(canaries):
    given = ap.Mechanism(ap.strategies.Identity(3), ap.FixedSize(1, 2), 1.0, "replace", examples=5)
    batches = [np.isin(np.arange(canaries), batch) for batch in combinations(range(5), 2)]
    assert_level(given, ((np.array(rows), len(batches) ** -3.0) for rows in product(batches, repeat=3)))


def test_the_spread_of_counts_has_exact_p_values():
    """The smallest is two-sided: twice the probability of its counts."""
    rate, trials, counts = 0.3, np.array([4, 4, 2]), list(product(range(5), range(5), range(3)))
    chances = np.prod(binom.pmf(counts, trials, rate), axis=1)
    p = np.array([_dispersion(np.array(c), trials, partial(binom, p=rate)) for c in counts])
    assert all(chances[p <= at].sum() <= at + 1e-12 for at in p)
    assert p.min() == pytest.approx(2.0 * chances[p.argmin()], abs=1e-8)


@pytest.mark.parametrize("participation", [ap.BallsInBins(1, 24), ap.BallsInBins(3, 4, max_batch=20)])
def test_balls_in_bins_that_is_cut_short_or_truncated_is_not_flagged(participation):
    given = ap.Mechanism(ap.strategies.Identity(12), participation, 1.0, examples=200)
    for seed in range(20):
        assert not participation_test(given, drawn_patterns(given, 200, ap.Secret.insecure(seed))).departs


def test_contributions_that_are_too_large_are_seen():
    given = mechanism("min separation", 8.0)
    release = simulate(given, canaries=2000, secret=ap.Secret.insecure(9))
    assert not contribution_test(given, release, scores(given, release)).departs
    more = release.projections + 0.3 * release.used * release.present
    louder = type(release)(more, release.present, release.taking_part, release.quiet, release.signs)
    assert {"size", "signal to noise"} <= set(contribution_test(given, louder, scores(given, louder)).departures)


def test_a_contribution_in_another_step_is_seen():
    given = mechanism("min separation", 8.0)
    release = simulate(given, canaries=2000, secret=ap.Secret.insecure(9))
    late = release.projections.copy()
    late[3, release.present] += 1.0
    moved = type(release)(late, release.present, release.taking_part, release.quiet, release.signs)
    assert "other steps" in contribution_test(given, moved, scores(given, moved)).departures


@pytest.mark.slow
def test_right_simulations_are_flagged_at_most_at_the_stated_rate():
    given, trials, flagged = mechanism("min separation", 8.0), 100, 0
    for i in range(trials):
        flagged += evaluate(given, simulate(given, canaries=200, secret=ap.Secret.insecure(1000 + i))).flagged
    assert binom.sf(flagged - 1, trials, 0.06) > 1e-4


def test_black_box_final_models():
    from antiphase.audit import final_model_scores

    given = mechanism("every step", 8.0)
    release = simulate(given, canaries=4000, secret=ap.Secret.insecure(11))
    values = final_model_scores(release, ap.PrefixSum())
    assert values[release.present].mean() > values[~release.present].mean() + 10.0
