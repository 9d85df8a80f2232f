"""What every sampler must do, whichever participation it comes from."""

import copy
import hashlib
import pickle
import threading

import numpy as np
import pytest
from hypothesis import strategies as st

from antiphase import _participation as p
from antiphase._errors import AntiphaseError, InvalidArgument, NotProved
from antiphase._samplers.base import Sampler
from antiphase._secret import Secret
from tests.samplers.cases import FIXED, STRATEGIES, broken_promises, concrete, incidence, search, situations

names = pytest.mark.parametrize("participation", FIXED, ids=str)
STEPS, EXAMPLES = 12, 40
DROPPING = {p.Poisson, p.CyclicPoisson, p.BallsInBins, p.PoissonMinSeparation}


def make(participation, secret=1, examples=EXAMPLES, steps=STEPS):
    return participation.sampler(examples, steps, Secret.insecure(secret))


def test_every_participation_is_covered():
    assert set(STRATEGIES) == set(concrete()) == {type(participation) for participation in FIXED}


# the promise


@search(situations())
def test_every_example_keeps_the_promise(setting):
    participation, examples, steps, secret = setting
    sampler = participation.sampler(examples, steps, secret)
    assert sampler.participation is participation
    assert broken_promises(participation, incidence(sampler)) == []


@search(situations())
def test_batches_are_sorted_distinct_and_of_the_promised_shape(setting):
    participation, examples, steps, secret = setting
    sampler = participation.sampler(examples, steps, secret)
    limit = getattr(participation, "max_batch", None)
    for step in range(steps):
        indices, mask = sampler.batch(step)
        assert (indices.dtype, mask.dtype) == (np.int64, np.bool_)
        assert indices.shape == mask.shape == ((mask.size,) if limit is None else (limit,))
        assert ((indices >= 0) & (indices < examples)).all()
        assert (np.diff(indices[mask]) > 0).all()
        assert limit is not None or mask.all()


@search(situations(kinds=(p.SingleParticipation, p.FixedEpochs, p.MinSeparation, p.ShuffledEpochs, p.EveryStep)))
def test_deterministic_samplers_use_every_example_as_often_as_they_may_and_balance_the_batches(setting):
    participation, examples, steps, secret = setting
    taken = incidence(participation.sampler(examples, steps, secret))
    # The last of ceil(steps / period) rounds may be cut short, so one fewer is possible.
    most = participation.largest_count(steps)
    slack = 0 if isinstance(participation, (p.EveryStep, p.SingleParticipation)) else 1
    if isinstance(participation, p.MinSeparation) and participation.max_participations:
        assert (taken.sum(axis=1) <= most).all()
    else:
        assert (taken.sum(axis=1) >= most - slack).all()
    assert np.ptp(taken.sum(axis=0)) <= 1


@search(situations(kinds=(p.FixedEpochs, p.BallsInBins)))
def test_fixed_orders_and_bins_are_kept_for_all_epochs(setting):
    participation, examples, steps, secret = setting
    if getattr(participation, "max_batch", None) is not None:
        return
    taken = incidence(participation.sampler(examples, steps, secret))
    b = participation.steps_per_epoch
    assert (taken[:, b:] == taken[:, : max(0, steps - b)]).all()
    assert (taken[:, :b].sum(axis=1) == 1).all() or steps < b


@search(situations(kinds=(p.ShuffledEpochs,)))
def test_shuffled_epochs_take_everyone_once_an_epoch(setting):
    participation, examples, steps, secret = setting
    taken = incidence(participation.sampler(examples, steps, secret))
    b = participation.steps_per_epoch
    for start in range(0, steps - b + 1, b):
        assert (taken[:, start : start + b].sum(axis=1) == 1).all()


@search(situations(kinds=(p.FixedSize,)))
def test_fixed_size_is_fixed(setting):
    participation, examples, steps, secret = setting
    taken = incidence(participation.sampler(examples, steps, secret))
    assert (taken.sum(axis=0) == participation.batch_size).all()


# sampler and participation cannot be changed apart from each other


def reassigned_every_epoch(taken, participation):
    taken[:, participation.steps_per_epoch :] = np.roll(taken[:, participation.steps_per_epoch :], 1, axis=0)


def one_step_too_soon(taken, participation):
    row = np.flatnonzero(taken.any(axis=1))[0]
    step = np.flatnonzero(taken[row])[0]
    taken[row, step + 1] = True


