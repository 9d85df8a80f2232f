"""The joint law of every random sampler against its exact probabilities, at fixed secrets.

Each test compares the frequencies of *whole outcomes* (subsets, orders, patterns over steps) with exact
probabilities by chi-square, so that dependence is seen as well as a wrong rate. A test fails below a p-value of
1e-6. Power: with N outcomes a total shift d of probability adds at least 4 N d^2 to chi-square, and some 60
to 100 more than its mean fails a test of up to 64 cells: with the N of 40,000 used for Poisson and
min-separation a shift of 0.025 fails, with the 6,000 used for subsets 0.065. Rates are tested alone to 1 %.
"""

from collections import Counter
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy import stats

from antiphase import _participation as p
from antiphase._secret import Secret
from tests.samplers.cases import incidence

ALPHA = 1e-6


def agrees(observed, probabilities):
    """chi-square of outcomes against {outcome: probability}; outcomes of probability 0 may not occur."""
    assert abs(sum(probabilities.values()) - 1) < 1e-9
    counts = Counter(observed)
    assert all(probabilities.get(outcome, 0) > 0 for outcome in counts)
    cells = [outcome for outcome, probability in probabilities.items() if probability > 0]
    total = sum(counts.values())
    expected = np.array([probabilities[cell] * total for cell in cells])
    assert expected.min() > 5, "cells too small for chi-square"
    return len(cells) == 1 or stats.chisquare([counts[cell] for cell in cells], expected).pvalue > ALPHA


