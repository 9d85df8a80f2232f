"""Saved streams: resumed bit for bit at every step, and never from a file that does not belong."""

import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase import _sealed
from antiphase._noise import Leaf, NoiseStream
from antiphase._secret import Secret
from antiphase.strategies import BLT, Identity, Toeplitz
from tests.catalog import every_strategy
from tests.noise.streams import SECRET, Noisy, flat, stream, take

STRATEGIES = dict(every_strategy(12))
BLT_PLAN = Noisy(BLT([0.9], [0.2], 8))


def load(path, strategy, **options):
    return NoiseStream.load(path, Noisy(strategy), options.pop("secret", SECRET), **options)


@pytest.mark.parametrize("name", STRATEGIES)
def test_resumed_at_every_step_bit_for_bit(name, tmp_path):
    strategy, path = STRATEGIES[name], tmp_path / "state"
    wanted = take(stream(strategy))
    made = stream(strategy)
    for t in range(strategy.steps + 1):
        made.save(path)
        resumed = load(path, strategy, threads=2)
        assert resumed.step == t
        if t < strategy.steps:
            assert take(resumed).tobytes() == wanted[t:].tobytes()
            assert flat(made.next()).tobytes() == wanted[t].tobytes()
    with pytest.raises(ap.Refused):
        load(path, strategy).next()


@pytest.mark.parametrize("lookahead", [1, 2, 5, 30])
def test_resumed_between_the_steps_of_a_lookahead(lookahead, tmp_path):
    strategy = Toeplitz.square_root(20, 4)
    wanted, made = take(stream(strategy)), stream(strategy, lookahead=lookahead)
    for t in range(20):
        made.save(tmp_path / "state")
        made = load(tmp_path / "state", strategy)
        assert flat(made.next()).tobytes() == wanted[t].tobytes()


def test_settings_come_back(tmp_path):
    leaves = {"a": Leaf((6, 4), ((1, 3), (0, 4))), "b": Leaf(())}
    made = stream(BLT_PLAN.strategy, leaves, run_id="r\u00fcn 7", dtype=np.float64, source="simulation")
    made.next()
    made.save(tmp_path / "state")
    again = NoiseStream.load(tmp_path / "state", BLT_PLAN, SECRET)
    assert (again.step, again.run_id, again.dtype, again.is_secure) == (1, "r\u00fcn 7", np.float64, False)
    assert list(again.leaves.items()) == list(leaves.items())
    assert take(again).tobytes() == take(made).tobytes()


def test_only_the_owner_can_read_and_the_state_is_not_in_the_clear(tmp_path):
    made = stream(BLT([0.9], [0.2], 8), [(1000,)])
    made.next()
    old = os.umask(0)
    try:
        made.save(tmp_path / "state")
    finally:
        os.umask(old)
    data = (tmp_path / "state").read_bytes()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert made._engine.correlator.state[0, 0, :4].tobytes() not in data
    assert list(tmp_path.iterdir()) == [tmp_path / "state"]


