"""Ways to get repeated, shared or broadcast noise, each refused."""

import threading

import numpy as np
import pytest

import antiphase as ap
from antiphase.strategies import BLT, Fourier, Identity, Toeplitz

SECRET = ap.Secret.insecure(3)


def stream(strategy, leaves, **options):
    mechanism = ap.Mechanism(strategy, ap.SingleParticipation(), 1.0)
    return ap.NoiseStream(mechanism, leaves, SECRET, **{"run_id": "a", **options})


def test_two_streams_with_one_file_name_share_nothing(tmp_path):
    path = tmp_path / "noise"
    plain = [stream(Fourier(9), [(50,)], run_id=run) for run in ("a", "b")]
    filed = [stream(Fourier(9), [(50,)], run_id=run, file=path) for run in ("a", "b")]
    for _ in range(9):
        for with_file, without in zip(filed, plain, strict=True):
            np.testing.assert_array_equal(with_file.next()[0], without.next()[0])
    assert list(tmp_path.iterdir()) == []  # no noise stays on disk in the clear


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_noise_is_never_broadcast():
    expected = stream(Identity(2), [(4, 5)]).next()[0]
    target = np.matrix(np.zeros((4, 5), np.float32))
    stream(Identity(2), [(4, 5)]).add_to([target])
    np.testing.assert_array_equal(np.asarray(target), expected)


def test_buffers_that_overlap_are_refused():
    base = np.zeros(12, np.float32)
    with pytest.raises(ap.InvalidArgument, match="share memory"):
        stream(Identity(2), [(8,), (8,)]).add_to([base[:8], base[4:]])


def test_the_order_of_leaves_is_part_of_a_saved_state(tmp_path):
    mechanism = ap.Mechanism(Toeplitz([1.0, 0.5], 4), ap.SingleParticipation(), 1.0)
    leaves = {"a": ap.Leaf((3,)), "b": ap.Leaf((3,))}
    made = ap.NoiseStream(mechanism, leaves, SECRET)
    made.next()
    made.save(tmp_path / "state")
    with pytest.raises(ap.Corrupted):
        ap.NoiseStream.load(tmp_path / "state", mechanism, SECRET, leaves=dict(reversed(leaves.items())))


def test_a_second_thread_is_refused():
    busy, entered, leave = stream(Identity(4), [(10,)]), threading.Event(), threading.Event()

    def consume(part, noise):
        entered.set()
        leave.wait(10)

    worker = threading.Thread(target=lambda: busy._engine.advance(consume))
    worker.start()
    entered.wait(10)
    for act in (busy.next, lambda: busy.white(0), lambda: busy.save("never")):
        with pytest.raises(ap.Refused, match="another thread"):
            act()
    leave.set()
    worker.join()
    assert busy.step == 1


def test_float32_is_refused_where_scales_cancel():
    strategy = BLT([0.999, 0.9989], [1000.0, -999.9], 40)
    with pytest.raises(ap.InvalidArgument, match="float64"):
        stream(strategy, [(3,)])
    made = stream(strategy, [(3,)], dtype="float64")
    white = np.stack([made.white(row)[0] for row in range(strategy.steps)])
    noise = np.stack([made.next()[0] for _ in range(strategy.steps)])
    np.testing.assert_allclose(strategy.encoder() @ noise, white, rtol=0.0, atol=1e-9)


def test_a_lookahead_from_numpy_can_be_saved(tmp_path):
    strategy = Toeplitz([1.0, 0.5, 0.2], 9)
    made = stream(strategy, [(3,)], lookahead=np.int64(2))
    made.next()
    made.save(tmp_path / "state")
    mechanism = ap.Mechanism(strategy, ap.SingleParticipation(), 1.0)
    again = ap.NoiseStream.load(tmp_path / "state", mechanism, SECRET)
    np.testing.assert_array_equal(again.next()[0], made.next()[0])


def test_a_state_that_does_not_fit_is_refused_by_name():
    with pytest.raises(ap.NotEnoughMemory, match="noise state"):
        stream(Toeplitz([1.0, 0.5], 4), [(1 << 59,)])
