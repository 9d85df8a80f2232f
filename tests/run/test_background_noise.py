"""Noise that is computed in the background after `batch` has the same bits, ledger entries and refusals."""

import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase._run.noise_replay import saved_states
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, take, train
from tests.signals import at_line

SECRET = ap.Secret.insecure(7)


def opened(directory, name="blt", **options):
    plan = plan_for(STRATEGIES[name])
    usual = {"background_noise": True, "leaves": LEAVES, "examples": 40, "secret": SECRET}
    return ap.Run.open(plan, directory, **{**usual, **options})


def is_ahead(run):
    stream = run._replay._stream
    return stream is not None and stream._engine._ahead is not None


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_step_gets_its_own_noise(tmp_path, name, background):
    """Fails if noise that was computed ahead is handed out one step early or late."""
    with opened(tmp_path, name, background_noise=background) as run:
        stream = ap.NoiseStream(plan_for(STRATEGIES[name]), LEAVES, SECRET, run.run_id)
        for step in range(STEPS):
            run.batch(step)
            assert is_ahead(run) == (background and step > 0)
            wanted = stream.next()
            for _ in range(2):
                assert_same(run.gradient_noise(step), wanted)
            run.commit(step, bytes(32))
        assert run.report().rewinds == 0


def test_noise_computed_ahead_has_not_been_read(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 3)
        run.batch(3)
        assert is_ahead(run)
        run.publish("nothing of step 3 was released")
        with pytest.raises(ap.Refused, match="noise has not been read"):
            run.commit(3, bytes(32))
        run.batch(4)  # not the next step
        assert run._replay._stream.step == 3
        with pytest.raises(ap.Refused, match="next step is 3"):
            run.gradient_noise(4)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_replay_drops_what_is_ahead(tmp_path, name):
    with opened(tmp_path, name) as run:
        model = train(run, fresh_model(), 5)
        run.batch(5)
        assert is_ahead(run)
        again = train(run, fresh_model(), 5, start=0)
        assert_same(again, model)
        whole = train(run, again, STEPS)
        assert run.report().rewinds == 0
    with opened(tmp_path, name, background_noise=False) as run:
        assert_same(train(run, fresh_model(), STEPS, start=0), whole)
        assert run.report().rewinds == 0


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_saved_in_the_middle_of_a_step_resumes_there(tmp_path, name):
    with opened(tmp_path, name) as run:
        model = train(run, fresh_model(), 4)
        run.batch(4)
        assert is_ahead(run)
        run.save()
        assert saved_states(run.directory / "private")[-1].name == "noise-000000000004.state"
    with opened(tmp_path, name) as run:
        after = take(run, 4, model)
        assert run._replay._stream.step == 5
        run.commit(4, ap.digest(after))
        whole = train(run, after, STEPS)
    with opened(tmp_path, name, background_noise=False) as run:
        assert_same(train(run, fresh_model(), STEPS, start=0), whole)
        assert run.report().rewinds == 0


def test_an_error_in_the_background_is_raised_by_noise_and_the_run_can_be_reopened(tmp_path, monkeypatch):
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), 3)

        def fail(*_):
            raise OSError("in the background")

        monkeypatch.setattr(run._replay._stream._engine.correlator, "make", fail)
        run.batch(3)
        with pytest.raises(OSError, match="in the background"):
            run.gradient_noise(3)
        monkeypatch.undo()
        run.batch(3)
        with pytest.raises(ap.Refused, match="interrupted"):
            run.gradient_noise(3)
        with pytest.raises(ap.Refused, match="noise has not been read"):
            run.commit(3, bytes(32))
    with opened(tmp_path) as run:
        train(run, model, STEPS)
        assert run.report().rewinds == 0


def test_closing_does_not_wait_for_the_whole_step_nor_raise_errors_of_the_thread(tmp_path, monkeypatch):
    run = opened(tmp_path, leaves=[(2_000_000,)])
    run.batch(0)
    noise = run.gradient_noise(0)
    run.commit(0, run.digest(0, noise))
    engine = run._replay._stream._engine
    make, gate, made = engine.correlator.make, threading.Event(), []

    def slow(part, *given):
        gate.wait(10)
        made.append(part)
        make(part, *given)
        raise OSError("in the background")

    monkeypatch.setattr(engine.correlator, "make", slow)
    run.batch(1)
    threading.Timer(0.1, gate.set).start()
    run.close()
    assert len(made) <= 1 < len(engine._parts)
    with pytest.raises(ap.Refused):
        engine.take()


def test_threads_end_with_the_run(tmp_path):
    before = set(threading.enumerate())
    with opened(tmp_path, leaves=[(300_000,)]) as run:
        run.batch(0)
        run.commit(0, run.digest(0, run.gradient_noise(0)))
        run.batch(1)
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) <= before


def test_it_takes_no_more_memory(tmp_path):
    size, peaks = 1_000_000, {}
    for background in (False, True):
        with opened(tmp_path / str(background), leaves=[(size,)], background_noise=background) as run:
            for step in range(2):
                run.batch(step)
                run.commit(step, run.digest(step, run.gradient_noise(step)))
            tracemalloc.start()
            for step in range(2, 5):
                run.batch(step)
                during_forward = np.zeros(size, dtype=np.float32)
                during_forward += 1
                run.commit(step, run.digest(step, run.gradient_noise(step)))
            peaks[background] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peaks[True] < peaks[False] + 0.25 * 4 * size


def test_threads_that_draw_batches_never_disturb_the_one_that_reads_noise(tmp_path):
    with opened(tmp_path) as run:
        stop = threading.Event()

        def draw():
            while not stop.is_set():
                run.batch(min(run.committed, STEPS - 1))

        threads = [threading.Thread(target=draw) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            model = train(run, fresh_model(), STEPS)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    with opened(tmp_path, background_noise=False) as run:
        assert_same(train(run, fresh_model(), STEPS, start=0), model)
        assert run.report().rewinds == 0


@pytest.mark.parametrize("call", ["gradient_noise", "save", "commit"])
def test_a_signal_handler_cannot_close_the_run_in_the_middle_of_a_call(tmp_path, call):
    """Noise that is not complete yet could be returned, or stored and used after a resume."""
    here = Path(ap.__file__).parent
    files = tuple(str(path) for folder in ("_run", "_noise") for path in (here / folder).glob("*.py"))
    refusals, moment = 0, 0
    while True:
        run = opened(tmp_path / str(moment))
        run.batch(0)
        noise = run.gradient_noise(0)
        run.commit(0, run.digest(0, noise))
        run.batch(1)
        if call == "commit":
            noise = run.gradient_noise(1)
        act = {
            "gradient_noise": lambda run=run: run.gradient_noise(1),
            "save": run.save,
            "commit": lambda run=run, noise=noise: run.commit(1, run.digest(1, noise)),
        }[call]
        refused = []

        def handle(run=run, refused=refused):
            try:
                run.close()
            except ap.Refused as error:
                refused.append(error)

        try:
            found, was_handled = at_line(moment, files, handle, act)
        except (ap.AntiphaseError, OSError, AttributeError, ValueError):  # closed before the call had begun
            found, was_handled = None, True
        refusals += len(refused)
        if refused and call == "gradient_noise":
            stream = ap.NoiseStream(plan_for(STRATEGIES["blt"]), LEAVES, SECRET, run.run_id)
            stream.next()
            assert_same(found, stream.next())
        with suppress(ap.AntiphaseError):
            run.close()
        if not was_handled:
            break
        moment += 7
    assert refusals > 3
