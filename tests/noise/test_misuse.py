"""Ways to get repeated, shared or broadcast noise, each refused."""

import os
import subprocess
import sys
import threading
from concurrent.futures import Future

import numpy as np
import pytest

import antiphase as ap
from antiphase._noise.team import Team
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


class Alias(str):
    """A string that encodes, compares, hashes and prints as another one."""

    __slots__ = ()

    def encode(self, *args):
        return b"x"

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)

    def __str__(self):
        return "x"


def test_a_name_that_encodes_as_another_one_does_not_share_its_noise():
    odd = stream(Identity(1), {Alias("weight"): (5,), Alias("bias"): (5,)}, run_id=Alias("a"))
    plain = stream(Identity(1), {"weight": (5,), "bias": (5,)}, run_id="a")
    assert [type(name) for name in odd.leaves] == [str, str]
    assert type(odd.run_id) is str
    weight, bias = odd.next()
    assert not np.array_equal(weight, bias)
    np.testing.assert_array_equal([weight, bias], plain.next())


def test_two_names_with_the_same_characters_are_refused():
    with pytest.raises(ap.InvalidArgument, match="no two names are equal"):
        stream(Identity(1), {Alias("weight"): (5,), Alias("weight"): (5,)})


def test_a_source_that_compares_as_another_one_does_not_pass_for_it():
    assert not stream(Identity(1), [(5,)], source=Alias("simulation")).is_secure
    with pytest.raises(ap.InvalidArgument, match="'aes' or 'simulation'"):
        stream(Identity(1), [(5,)], source=Alias("AES"))


def test_noise_without_compiled_kernels_is_refused():
    code = (
        "import antiphase as ap\n"
        "try: ap.NoiseStream(ap.Mechanism(ap.strategies.Identity(2), ap.EveryStep(), 1.0), [(3,)], "
        "ap.Secret.insecure(1)).next()\n"
        "except ap.Refused as error: print(error)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "NUMBA_DISABLE_JIT is set" in made.stdout


def test_an_interrupted_wait_leaves_its_workers_to_the_threads_that_use_them(monkeypatch):
    """Threads of an interrupted step once wrote into the buffers of workers that the next step used."""
    team, hold, used = Team(2, object), threading.Event(), []
    taken = threading.Event()

    def task(worker, part):
        used.append(worker)
        if threading.current_thread() is not threading.main_thread():
            taken.set()
            hold.wait(60)
        else:
            taken.wait(60)

    def interrupted(future, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Future, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            team.run(task, [1, 2])
    again = []
    team.run(lambda worker, part: again.append(worker), [1, 2, 3])
    hold.set()
    assert len({id(worker) for worker in used}) == 2
    assert not {id(worker) for worker in used} & {id(worker) for worker in again}
