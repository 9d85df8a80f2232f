"""What participations say about themselves, against their samplers and patterns."""

import itertools

import numpy as np
import pytest

from antiphase import _participation as p
from antiphase._secret import Secret

EXAMPLES, STEPS = 400, 24
EVERY = [
    p.SingleParticipation(),
    p.EveryStep(),
    p.FixedEpochs(3, 8),
    p.ShuffledEpochs(3, 8),
    p.MinSeparation(8),
    p.Poisson(0.2),
    p.CyclicPoisson(4, 0.3),
    p.FixedSize(4, 7),
    p.BallsInBins(3, 8),
    p.PoissonMinSeparation(4, 0.3, warm_start=True),
]


@pytest.mark.parametrize("participation", EVERY, ids=repr)
def test_the_expected_batch_is_what_the_sampler_draws_on_average(participation):
    draws = 20
    sampled = [participation.sampler(EXAMPLES, STEPS, Secret.insecure(i)) for i in range(draws)]
    mean = np.mean([sampler.batch(t).mask.sum() for sampler in sampled for t in range(STEPS)])
    # The total is a sum over independent examples of at most STEPS coins, positively correlated at worst by a factor
    # of the number of participations; six standard deviations, about 6 % of the batch.
    expected = participation.expected_batch(EXAMPLES, STEPS)
    assert mean == pytest.approx(expected, rel=6.0 / np.sqrt(draws * EXAMPLES))


@pytest.mark.parametrize("participation", EVERY[:5], ids=repr)
@pytest.mark.parametrize("steps", [1, 5, 12])
def test_the_spacing_is_that_of_the_patterns(participation, steps):
    """Participations of the worst pattern are a spacing apart on average: k of them fit once in each spacing."""
    k = max(len(pattern) for pattern in participation.patterns(steps))
    assert k == participation.largest_count(steps) == -(-steps // participation.spacing(steps))


@pytest.mark.parametrize("participation", EVERY, ids=repr)
def test_for_steps_adds_epochs_where_they_are_counted_and_changes_nothing_else(participation):
    longer = participation.for_steps(STEPS + 1)
    if participation.max_steps is None:
        assert longer is participation
    else:
        assert participation.max_steps == STEPS
        assert longer == type(participation)(4, 8)
        with pytest.raises(ValueError, match="'epochs' parameter"):
            participation.worst_case.largest_count(STEPS + 1)
    assert longer.worst_case.largest_count(STEPS + 1) >= 1
    assert participation.for_steps(STEPS - 1) == participation


def test_groups_take_turns():
    for participation, seed in itertools.product(EVERY, range(3)):
        groups = participation.sampling_groups
        if groups is not None:
            sampler = participation.sampler(EXAMPLES, STEPS, Secret.insecure(seed))
            met = [{int(i) for t in range(g, STEPS, groups) for i in sampler.batch(t).indices} for g in range(groups)]
            assert all(a.isdisjoint(b) for a, b in itertools.combinations(met, 2))
    assert [q.sampling_groups for q in EVERY[5:]] == [1, 4, 4, None, None]
