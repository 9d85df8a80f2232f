"""Amplified mechanisms: the reduction to sampled Gaussians, truncated batches, samples without replacement."""

import math
from itertools import combinations, combinations_with_replacement, permutations

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.stats import binom

from antiphase import CyclicPoisson, EveryStep, FixedSize, NotProved, Poisson
from antiphase._accounting import Mechanism, delta, epsilon
from antiphase._accounting.loss_accountant import GaussianSteps
from antiphase._accounting.loss_accountant import delta as loss_delta
from antiphase._accounting.poisson import Truncation
from antiphase.strategies import Banded, Dense, Identity, Toeplitz
from tests.accounting.oracle import decreasing_root, mixture_delta, sampled_delta, twice_sampled_delta


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_poisson_uses_the_largest_entry_and_every_step(adjacency):
    strategy = Banded([[0.5], [2.0]])  # two steps, the second twice as sensitive as the noise of 2 allows for mu = 1
    found = epsilon(Mechanism(strategy, Poisson(0.3), 2.0, adjacency), 1e-3)
    truth = decreasing_root(lambda e: twice_sampled_delta(1.0, 0.3, e) - 1e-3, 0.0, 10.0)
    less_noise = decreasing_root(lambda e: twice_sampled_delta(1.01, 0.3, e) - 1e-3, 0.0, 10.0)
    assert found.kind == "upper"
    assert truth <= found.value < less_noise


def test_cyclic_poisson_holds_for_the_real_thing():
    """Draws from the mechanism itself, C and all, against the accountant: an example of group 0 in steps 0 and 2."""
    strategy = Toeplitz([1.0, 0.6], 4)
    rate, noise, at, samples = 0.3, 1.0, 0.7, 600_000
    columns = strategy.encoder()[:, [0, 2]]
    rng = np.random.default_rng(0)
    joins = rng.random((samples, 2)) < rate
    y = joins @ columns.T + noise * rng.normal(size=(samples, 4))
    ratio = np.zeros(samples)  # of the densities with and without the example: a mixture of four Gaussians
    for first in (0, 1):
        for second in (0, 1):
            mean = columns @ np.array([first, second])
            weight = rate ** (first + second) * (1 - rate) ** (2 - first - second)
            ratio += weight * np.exp((y @ mean - mean @ mean / 2.0) / noise**2)
    shares = np.maximum(0.0, 1.0 - math.exp(at) / ratio)
    error = shares.std() / math.sqrt(samples)
    found = delta(Mechanism(strategy, CyclicPoisson(2, rate), noise), at).value
    assert abs(found - shares.mean()) < 4.0 * error
    assert delta(Mechanism(strategy, CyclicPoisson(2, rate), 0.97 * noise), at).value > shares.mean() + 4.0 * error


def test_cyclic_poisson_rounds_up_and_takes_the_largest_column():
    strategy = Banded([[1.0, 0.0], [0.6, 0.8], [3.0, 4.0], [1.0, 0.0], [1.0, 0.0]])  # the largest column has norm 5
    mechanism = Mechanism(strategy, CyclicPoisson(2, 0.2), 10.0)
    assert mechanism.effective_noise_multiplier == pytest.approx(2.0)
    event = mechanism.dp_event()
    assert event.count == 3
    assert event.event.sampling_probability == 0.2
    assert event.event.event.noise_multiplier == pytest.approx(2.0)


@pytest.mark.parametrize(
    "mechanism",
    [
        Mechanism(Identity(40), Poisson(0.1), 1.2),
        Mechanism(Toeplitz([1.0, 0.5], 40, column_normalized=True), CyclicPoisson(4, 0.3), 1.5),
    ],
    ids=["poisson", "cyclic"],
)
def test_the_event_gives_the_same_epsilon_in_dp_accounting(mechanism):
    for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.ADD_OR_REMOVE_ONE):
        peer = PLDAccountant(relation, 1e-3).compose(mechanism.dp_event()).get_epsilon(1e-5)
        assert epsilon(mechanism, 1e-5).value == pytest.approx(peer, rel=2e-4)


def test_dense_strategies_amplify_by_their_bands():
    matrix = Toeplitz([1.0, 0.5], 12).encoder()
    same = [
        epsilon(Mechanism(s, CyclicPoisson(3, 0.1), 1.0), 1e-5).value for s in (Dense(matrix), Toeplitz([1.0, 0.5], 12))
    ]
    assert same[0] == pytest.approx(same[1], rel=1e-12)


# Truncated batches: two examples, at most one of them in a batch. The other contributes -1, the example +1 or 0.


def two_examples(mu, rate):
    one, none = rate - rate**2 / 2.0, (1.0 - rate) ** 2
    return [(none, 0.0), (one, mu), (one, -mu)], [(none, 0.0), (one, 0.0), (one, -mu)]


