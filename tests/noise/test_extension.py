"""Going on with more steps: the same noise for what was released, and no noise used for two sums."""

from types import SimpleNamespace

import numpy as np
import pytest

import antiphase as ap
from antiphase._noise import NoiseStream
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.noise.streams import SECRET, Noisy, flat, stream, take

LEAVES = [(40,)]
EXTENSIBLE = {
    "identity": Identity,
    "toeplitz": lambda n: Toeplitz([1.0, 0.5, 0.25], n),
    "blt": lambda n: BLT([0.9, 0.5], [0.2, 0.1], n),
    "banded-inverse": lambda n: BandedInverse([1.0, -0.5, -0.1], n),
    "tree": Tree,
}


def long_noise(make, short, long):
    """The longer plan's noise under the keys of the shorter one, made without ever stopping."""
    return take(NoiseStream(Noisy(make(long)), LEAVES, SECRET, first=Noisy(make(short))))


@pytest.mark.parametrize("name", EXTENSIBLE)
@pytest.mark.parametrize(("short", "long"), [(8, 21), (5, 6), (7, 16), (8, 8)])
def test_an_extended_stream_goes_on_with_its_noise(name, short, long, tmp_path):
    make = EXTENSIBLE[name]
    wanted = long_noise(make, short, long)
    for stop in range(short):
        made = stream(make(short), LEAVES)
        released = [flat(made.next()) for _ in range(stop)]
        made.save(tmp_path / "state")
        made = NoiseStream.load(tmp_path / "state", Noisy(make(short)), SECRET)
        made.extend(Noisy(make(long)))
        made.save(tmp_path / "state")
        made = NoiseStream.load(tmp_path / "state", Noisy(make(long)), SECRET)
        assert np.stack([*released, *take(made)]).tobytes() == wanted.tobytes()
        with pytest.raises(ap.Refused):
            made.next()


@pytest.mark.parametrize("lookahead", [2, 3, 5])
def test_an_extension_in_the_middle_of_a_lookahead(lookahead):
    """The last block of the shorter plan is cut short; the longer one goes on from there."""
    make = EXTENSIBLE["toeplitz"]
    for stop in range(8):
        made = stream(make(7), LEAVES, lookahead=lookahead)
        released = [flat(made.next()) for _ in range(stop)]
        made.extend(Noisy(make(20)))
        assert np.stack([*released, *take(made)]).tobytes() == long_noise(make, 7, 20).tobytes()


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_replay_of_an_extended_run(name):
    make = EXTENSIBLE[name]
    wanted = long_noise(make, 6, 20)
    replayed = NoiseStream(Noisy(make(20)), LEAVES, SECRET, first=Noisy(make(6)), start_step=9)
    assert take(replayed).tobytes() == wanted[9:].tobytes()


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_after_the_last_step_too_where_that_step_is_like_the_others(name):
    """The released noise is that of the longer plan: true of every step, and for trees of a power of two."""
    make, steps = EXTENSIBLE[name], 8
    made = stream(make(steps), LEAVES)
    released = take(made)
    made.extend(Noisy(make(21)))
    assert np.concatenate([released, take(made)]).tobytes() == long_noise(make, steps, 21).tobytes()


@pytest.mark.parametrize("steps", [3, 5, 6, 7, 12])
def test_a_tree_that_its_last_step_has_closed_is_not_extended(steps):
    made = stream(Tree(steps), LEAVES)
    released = take(made)
    with pytest.raises(ap.Refused, match="can no longer be extended"):
        made.extend(Noisy(Tree(20)))
    # Rightly so: what was released last is not what the longer tree would have released.
    longer = long_noise(Tree, steps, 20)
    assert released[:-1].tobytes() == longer[: steps - 1].tobytes()
    assert not np.isclose(released[-1], longer[steps - 1]).any()