def uniform(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def subsets_of(sampler):
    return [tuple(indices[mask].tolist()) for indices, mask in map(sampler.batch, range(sampler.steps))]


def coins(population, rate):
    """Independent coins as {subset: probability}."""
    return {
        tuple(subset): rate ** len(subset) * (1 - rate) ** (population - len(subset))
        for size in range(population + 1)
        for subset in combinations(range(population), size)
    }


def neighbours(flags, size):
    """The joint outcome of each run of `size` neighbouring examples in one step."""
    return [tuple(np.flatnonzero(row).tolist()) for row in flags.reshape(-1, size)]


def is_close(count, trials, rate):
    """Five standard errors either way."""
    return abs(count - trials * rate) < 5 * np.sqrt(trials * rate * (1 - rate))


def test_the_check_notices_a_rate_off_by_three_percent_and_dependence():
    sampler = p.Poisson(0.3).sampler(200_000, 1, Secret.insecure(1))
    observed = neighbours(incidence(sampler)[:, 0], 5)
    assert agrees(observed, coins(5, 0.3))
    assert not agrees(observed, coins(5, 0.309))
    twins = [tuple(i for i in range(5) if (0 if i == 1 else i) in drawn) for drawn in observed]  # 1 does as 0 does
    assert not agrees(twins, coins(5, 0.3))


# Poisson


@pytest.mark.parametrize("rate", [0.3, 0.6])
def test_poisson_tosses_independent_coins_for_neighbours(rate):
    sampler = p.Poisson(rate).sampler(240_000, 1, Secret.insecure(2))
    assert agrees(neighbours(incidence(sampler)[:, 0], 6), coins(6, rate))


def test_poisson_coins_are_independent_across_a_block_border():
    """At rate 0.9 a block has 8 positions: positions 6 to 9 lie in two."""
    flags = incidence(p.Poisson(0.9).sampler(1_600_000, 1, Secret.insecure(3)))[:, 0]
    assert agrees(neighbours(flags.reshape(-1, 16)[:, 6:10], 4), coins(4, 0.9))


def test_poisson_coins_are_independent_over_steps():
    taken = incidence(p.Poisson(0.3).sampler(20_000, 5, Secret.insecure(4)))
    assert agrees([tuple(np.flatnonzero(row).tolist()) for row in taken], coins(5, 0.3))


def test_poisson_rate_within_a_thousandth():
    """2e7 coins of rate 0.1: a standard error of 7e-4 relative, so 1 % is fourteen of them."""
    sampler = p.Poisson(0.1).sampler(200_000, 100, Secret.insecure(5))
    sizes = np.array([sampler.batch(step).indices.size for step in range(100)])
    assert is_close(sizes.sum(), 2e7, 0.1)
    assert not is_close(sizes.sum(), 2e7, 0.101)
    # The sizes vary as a binomial does: 99 z^2 of mean 1, within five standard errors.
    spread = ((sizes - 20_000) ** 2).sum() / (200_000 * 0.1 * 0.9)
    assert abs(spread - 100) < 5 * np.sqrt(200)


def test_poisson_treats_every_position_alike():
    """Early and late positions of a block, and all blocks (160 of 80 positions)."""
    taken = incidence(p.Poisson(0.1).sampler(800, 4_000, Secret.insecure(6)))
    by_position = taken.reshape(10, 80, -1).sum(axis=(0, 2))
    by_block = taken.reshape(10, 80, -1).sum(axis=(1, 2))
    assert stats.chisquare(by_position).pvalue > ALPHA
    assert stats.chisquare(by_block).pvalue > ALPHA


def test_poisson_at_extreme_rates():
    everyone = p.Poisson(1.0).sampler(100, 3, Secret.insecure(7))
    np.testing.assert_array_equal(everyone.batch(1).indices, np.arange(100))
    nobody = p.Poisson(5e-324).sampler(10**12, 100, Secret.insecure(7))
    assert sum(nobody.batch(step).indices.size for step in range(100)) == 0
    rare = p.Poisson(1e-9).sampler(10**11, 100, Secret.insecure(7))
    assert is_close(sum(rare.batch(step).indices.size for step in range(100)), 1e13, 1e-9)
    one = p.Poisson(0.5).sampler(1, 3000, Secret.insecure(7))
    assert agrees(subsets_of(one), {(): 0.5, (0,): 0.5})
    nearly = p.Poisson(1 - 2**-53).sampler(1000, 50, Secret.insecure(7))
    assert all(nearly.batch(step).indices.size == 1000 for step in range(50))


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_what_is_kept_of_a_large_batch_is_a_uniform_subset(limit):
    sampler = p.Poisson(1.0, max_batch=limit).sampler(5, 3_000, Secret.insecure(8))
    assert agrees(subsets_of(sampler), uniform(combinations(range(5), limit)))


def test_truncated_poisson_has_the_law_of_a_random_part_of_a_poisson_batch():
    expected = Counter()
    for drawn, probability in coins(5, 0.6).items():
        kept = list(combinations(drawn, min(2, len(drawn))))
        for part in kept:
            expected[part] += probability / len(kept)
    sampler = p.Poisson(0.6, max_batch=2).sampler(5, 6_000, Secret.insecure(9))
    assert agrees(subsets_of(sampler), expected)


# groups and bins


@pytest.mark.parametrize("participation", [p.CyclicPoisson(7, 1.0), p.BallsInBins(1, 7)], ids=str)
def test_groups_and_bins_are_uniform_and_independent(participation):
    """Whole triples of neighbouring ids over 343 cells; a balanced assignment would fail at once."""
    taken = incidence(participation.sampler(60_000, 7, Secret.insecure(10)))
    of_example = taken.argmax(axis=1)
    observed = [tuple(triple) for triple in of_example.reshape(-1, 3).tolist()]
    assert agrees(observed, uniform(product(range(7), repeat=3)))
    assert np.ptp(taken.sum(axis=0)) > 1


def test_bins_are_independent_of_the_secret_of_another_run():
    secrets = [Secret.insecure(10).child("run", 1), Secret.insecure(10).child("run", 2)]
    one, two = (incidence(p.BallsInBins(1, 7).sampler(20_000, 7, s)).argmax(axis=1) for s in secrets)
    assert agrees(zip(one.tolist(), two.tolist(), strict=True), uniform(product(range(7), repeat=2)))


def test_cyclic_poisson_tosses_independent_coins_within_a_group():
    """Those of neighbours in the group, and of one member in two steps of the group."""
    sampler = p.CyclicPoisson(3, 0.4).sampler(200_000, 6, Secret.insecure(11))
    taken = incidence(sampler)
    members = sampler._groups.members(0)[:60_000]
    assert agrees(neighbours(taken[members, 0], 4), coins(4, 0.4))
    assert agrees(neighbours(taken[members][:, [0, 3]], 2), coins(2, 0.4))
    assert not taken[members][:, [1, 2, 4, 5]].any()


def test_dropped_balls_are_drawn_afresh_in_every_epoch():
    sampler = p.BallsInBins(6000, 1, max_batch=2).sampler(4, 6000, Secret.insecure(12))
    assert agrees(subsets_of(sampler), uniform(combinations(range(4), 2)))


# subsets and orders


def test_fixed_size_draws_every_subset_alike():
    sampler = p.FixedSize(1, 3).sampler(6, 6_000, Secret.insecure(13))
    assert agrees(subsets_of(sampler), uniform(combinations(range(6), 3)))


def test_fixed_size_draws_are_independent_over_steps():
    drawn = subsets_of(p.FixedSize(1, 2).sampler(4, 6_000, Secret.insecure(14)))
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    assert agrees(pairs, uniform(product(combinations(range(4), 2), repeat=2)))


def test_shuffled_epochs_have_uniform_and_independent_orders():
    drawn = subsets_of(p.ShuffledEpochs(6_000, 3).sampler(3, 18_000, Secret.insecure(15)))
    orders = [tuple(one[0] for one in drawn[start : start + 3]) for start in range(0, 18_000, 3)]
    assert agrees(orders, uniform(permutations(range(3))))
    pairs = zip(orders[::2], orders[1::2], strict=True)
    assert agrees(pairs, uniform(product(permutations(range(3)), repeat=2)))


def test_fixed_order_is_uniform_over_secrets_and_runs_of_ids():
    """Each run of four ids is in a uniform order of its own."""
    orders = [tuple(run) for run in _runs(p.FixedEpochs(1, 4), 80_000, 4)]
    assert agrees(orders, uniform(permutations(range(4))))
    pairs = zip(orders[::2], orders[1::2], strict=True)
    assert agrees(pairs, uniform(product(permutations(range(4)), repeat=2)))


def test_single_participation_places_few_examples_anywhere():
    first = [int(incidence(_single(secret)).argmax(axis=1)[0]) for secret in range(1500)]
    assert agrees(first, uniform(range(10)))


def _single(secret):
    return p.SingleParticipation().sampler(2, 10, Secret.insecure(secret))


def _runs(participation, examples, period):
    taken = incidence(participation.sampler(examples, period, Secret.insecure(16)))
    return taken.argmax(axis=1).reshape(-1, period).tolist()


# random min-separation: the exact law of a pattern, from the definition


def min_separation_law(steps, separation, rate, warm):
    """{pattern: probability} by walking the chain whose state is the number of steps still to wait."""
    waits = range(separation)
    start = {w: 1.0 if w == 0 else 0.0 for w in waits}
    if warm:  # the stationary law, as the eigenvector of the chain
        chain = np.zeros((separation, separation))
        for w in waits:
            if w > 0:
                chain[w, w - 1] = 1
            else:
                chain[0, separation - 1] += rate
                chain[0, 0] += 1 - rate
        values, vectors = np.linalg.eig(chain.T)
        stationary = vectors[:, np.argmin(abs(values - 1))].real
        start = dict(zip(waits, stationary / stationary.sum(), strict=True))
    states = Counter({((), w): probability for w, probability in start.items()})
    for step in range(steps):
        after = Counter()
        for (pattern, wait), probability in states.items():
            if wait > 0:
                after[pattern, wait - 1] += probability
            else:
                after[(*pattern, step), separation - 1] += probability * rate
                after[pattern, 0] += probability * (1 - rate)
        states = after
    law = Counter()
    for (pattern, _), probability in states.items():
        law[pattern] += probability
    return {pattern: probability for pattern, probability in law.items() if probability > 1e-15}


def patterns(participation, examples, steps, secret):
    taken = incidence(participation.sampler(examples, steps, Secret.insecure(secret)))
    return [tuple(np.flatnonzero(row).tolist()) for row in taken]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize(("separation", "rate"), [(1, 0.4), (2, 0.3), (3, 0.2), (3, 0.7), (4, 1.0), (9, 0.1)])
def test_random_min_separation_has_the_exact_law_of_patterns(separation, rate, warm):
    """Eight steps: up to five windows, so the passage from window to window is tested."""
    drawn = patterns(p.PoissonMinSeparation(separation, rate, None, warm), 60_000, 8, 17)
    law = min_separation_law(8, separation, rate, warm)
    common = {pattern: q for pattern, q in law.items() if q * 60_000 > 8}
    rest = 1 - sum(common.values())
    assert set(drawn) <= set(law)
    merged = [pattern if pattern in common else "rest" for pattern in drawn]
    if rest * 60_000 > 8:
        assert agrees(merged, {**common, "rest": rest})
    else:
        assert merged.count("rest") < 60
        total = sum(common.values())
        assert agrees([m for m in merged if m != "rest"], {k: v / total for k, v in common.items()})


def test_the_law_of_patterns_notices_one_step_less_of_separation():
    drawn = patterns(p.PoissonMinSeparation(3, 0.2), 60_000, 6, 18)
    assert not set(drawn) <= set(min_separation_law(6, 4, 0.2, False))
    assert not agrees(drawn, min_separation_law(6, 2, 0.2, False))


def test_examples_of_random_min_separation_are_independent():
    drawn = patterns(p.PoissonMinSeparation(2, 0.4, None, True), 60_000, 3, 19)
    law = min_separation_law(3, 2, 0.4, True)
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    assert agrees(pairs, {(a, b): law[a] * law[b] for a in law for b in law})


def test_a_warm_start_takes_the_same_share_in_every_step():
    b, rate = 50, 0.1
    taken = incidence(p.PoissonMinSeparation(b, rate, None, True).sampler(20_000, 120, Secret.insecure(20)))
    share = rate / (1 + (b - 1) * rate)
    assert all(is_close(count, 20_000, share) for count in taken.sum(axis=0))
    cold = incidence(p.PoissonMinSeparation(b, rate).sampler(20_000, 1, Secret.insecure(20)))
    assert is_close(cold.sum(), 20_000, rate)


def test_a_warm_start_at_rate_one_is_balls_in_bins():
    drawn = patterns(p.PoissonMinSeparation(4, 1.0, None, True), 20_000, 8, 21)
    assert agrees(drawn, uniform((i, i + 4) for i in range(4)))


def test_a_dropped_example_waits_as_if_it_had_taken_part():
    limited = incidence(p.PoissonMinSeparation(3, 0.5, 2).sampler(30, 30, Secret.insecure(22)))
    full = incidence(p.PoissonMinSeparation(3, 0.5).sampler(30, 30, Secret.insecure(22)))
    assert not (limited & ~full).any()
    np.testing.assert_array_equal(limited.sum(axis=0), np.minimum(full.sum(axis=0), 2))