@pytest.mark.parametrize(
    ("participation", "change"),
    [
        (p.BallsInBins(4, 5), reassigned_every_epoch),
        (p.FixedEpochs(4, 5), reassigned_every_epoch),
        (p.SingleParticipation(), one_step_too_soon),
        (p.MinSeparation(2), one_step_too_soon),
        (p.CyclicPoisson(2, 0.9), one_step_too_soon),
        (p.FixedSize(2, 4), one_step_too_soon),
        (p.PoissonMinSeparation(2, 0.9), one_step_too_soon),
        (p.ShuffledEpochs(4, 5), one_step_too_soon),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value),
)
def test_the_check_of_the_promise_can_fail(participation, change):
    taken = incidence(make(participation))
    assert broken_promises(participation, taken) == []
    change(taken, participation)
    assert broken_promises(participation, taken) != []


@names
def test_a_sampler_does_not_keep_a_stricter_promise_than_its_own(participation):
    """Were a promise loosened or a sampler tightened alone, one of these would no longer be the edge."""
    taken = np.vstack([incidence(make(participation, secret)) for secret in range(20)])
    worst = participation.worst_case
    if isinstance(worst, p.EveryStep):
        stricter = p.MinSeparation(2)
    elif isinstance(worst, p.MinSeparation):
        gaps = [gap for row in taken for gap in np.diff(np.flatnonzero(row)).tolist()]
        assert min(gaps) >= worst.separation
        stricter = p.MinSeparation(min(gaps) + 1)
    elif isinstance(worst, p.FixedEpochs):
        stricter = p.MinSeparation(worst.steps_per_epoch + 1)
    elif isinstance(worst, p.ShuffledEpochs):
        stricter = p.FixedEpochs(worst.epochs, worst.steps_per_epoch)
    else:
        assert taken.any(axis=1).all()
        return
    assert broken_promises(stricter, taken) != []


@pytest.mark.parametrize(("separation", "gap"), [(1, 1), (2, 2), (5, 5)])
def test_min_separation_is_met_exactly(separation, gap):
    for participation in [
        p.MinSeparation(separation),
        p.PoissonMinSeparation(separation, 0.9),
        p.CyclicPoisson(separation, 0.9),
    ]:
        taken = incidence(make(participation, examples=200))
        gaps = np.concatenate([np.diff(np.flatnonzero(row)) for row in taken])
        assert gaps.min() == gap


# random access


@search(situations(), st.randoms(use_true_random=False))
def test_any_order_of_access_gives_the_same_batches(setting, random):
    participation, examples, steps, secret = setting
    in_order = participation.sampler(examples, steps, secret)
    expected = [in_order.batch(step) for step in range(steps)]
    order = [random.randrange(steps) for _ in range(2 * steps)]
    other = participation.sampler(examples, steps, secret)
    for step in order:
        for one, two in zip(other.batch(step), expected[step], strict=True):
            np.testing.assert_array_equal(one, two)


@names
def test_a_resumed_sampler_goes_on_with_the_same_batches(participation):
    whole = make(participation)
    before = [whole.batch(step) for step in range(STEPS)]
    resumed = make(participation)
    for step in range(7, STEPS):
        np.testing.assert_array_equal(resumed.batch(step).indices, before[step].indices)