def test_a_closed_tree_would_leak():
    """Why: the last step of 3 and a longer tree's step 3 would put the same noise on two different sums."""
    short, long = Tree(3), Tree(4)
    root_of_three, root_of_four = short.encoder()[-1], long.encoder()[-1]
    assert short.rows == 6
    assert root_of_three.tolist() == [1, 1, 1]
    assert root_of_four.tolist() == [1, 1, 1, 1]
    # Step 2 of the short tree draws rows 3, 4, 5; steps 2 and 3 of the long one rows 3 and 4, 5, 6.
    drawn_short = range(2 * 2 - 1, 2 * 2 - 1 + short.rows_at(2))
    drawn_long = range(2 * 3 - 2, 2 * 3 - 2 + long.rows_at(3))
    assert set(drawn_short) & set(drawn_long) == {4, 5}
    assert not np.array_equal(short.encoder()[4], long.encoder()[4][:3])


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (Toeplitz([1.0, 0.5], 4, column_normalized=True), Toeplitz([1.0, 0.5], 8, column_normalized=True)),
        (Banded([[1.0], [1.0]]), Banded([[1.0], [1.0], [1.0]])),
        (Dense(np.eye(2)), Dense(np.eye(3))),
        (Fourier(4), Fourier(8)),
        (Tree(4, decoder="full"), Tree(8, decoder="full")),
        (Stamped(Identity(2), 2), Stamped(Identity(2), 3)),
        (Toeplitz([1.0, 0.5], 4), Toeplitz([1.0, 0.4], 8)),
        (Toeplitz([1.0, 0.5], 4), Toeplitz([1.0, 0.5], 8, column_normalized=True)),
        (Toeplitz([1.0, 0.5], 4), Toeplitz([1.0, 0.5], 3)),
        (BLT([0.9], [0.2], 4), BLT([0.9], [0.3], 8)),
        (Identity(4), Toeplitz([1.0], 8)),
        (Tree(4), Tree(8, decoder="full")),
    ],
)
def test_what_is_not_the_same_matrix_for_more_steps_is_refused(short, long):
    made = stream(short, LEAVES)
    with pytest.raises(ap.Refused):
        made.extend(Noisy(long))
    with pytest.raises(ap.Refused):
        NoiseStream(Noisy(long), LEAVES, SECRET, first=Noisy(short))
    assert made.steps == short.steps


def test_other_noise_is_not_an_extension():
    with pytest.raises(ap.Refused):
        stream(Identity(4), LEAVES).extend(Noisy(Identity(8), noise_std=0.5))


def test_plans_of_different_length_share_no_noise_unless_one_extends_the_other():
    """With one secret and run id, a shorter trial and the real run would otherwise reveal their difference."""
    short, long = take(stream(Identity(4), LEAVES)), take(stream(Identity(8), LEAVES))
    assert not np.isin(short, long).any()
    assert np.isin(short, long_noise(Identity, 4, 8)).all()


def plan(steps, root="", name=None):
    mechanism = Noisy(BLT([0.9], [0.2], steps))
    return SimpleNamespace(mechanism=mechanism, root=root, fingerprint=name or f"plan of {steps}")


def test_a_plan_names_the_noise_of_the_plan_it_extends():
    first, longer = plan(4), plan(9, root="plan of 4")
    made = NoiseStream(first, LEAVES, SECRET)
    released = take(made)
    made.extend(longer)
    whole = NoiseStream(longer, LEAVES, SECRET)
    assert np.concatenate([released, take(made)]).tobytes() == take(whole).tobytes()


def test_a_plan_that_extends_another_plan_is_refused():
    made = NoiseStream(plan(4), LEAVES, SECRET)
    with pytest.raises(ap.Refused, match="extends a different plan"):
        made.extend(plan(9, root="plan of 3"))


def test_the_mechanism_of_a_plan_alone_has_other_noise():
    given = plan(4)
    first, second = (flat(NoiseStream(p, LEAVES, SECRET).next()) for p in (given, given.mechanism))
    assert not np.isin(first, second).any()