def test_truncation_breaks_the_guarantee_of_plain_poisson_sampling_under_zero_out():
    present, absent = two_examples(1.0, 0.5)
    assert mixture_delta(present, absent, 3.0) > 1.3 * sampled_delta(1.0, 0.5, 3.0)


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.5), (2.0, 0.1), (0.5, 0.9)])
@pytest.mark.parametrize("at", [0.3, 1.0, 3.0])
def test_truncated_poisson_covers_both_directions(mu, rate, at):
    present, absent = two_examples(mu, rate)
    mechanism = Mechanism(Identity(1), Poisson(rate, max_batch=1), 1.0 / mu, examples=2)
    found = delta(mechanism, at).value
    assert found >= mixture_delta(present, absent, at)
    assert found >= mixture_delta(absent, present, at)


def test_truncated_poisson_covers_a_removed_example():
    mu, rate, at = 1.0, 0.5, 3.0
    present, _ = two_examples(mu, rate)
    removed = [(1.0 - rate, 0.0), (rate, -mu)]
    mechanism = Mechanism(Identity(1), Poisson(rate, max_batch=1), 1.0 / mu, "add-or-remove", examples=2)
    found = delta(mechanism, at).value
    assert found >= mixture_delta(present, removed, at)
    assert found >= mixture_delta(removed, present, at)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_truncation_that_hardly_ever_happens_costs_hardly_anything(adjacency):
    plain = epsilon(Mechanism(Identity(100), Poisson(0.1), 1.0, adjacency), 1e-6).value
    costs = [
        epsilon(Mechanism(Identity(100), Poisson(0.1, max_batch=size), 1.0, adjacency, 1000), 1e-6).value
        for size in (100, 130, 160, 200, 1000)
    ]
    assert costs[0] > costs[1] > costs[2] >= costs[3] * (1 - 1e-12)
    assert plain * (1 - 1e-12) <= costs[-1] <= costs[-2] * (1 + 1e-12) <= 1.0001 * plain
    assert costs[0] > 1.5 * plain


def test_truncated_poisson_is_near_and_not_above_dp_accounting():
    mechanism = Mechanism(Identity(50), Poisson(0.1, max_batch=125), 1.0, examples=1000)
    plain = Mechanism(Identity(50), Poisson(0.1), 1.0)
    peer = PLDAccountant(NeighboringRelation.REPLACE_SPECIAL, 1e-3).compose(mechanism.dp_event()).get_epsilon(1e-5)
    assert epsilon(plain, 1e-5).value < epsilon(mechanism, 1e-5).value <= peer * (1 + 2e-4)
    assert peer <= 1.1 * epsilon(mechanism, 1e-5).value


def test_group_sizes_are_bounded_with_the_stated_probability():
    truncation = Truncation(examples=5000, groups=7, max_batch=90)
    for failure in (1e-3, 1e-9, 1e-20):
        others = truncation._others(failure)
        assert binom.sf(others, 4999, 1 / 7) <= failure < binom.sf(others - 1, 4999, 1 / 7)
    overflow = binom.sf(89, truncation._others(1e-9), 0.1)
    assert overflow <= truncation.overflow(0.1, 1e-9) <= overflow * (1 + 2e-9)
    assert Truncation(50, 1, 90).overflow(0.5, 0.0) == 0.0
    assert Truncation(50, 1, 20).overflow(0.5, 0.0) == pytest.approx(binom.sf(19, 49, 0.5))


def test_truncated_cyclic_poisson_pays_for_groups_that_turn_out_large():
    strategy = Toeplitz([1.0, 0.5], 60)
    plain = epsilon(Mechanism(strategy, CyclicPoisson(3, 0.1), 1.0), 1e-6).value
    costs = [
        epsilon(Mechanism(strategy, CyclicPoisson(3, 0.1, max_batch=size), 1.0, examples=3000), 1e-6).value
        for size in (110, 150, 300)
    ]
    assert costs == sorted(costs, reverse=True)
    assert plain < costs[-1] < 1.0005 * plain
    with pytest.raises(NotProved, match="no event"):
        Mechanism(strategy, CyclicPoisson(3, 0.1, max_batch=150), 1.0, examples=3000).dp_event()


def test_an_overflow_costs_more_than_the_plain_pair():
    for at in (0.0, 0.5, 2.0):
        values = [
            loss_delta([GaussianSteps(1.0, 0.2, 5, overflow=overflow)], at + 1e-9) for overflow in (0.0, 1e-3, 0.1, 1.0)
        ]
        assert values == sorted(values)


# Samples without replacement.