@names
def test_threads_that_prefetch_get_the_same_batches(participation):
    expected = incidence(make(participation))
    sampler, found = make(participation), {}

    def fetch(first):
        for step in range(first, STEPS, 4):
            found[step] = sampler.batch(step)

    threads = [threading.Thread(target=fetch, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for step in range(STEPS):
        indices, mask = found[step]
        np.testing.assert_array_equal(indices[mask], np.flatnonzero(expected[:, step]))


@names
def test_a_caller_who_writes_into_a_batch_changes_nothing(participation):
    sampler, expected = make(participation), incidence(make(participation))
    for _ in range(2):
        for step in range(STEPS):
            indices, mask = sampler.batch(step)
            indices[:], mask[:] = -1, False
    np.testing.assert_array_equal(incidence(sampler), expected)


# adjacency


@search(situations(), st.integers(1, 20))
def test_an_example_more_moves_no_other_where_promised(setting, more):
    participation, examples, steps, secret = setting
    sampler = participation.sampler(examples, steps, secret)
    if sampler.independent_assignment:
        larger = incidence(participation.sampler(examples + more, steps, secret))
        np.testing.assert_array_equal(larger[:examples], incidence(sampler))


@names
def test_independent_assignment_is_denied_exactly_where_examples_move(participation):
    moves = any(
        (incidence(make(participation, secret, examples + 1))[:-1] != incidence(make(participation, secret, examples)))
        .any()
        .item()
        for secret in range(3)
        for examples in range(30, 40)
    )
    assert make(participation).independent_assignment == (not moves)


@pytest.mark.parametrize("kind", concrete(), ids=lambda kind: kind.__name__)
def test_which_samplers_have_independent_assignment(kind):
    """The table that the accounting reads."""
    expected = kind not in {p.ShuffledEpochs, p.FixedSize}
    for participation in FIXED:
        if type(participation) is kind:
            limited = getattr(participation, "max_batch", None) is not None
            assert make(participation).independent_assignment == (expected and not limited)


@names
def test_dropping_depends_on_numbers_alone_and_keeps_a_part_of_the_full_batch(participation):
    limit = getattr(participation, "max_batch", None)
    if limit is None:
        return
    assert type(participation) in DROPPING
    fields = {"max_batch": None, **{name: getattr(participation, name) for name in participation.__match_args__}}
    full = incidence(make(type(participation)(**{**fields, "max_batch": None})))
    kept = incidence(make(participation))
    assert not (kept & ~full).any()
    np.testing.assert_array_equal(kept.sum(axis=0), np.minimum(full.sum(axis=0), limit))
    assert (full.sum(axis=0) > limit).any()  # else nothing was tested


# the number of steps


@names
def test_an_extendable_sampler_begins_a_longer_run_with_the_same_batches(participation):
    fields = {name: getattr(participation, name) for name in participation.__match_args__}
    longer = type(participation)(**{**fields, "epochs": 9} if "epochs" in fields else fields)
    same = incidence(make(longer, steps=20))[:, :STEPS] == incidence(make(participation))
    assert make(participation).extendable == same.all()


def test_single_participation_and_limited_counts_are_not_extendable():
    assert not make(p.SingleParticipation()).extendable
    assert not make(p.MinSeparation(2, 3)).extendable
    assert make(p.MinSeparation(2)).extendable


@pytest.mark.parametrize("kind", [p.FixedEpochs, p.ShuffledEpochs, p.BallsInBins])
def test_more_steps_than_epochs_raise(kind):
    with pytest.raises(InvalidArgument, match="epochs=3"):
        make(kind(2, 4), steps=9)
    make(kind(2, 4), steps=7)


# secrets and parameters


@names
def test_another_secret_gives_other_batches(participation):
    if isinstance(participation, p.EveryStep):
        return
    assert (incidence(make(participation, 1)) != incidence(make(participation, 2))).any()


def test_other_parameters_or_another_kind_give_unrelated_batches():
    batches = [
        incidence(make(participation)).tobytes()
        for participation in [
            p.FixedEpochs(4, 4),
            p.FixedEpochs(4, 5),
            p.MinSeparation(4),
            p.BallsInBins(4, 4),
            p.Poisson(0.25),
            p.Poisson(0.25 + 1e-12),
            p.CyclicPoisson(1, 0.25),
            p.PoissonMinSeparation(1, 0.25),
            p.FixedSize(1, 10),
            p.FixedSize(1, 9),
        ]
    ]
    assert len(set(batches)) == len(batches)


GOLDEN = {
    "SingleParticipation()": "e160ab042beeeba9",
    "EveryStep()": "bb0917d06cb06e03",
    "FixedEpochs(epochs=4, steps_per_epoch=5)": "38deacd32f897b21",
    "ShuffledEpochs(epochs=4, steps_per_epoch=5)": "9cbbc6384e7915c1",
    "MinSeparation(separation=5, max_participations=None)": "0be7b1c99d0a0ca9",
    "MinSeparation(separation=3, max_participations=2)": "f442e2c9fecc008b",
    "Poisson(rate=0.3, max_batch=None)": "7dd478ca003463aa",
    "Poisson(rate=0.3, max_batch=8)": "254039475a190bcd",
    "CyclicPoisson(groups=3, rate=0.5, max_batch=None)": "87f0373eb9808c3c",
    "CyclicPoisson(groups=3, rate=0.5, max_batch=6)": "e90bbcb179c6452d",
    "FixedSize(groups=3, batch_size=4)": "e185c24f825ddcc4",
    "BallsInBins(epochs=4, steps_per_epoch=5, max_batch=None)": "de295bcb4c530666",
    "BallsInBins(epochs=4, steps_per_epoch=5, max_batch=6)": "fc7c766dc2d6ee57",
    "PoissonMinSeparation(separation=4, rate=0.2, max_batch=None, warm_start=False)": "02844d942daea3c2",
    "PoissonMinSeparation(separation=4, rate=0.2, max_batch=None, warm_start=True)": "a2e28351fd40b7c2",
    "PoissonMinSeparation(separation=4, rate=0.2, max_batch=3, warm_start=False)": "90bb783be6a074d8",
}


def digest(sampler):
    data = hashlib.sha256()
    for step in range(sampler.steps):
        indices, mask = sampler.batch(step)
        data.update(indices.astype("<i8").tobytes() + b"|" + mask.tobytes() + b"\n")
    return data.hexdigest()[:16]


@names
def test_the_batches_of_a_fixed_secret_are_frozen(participation):
    """A change here breaks resumed runs: it needs a new `_stream.FORMAT`."""
    assert digest(make(participation, secret=42, examples=1000)) == GOLDEN[str(participation)]


# bad input


@names
@pytest.mark.parametrize("step", [-1, STEPS, 1.0, True, "0", None])
def test_a_step_out_of_range_raises(participation, step):
    with pytest.raises(InvalidArgument, match="step"):
        make(participation).batch(step)


@names
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "3"])
def test_bad_numbers_of_examples_and_steps_raise(participation, value):
    with pytest.raises(InvalidArgument, match="examples"):
        make(participation, examples=value)
    with pytest.raises(InvalidArgument, match="steps"):
        make(participation, steps=value)


