"""Noise computed ahead by a background thread: the same bits, nothing before its turn, and errors are not lost."""

import os
import threading

import numpy as np
import pytest

import antiphase as ap
from tests.noise.streams import SECRET
from tests.run.plans import STRATEGIES, plan_for

LEAVES = [(300, 301), (70_001,)]  # several parts


def streams(name):
    plan = plan_for(STRATEGIES[name])
    return plan, *(ap.NoiseStream(plan, LEAVES, SECRET, "run", threads=2) for _ in range(2))


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_noise_is_the_same_and_the_step_is_not_taken(name):
    plan, ahead, plain = streams(name)
    for step in range(plan.steps):
        ahead._start_ahead()
        ahead._start_ahead()  # at most one step
        assert ahead.step == step
        assert_same(ahead.next(), plain.next())
    ahead._start_ahead()  # there is no step left
    with pytest.raises(ap.Refused, match="no steps left"):
        ahead.next()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_stream_saved_with_noise_ahead_goes_on_at_the_same_step(name, tmp_path):
    plan, ahead, plain = streams(name)
    for _ in range(3):
        ahead.next(), plain.next()
    ahead._start_ahead()
    ahead.save(tmp_path / "state")
    loaded = ap.NoiseStream.load(tmp_path / "state", plan, SECRET)
    assert loaded.step == ahead.step == 3
    loaded.save(tmp_path / "again")  # what was loaded ahead is still there
    again = ap.NoiseStream.load(tmp_path / "again", plan, SECRET)
    for _ in range(3, plan.steps):
        wanted = plain.next()
        for stream in (ahead, loaded, again):
            assert_same(stream.next(), wanted)


@pytest.mark.parametrize("name", ["toeplitz", "blt"])
def test_noise_ahead_is_added_to_buffers_too(name):
    _, ahead, plain = streams(name)
    ours, theirs = ([np.ones(shape, dtype=np.float32) for shape in LEAVES] for _ in range(2))
    ahead._start_ahead()
    ahead.add_to(ours)
    plain.add_to(theirs)
    assert_same(ours, theirs)
    assert_same(ahead.next(), plain.next())


def test_the_noise_is_made_before_it_is_asked_for(monkeypatch):
    _, ahead, plain = streams("blt")
    ahead._start_ahead()
    ahead._engine._ahead.work.background.result()  # the thread alone made all parts
    monkeypatch.setattr(ahead._engine.correlator, "make", None)
    assert_same(ahead.next(), plain.next())


def test_an_error_of_the_thread_is_raised_by_the_next_call_and_the_stream_is_not_used_again(monkeypatch):
    _, ahead, _ = streams("blt")
    ahead.next()

    def fail(*_):
        raise MemoryError("out of memory in the thread")

    monkeypatch.setattr(ahead._engine.correlator, "make", fail)
    ahead._start_ahead()
    with pytest.raises(MemoryError, match="in the thread"):
        ahead.next()
    monkeypatch.undo()
    with pytest.raises(ap.Refused, match="interrupted"):
        ahead.next()


def test_an_interrupt_while_waiting_leaves_no_stream_that_could_be_used(monkeypatch):
    _, ahead, _ = streams("toeplitz")
    make, gate = ahead._engine.correlator.make, threading.Event()

    def wait(part, *given):
        if threading.current_thread() is threading.main_thread():
            gate.set()
            raise KeyboardInterrupt
        gate.wait()
        make(part, *given)

    monkeypatch.setattr(ahead._engine.correlator, "make", wait)
    ahead._start_ahead()
    with pytest.raises(KeyboardInterrupt):
        ahead.next()
    monkeypatch.undo()
    for call in (ahead.next, ahead._start_ahead):
        with pytest.raises(ap.Refused, match="interrupted"):
            call()


def test_a_stream_with_noise_ahead_is_not_extended():
    plan, ahead, _ = streams("toeplitz")
    ahead._start_ahead()
    with pytest.raises(ap.Refused, match="computed already"):
        ahead.extend(plan.extend(20))


def test_threads_end_with_the_stream_and_start_again():
    _, ahead, plain = streams("blt")
    before = set(threading.enumerate())
    ahead._start_ahead()
    assert any("ahead" in thread.name for thread in set(threading.enumerate()) - before)
    ahead.close()
    assert set(threading.enumerate()) <= before
    assert_same(ahead.next(), plain.next())
    ahead._start_ahead()
    assert_same(ahead.next(), plain.next())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_refused_and_does_not_wait_for_the_thread():
    _, ahead, plain = streams("blt")
    ahead._start_ahead()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ahead.next()
        except ap.Refused:
            ahead._abandon()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_same(ahead.next(), plain.next())