def without_replacement(noise=4.0):
    return Mechanism(Toeplitz([0.6, 0.8], 20), FixedSize(2, 10), noise, "replace", examples=400)


def test_fixed_size_uses_twice_the_largest_column_and_the_smallest_group():
    event = without_replacement().dp_event()
    assert event.count == 10
    assert (event.event.source_dataset_size, event.event.sample_size) == (200, 10)
    assert event.event.event.noise_multiplier == pytest.approx(4.0 / 2.0)


def batches(values, size):
    """The sum of each equally likely batch, as a mixture of unit Gaussians."""
    found = [sum(batch) for batch in combinations(values, size)]
    return [(1.0 / len(found), total) for total in found]


def lattice_delta(p, q, at):
    x = np.arange(-10.0, 10.0, 1e-3)
    excess = sum(w * np.exp(-((x - m) ** 2) / 2.0) for w, m in p)
    excess -= math.exp(at) * sum(w * np.exp(-((x - m) ** 2) / 2.0) for w, m in q)
    return np.maximum(0.0, excess).sum() * 1e-3 / math.sqrt(2.0 * math.pi)


@pytest.mark.parametrize(("others", "size"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("at", [0.1, 0.7, 2.0, 4.0])
def test_fixed_size_covers_every_small_data_set_and_meets_the_worst(others, size, at):
    """All data sets of contributions -1, 0, 1 (times mu), in both directions; the worst one is met exactly."""
    mu, worst = 0.8, 0.0
    for rest in combinations_with_replacement((-mu, 0.0, mu), others):
        for first, second in permutations((-mu, 0.0, mu), 2):
            p, q = batches((first, *rest), size), batches((second, *rest), size)
            worst = max(worst, lattice_delta(p, q, at))
    mechanism = Mechanism(Identity(1), FixedSize(1, size), 1.0 / mu, "replace", examples=others + 1)
    found = delta(mechanism, at).value
    assert worst * (1 - 1e-5) <= found
    if size == 1:
        less_noise = Mechanism(Identity(1), FixedSize(1, size), 0.99 / mu, "replace", examples=others + 1)
        assert found <= worst * (1 + 1e-3) < delta(less_noise, at).value


def test_substitution_covers_vectors_in_the_plane():
    """(1 - q) N(0) + q N(v) against (1 - q) N(0) + q N(w) for |v|, |w|, |v - w| <= mu, by sums over a fine lattice."""
    mu, rate = 1.5, 0.3
    axis = np.arange(-8.0, 9.5, 0.05)
    x, y = np.meshgrid(axis, axis)
    rng = np.random.default_rng(0)

    def mixed(shift):
        plain = np.exp(-(x**2 + y**2) / 2.0)
        moved = np.exp(-((x - shift[0]) ** 2 + (y - shift[1]) ** 2) / 2.0)
        return ((1.0 - rate) * plain + rate * moved) / (2.0 * np.pi) * 0.05**2

    bounds = {at: loss_delta([GaussianSteps(mu, rate, 1, substitutes=True)], at) for at in (0.05, 0.5, 1.5)}
    tried, closest = 0, 0.0
    while tried < 40:
        v, w = rng.uniform(-mu, mu, (2, 2))
        if max(map(np.linalg.norm, (v, w, v - w))) > mu:
            continue
        tried += 1
        p, q = mixed(v), mixed(w)
        for at, bound in bounds.items():
            truth = np.maximum(0.0, p - math.exp(at) * q).sum()
            assert truth <= bound * (1 + 1e-4)
            closest = max(closest, truth / bound)
    assert closest > 0.5  # the bound is not met by being far away


def test_fixed_size_lies_between_the_attack_and_the_rdp_accountant():
    """The attack: all other examples contribute -1, the example +1 in one data set and -1 in the other."""
    found = epsilon(without_replacement(), 1e-5).value
    attack = decreasing_root(lambda e: loss_delta([GaussianSteps(0.5, 10 / 200, 10)], e, 0.1) - 1e-5, 1e-6, 5.0)
    peer = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    assert attack * (1 - 2e-3) <= found <= 1.2 * attack
    assert found < peer.compose(without_replacement().dp_event()).get_epsilon(1e-5)
    assert found < epsilon(without_replacement(0.99 * 4.0), 1e-5).value


def test_a_sample_of_everything_is_one_gaussian():
    for steps in (1, 5):
        mechanism = Mechanism(Identity(steps), FixedSize(1, 7), 3.0, "replace", examples=7)
        plain = Mechanism(Identity(steps), EveryStep(), 3.0, "replace")
        assert epsilon(plain, 1e-6).value <= epsilon(mechanism, 1e-6).value <= 1.0003 * epsilon(plain, 1e-6).value