@names
@pytest.mark.parametrize("secret", [42, b"x" * 32, "x", None])
def test_only_a_secret_will_do(participation, secret):
    with pytest.raises(InvalidArgument, match=r"Secret\.insecure"):
        participation.sampler(EXAMPLES, STEPS, secret)


@names
@pytest.mark.parametrize("leak", [pickle.dumps, copy.deepcopy])
def test_a_sampler_cannot_be_pickled_or_copied(participation, leak):
    with pytest.raises(AntiphaseError, match="keys"):
        leak(make(participation))


@names
def test_a_sampler_shows_what_it_is_and_no_key(participation):
    shown = repr(make(participation))
    assert repr(participation) in shown
    assert "40 examples" in shown


def test_fixed_size_needs_groups_as_large_as_a_batch():
    with pytest.raises(InvalidArgument, match="at most 3"):
        p.FixedSize(4, 4).sampler(15, 4, Secret.insecure(1))
    p.FixedSize(4, 3).sampler(15, 4, Secret.insecure(1))


def test_a_participation_without_a_sampler_is_not_guessed():
    class Strange(p.Participation):
        worst_case = p.EveryStep()
        expected_batch = describe = None

    class StrangePatterns(p.Deterministic):
        patterns = largest_count = spacing = describe = None

    for kind in (Strange, StrangePatterns):
        with pytest.raises(NotProved, match=f"no sampler for {kind.__name__}"):
            kind().sampler(3, 3, Secret.insecure(1))


def test_random_min_separation_limits_its_table():
    with pytest.raises(InvalidArgument, match="separation"):
        make(p.PoissonMinSeparation(2**20 + 1, 0.1))


def test_numpy_integers_are_integers():
    for participation in FIXED:
        sampler = participation.sampler(np.int32(EXAMPLES), np.int64(STEPS), Secret.insecure(1))
        np.testing.assert_array_equal(sampler.batch(np.int64(3)).indices, make(participation).batch(3).indices)


def test_samplers_are_final_or_abstract():
    for kind in Sampler.__subclasses__():
        assert kind.__subclasses__() == []
        assert kind.__final__


def test_a_sampler_whose_making_was_refused_can_be_shown():
    """As a debugger or a traceback does."""
    kind = type(p.MinSeparation(2).sampler(10, 4, Secret.insecure(1)))
    assert repr(object.__new__(kind)) == f"<{kind.__name__}, not initialised>"