def test_no_two_files_share_their_key_stream(tmp_path):
    """The same state saved twice looks different; with one key stream the difference of two states would show."""
    made = stream(BLT([0.9], [0.2], 8), [(1000,)])
    made.next()
    bodies = []
    for name in ("one", "two"):
        made.save(tmp_path / name)
        bodies.append((tmp_path / name).read_bytes()[-4000:-32])
    assert bodies[0] != bodies[1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("noise") / "state"
    made = NoiseStream(BLT_PLAN, [(3, 5)], SECRET, "run")
    made.next()
    made.save(path)
    return path.read_bytes()


def refuses(path, data, plan=BLT_PLAN, secret=SECRET, **options):
    path.write_bytes(data)
    with pytest.raises(ap.Corrupted):
        NoiseStream.load(path, plan, secret, **options)


def test_every_flipped_byte_is_noticed(saved, tmp_path):
    for i in range(len(saved)):
        refuses(tmp_path / "state", saved[:i] + bytes([saved[i] ^ 1 << i % 8]) + saved[i + 1 :])


def test_every_truncation_is_noticed(saved, tmp_path):
    for length in range(len(saved)):
        refuses(tmp_path / "state", saved[:length])


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_done_to_a_file_is_noticed(saved, tmp_path_factory, data):
    """Stretches cut out, doubled, swapped, appended or replaced."""
    cut = sorted(data.draw(st.lists(st.integers(0, len(saved)), min_size=4, max_size=4)))
    a, b, c, d = (saved[i:j] for i, j in zip([0, *cut[:3]], [*cut[:3], len(saved)], strict=True))
    junk = data.draw(st.binary(max_size=40))
    for changed in (a + c + d, a + b + b + c + d, a + c + b + d, saved + junk, a + junk + c + d, junk):
        if changed != saved:
            refuses(tmp_path_factory.getbasetemp() / "fuzzed", changed)


def test_another_secret_plan_dtype_or_leaf_is_refused(saved, tmp_path):
    path = tmp_path / "state"
    refuses(path, saved, secret=Secret.insecure(1))
    refuses(path, saved, secret=Secret.generate())
    refuses(path, saved, plan=Noisy(BLT_PLAN.strategy, 1.01))
    refuses(path, saved, plan=Noisy(BLT([0.9], [0.2], 9)))
    refuses(path, saved, plan=Noisy(Identity(8)))
    refuses(path, saved, dtype=np.float64)
    refuses(path, saved, leaves=[(5, 3)])
    refuses(path, saved, leaves={"w": Leaf((3, 5))})
    refuses(path, saved, leaves={"0": Leaf((3, 5), ((0, 3), (0, 4)))})
    assert NoiseStream.load(path, BLT_PLAN, SECRET, leaves=[(3, 5)], dtype="float32").step == 1


def test_parts_of_two_files_do_not_fit_together(saved, tmp_path):
    """Header of one step with the state of another: the last check covers both."""
    other = NoiseStream(BLT_PLAN, [(3, 5)], SECRET, "run")
    other.save(tmp_path / "other")
    data = (tmp_path / "other").read_bytes()
    body = 4 * 128 + 32
    refuses(tmp_path / "state", saved[:-body] + data[-body:])


def test_a_missing_file_and_a_missing_directory_are_explained(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="cannot be read"):
        load(tmp_path / "nothing", Identity(3))
    with pytest.raises(ap.InvalidArgument, match="cannot be written"):
        stream(Identity(3)).save(tmp_path / "no" / "where")


@pytest.mark.parametrize("moment", ["write", "flush", "fsync", "replace"])
def test_a_failure_while_saving_leaves_the_old_file(moment, tmp_path, monkeypatch):
    path, strategy = tmp_path / "state", BLT([0.9], [0.2], 8)
    made = stream(strategy)
    made.save(path)
    before = path.read_bytes()
    made.next()

    def fail(*_):
        raise KeyboardInterrupt

    if moment in ("fsync", "replace"):
        monkeypatch.setattr(os, moment, fail)
    else:
        monkeypatch.setattr(_sealed, "_write" if moment == "write" else "_seal", fail)
    with pytest.raises(KeyboardInterrupt):
        made.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert load(path, strategy).step == 0


def test_saving_goes_on_with_the_stream(tmp_path):
    made, wanted = stream(BLT([0.9], [0.2], 8)), take(stream(BLT([0.9], [0.2], 8)))
    for t in range(8):
        made.save(tmp_path / "state")
        assert flat(made.next()).tobytes() == wanted[t].tobytes()


def test_another_number_of_workers_replays(tmp_path):
    """Half of the run on two shards, the rest on three: the bits of one that was never cut."""
    strategy, shape = BLT([0.9, 0.5], [0.2, 0.1], 8), (30, 7)
    wanted = take(stream(strategy, {"w": Leaf(shape)})).reshape(8, *shape)
    for workers, start, stop in ((2, 0, 4), (3, 4, 8)):
        edges = [30 * i // workers for i in range(workers + 1)]
        for low, high in pairwise(edges):
            leaf = Leaf(shape, ((low, high), (0, 7)))
            noise = take(stream(strategy, {"w": leaf}, start_step=start), stop - start)
            assert noise.tobytes() == wanted[start:stop, low:high].tobytes()
