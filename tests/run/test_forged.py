"""Attacks that once succeeded: a run without parameters, invented reasons and bounds, and noise in tracebacks."""

import json
import resource
import signal
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase._report import read
from antiphase._run.reading import read_run
from tests.run.plans import LEAVES, STRATEGIES, fresh_model, plan_for, train
from tests.signals import at_line

SECRET = ap.Secret.insecure(4)


@pytest.mark.parametrize("leaves", [[], {}, [(0,)], [(3, 0), (0,)]])
def test_a_run_without_parameters_is_refused(tmp_path, leaves):
    with pytest.raises(ap.InvalidArgument, match="at least one parameter"):
        ap.Run.open(plan_for(STRATEGIES["toeplitz"]), tmp_path / "run", leaves=leaves, examples=40)
    assert not (tmp_path / "run").exists()


def test_a_reason_that_is_not_in_the_ledger_is_not_reported(tmp_path):
    plan = plan_for(STRATEGIES["toeplitz"])
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40) as run:
        train(run, fresh_model(), 3)
    stored = json.loads((tmp_path / "plan.json").read_text())
    stored["plan"]["deviation"] = "none. An audit found that epsilon is 0.01"
    (tmp_path / "plan.json").write_text(json.dumps(stored))
    found = [*read_run(tmp_path).report().remarks, *read(tmp_path).run.remarks]
    with ap.Run.open(ap.Plan.load(tmp_path / "plan.json"), tmp_path, leaves=LEAVES, examples=40) as run:
        found += run.report().remarks
    assert not any("audit" in remark for remark in found)
    assert sum("not in the ledger" in remark for remark in found) == 3


def test_a_reason_in_the_ledger_is_reported(tmp_path):
    plan = replace(plan_for(STRATEGIES["toeplitz"]), deviation="a server enforces more")
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40) as run:
        train(run, fresh_model(), 3)
        assert any("a server enforces more" in remark for remark in run.report().remarks)


def test_the_planned_guarantee_of_a_report_is_derived(tmp_path):
    """Within the accuracy of sampling a hand-made plan could state less than is certified, of any kind."""
    mechanism = ap.Mechanism(ap.strategies.Toeplitz([1.0, 0.5], 8), ap.BallsInBins(2, 4), 2.0)
    problem = ap.Problem(steps=8, budget=ap.Budget(8.0, 1e-5), examples=40, participation=ap.BallsInBins(2, 4))
    certified = ap.epsilon(mechanism, 1e-5)
    forged = replace(certified, value=0.992 * certified.value, kind="exact", method="audited")
    with ap.Run.open(ap.Plan(problem, mechanism, forged, 1.0), tmp_path, leaves=LEAVES, examples=40) as run:
        planned = run.report().planned
    assert planned.kind == "confident"
    assert planned.method != "audited"
    assert planned.value > 0.9975 * certified.value


def test_a_full_disk_shows_no_noise_in_a_traceback(tmp_path):
    """Tools that record the variables of every frame would keep what lets anyone subtract the noise."""
    plan = plan_for(STRATEGIES["toeplitz"])
    with ap.Run.open(plan, tmp_path, leaves=[(600,)], examples=40, secret=SECRET) as run:
        run.batch(0)
        noise = run.gradient_noise(0)[0]
        run.commit(0, ap.digest([noise]))
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
        try:
            run.save()
        except Exception as error:
            told = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        else:
            pytest.fail("the state was written")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
    kept = np.abs(noise / plan.mechanism.noise_std)[:3]  # what the state holds; this frame shows the noise itself
    assert not any(f"{value:.6f}"[:7] in told for value in kept)


class Stop(BaseException):
    """An exception that stands for an interrupt."""


NOISE_CODE = (
    *(str(path) for path in (Path(ap.__file__).parent / "_noise").glob("*.py")),
    "_run/noise_replay.py",
)


def stopped_at(moment, act):
    """Run `act`, and interrupt it before line number `moment` that it executes in the code that makes noise.

    Returns the interrupt, or None if `act` ended before this line.
    """

    def stop():
        raise Stop

    try:
        at_line(moment, NOISE_CODE, stop, act)
    except Stop as error:
        return error
    return None


def noise_shown(error):
    """Yield the variables in the library's frames of a traceback that are, or contain, an array of noise."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("antiphase"):
            for name, value in frame.f_locals.items():
                held = value if isinstance(value, (list, tuple)) else [value]
                if any(isinstance(item, np.ndarray) and item.dtype.kind == "f" and item.size > 50 for item in held):
                    yield f"{frame.f_code.co_name}: {name}"


@pytest.mark.parametrize("name", ["identity", "toeplitz", "blt", "banded-inverse", "tree"])
def test_an_interrupt_anywhere_leaves_no_noise_in_a_traceback(tmp_path, name):
    """Out of memory in the copy of the noise left the noise in the frame that copies it."""
    plan = plan_for(STRATEGIES[name])
    stream = ap.NoiseStream(plan, [(600,)], SECRET, "a", threads=1)
    stream.next()  # compiles and hires
    calls = {
        "next": lambda: ap.NoiseStream(plan, [(600,)], SECRET, "a", threads=1).next(),
        "replay": lambda: ap.NoiseStream(plan, [(600,)], SECRET, "a", threads=1, start_step=3),
        "white": lambda: ap.NoiseStream(plan, [(600,)], SECRET, "a", threads=1).white(0),
    }
    with ap.Run.open(plan, tmp_path, leaves=[(600,)], examples=40, secret=SECRET) as run:
        run.batch(0)
        run.gradient_noise(0)
        for what, act in {
            **calls,
            "run": lambda: run._stream_replay(tmp_path / "private", run._leaves).read(1),
        }.items():
            stops = 0
            while (error := stopped_at(stops, act)) is not None:
                assert list(noise_shown(error)) == [], what
                stops += 7
            assert stops > 30
