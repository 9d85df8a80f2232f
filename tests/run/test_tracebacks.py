"""The library's frames in a traceback must not contain batches, batch sizes, unkeyed digests or keys."""

import resource
import shutil
import signal
import traceback
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase._run.journal import Journal
from tests.signals import at_line

SECRET = ap.Secret.insecure(4)
EXAMPLES = 600
DIGEST = bytes(range(32))
HERE = Path(ap.__file__).parent
CODE = tuple(str(path) for folder in ("_samplers", "_ledger", "_run") for path in (HERE / folder).glob("*.py"))


class Stop(BaseException):
    """An exception that stands for an interrupt."""


def plan_of(participation, steps=6):
    mechanism = ap.Mechanism(ap.strategies.Identity(steps), participation, 9.0)
    bound = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(steps=steps, budget=ap.Budget(bound.value * 1.01, 1e-6), participation=participation)
    return ap.Plan(problem, mechanism, bound, 1.0)


def secrets_shown(error, forbidden=()):
    """Yield the variables in the library's frames of a traceback that contain batches, sizes, digests or keys."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_globals.get("__name__", "").startswith("antiphase"):
            continue
        for name, value in frame.f_locals.items():
            held = list(value) if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(item, np.ndarray) and item.dtype.kind in "iub" and item.size > 1 for item in held):
                yield f"{frame.f_code.co_name}: {name} holds members"
            if isinstance(value, dict) and "size" in value:
                yield f"{frame.f_code.co_name}: {name} holds a batch size"
            if any(isinstance(item, (bytes, bytearray)) and bytes(item) in forbidden for item in held):
                yield f"{frame.f_code.co_name}: {name} holds a key or a digest"


def stopped_at(moment, act):
    def stop():
        raise Stop

    try:
        at_line(moment, CODE, stop, act)
    except Stop as error:
        return error
    return None


def test_a_full_disk_shows_no_batch(tmp_path):
    with ap.Run.open(plan_of(ap.Poisson(0.1)), tmp_path, leaves=[(5,)], examples=EXAMPLES, secret=SECRET) as run:
        run.batch(0)
        run.gradient_noise(0)
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OSError, match="File too large") as caught:
                run.commit(0, DIGEST)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert list(secrets_shown(caught.value, {DIGEST})) == []


PARTICIPATIONS = {
    "poisson": ap.Poisson(0.1),
    "capped": ap.Poisson(0.1, max_batch=50),
    "cyclic": ap.CyclicPoisson(groups=3, rate=0.3),
    "balls": ap.BallsInBins(2, 3),
    "separated": ap.PoissonMinSeparation(separation=2, rate=0.1),
}


@pytest.mark.parametrize("name", PARTICIPATIONS)
def test_an_interrupt_anywhere_in_a_sampler_shows_no_batch(name):
    participation = PARTICIPATIONS[name]

    def act():
        participation.sampler(EXAMPLES, 6, SECRET).batch(3)

    act()  # compiles
    stops = 0
    while (error := stopped_at(stops, act)) is not None:
        assert [s for s in secrets_shown(error) if "members" in s and "__init__" not in s] == []
        stops += 3
    assert stops > 20


def test_an_interrupt_anywhere_in_a_user_index_shows_no_batch():
    index = ap.UserIndex(np.arange(EXAMPLES) % 200, max_examples=2, secret=SECRET)
    users = ap.Poisson(0.1).sampler(index.users, 6, SECRET).batch(0)
    stops = 0
    while (error := stopped_at(stops, lambda: index.expand(0, *users))) is not None:
        assert list(secrets_shown(error)) == []
        stops += 1
    assert stops > 5


@pytest.mark.integration
def test_an_interrupt_anywhere_in_a_commit_shows_no_batch_digest_or_key(tmp_path):
    plan = plan_of(ap.Poisson(0.1))
    stops, error = 0, Stop()
    while error is not None:
        place = tmp_path / str(stops)
        run = ap.Run.open(plan, place, leaves=[(5,)], examples=EXAMPLES, secret=SECRET)
        run.gradient_noise(0)
        ledger = run._journal.ledger
        keys = {ledger._key, ledger.public._key, ledger.private._key}
        error = stopped_at(stops, lambda run=run: (run.batch(0), run.commit(0, DIGEST)))
        if error is not None:
            assert list(secrets_shown(error, keys | {DIGEST})) == []
        with suppress(ap.Corrupted):  # interrupted in the middle of a write
            run.close()
        stops += 5
    assert stops > 60


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that an interrupt left open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_anywhere_in_opening_shows_no_batch_or_key(tmp_path, monkeypatch):
    """Opening a run reads the ledger, and draws batches again that a crash lost."""
    plan = plan_of(ap.Poisson(0.1))
    with ap.Run.open(plan, tmp_path / "run", leaves=[(5,)], examples=EXAMPLES, secret=SECRET) as run:
        run.batch(0)
        run.gradient_noise(0)
        run.commit(0, DIGEST)
        ledger = run._journal.ledger
        keys = {ledger._key, ledger.public._key, ledger.private._key}
    monkeypatch.setattr(Journal, "private_entries", lambda journal: [])
    stops, error = 0, Stop()
    while error is not None:
        place = shutil.copytree(tmp_path / "run", tmp_path / str(stops))
        error = stopped_at(
            stops,
            lambda place=place: ap.Run.open(plan, place, leaves=[(5,)], examples=EXAMPLES, secret=SECRET).close(),
        )
        if error is not None:
            assert list(secrets_shown(error, keys)) == []
        stops += 7
    assert stops > 100


def stop():
    raise Stop


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that an interrupt left open
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupted_close_shows_no_noise_and_leaves_other_locks_alone(tmp_path):
    """Interrupted at every line: the noise made ahead is in no frame, and a second close unlocks nothing else.

    At some of the lines, the directory stays locked until the process ends.
    """
    names = ("_run/run.py", "_run/noise_replay.py", "_run/journal.py", "_durable.py")
    files = tuple(str(HERE / name) for name in names) + tuple(str(path) for path in (HERE / "_noise").glob("*.py"))
    plan, locked = plan_of(ap.Poisson(0.5)), 0
    for moment in range(1000):
        options = {"leaves": [(50,)], "examples": 9, "secret": SECRET}
        run = ap.Run.open(plan, tmp_path / str(moment), **options)
        run.batch(0)
        run.commit(0, run.digest(0, run.gradient_noise(0)))
        run.batch(1)  # begins the noise of step 1
        try:
            _, was_stopped = at_line(moment, files, stop, run.close)
        except Stop as error:
            for frame, _ in traceback.walk_tb(error.__traceback__):
                if frame.f_globals.get("__name__", "").startswith("antiphase"):
                    assert "array(" not in repr(frame.f_locals)
            with suppress(ap.AntiphaseError):
                run.close()
            try:
                again = ap.Run.open(plan, tmp_path / str(moment), **options)
            except ap.Refused:
                locked += 1
                continue
            with again:
                with suppress(ap.AntiphaseError):
                    run.close()
                with pytest.raises(ap.Refused):
                    ap.Run.open(plan, tmp_path / str(moment), **options)
            continue
        if not was_stopped:
            break
    assert 10 < moment < 999
    assert locked < moment / 2
