"""A run that is killed at random times ends with the same bits as a run that was never killed."""

import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

import antiphase as ap
from tests.run.plans import LEAVES, fresh_model, plan_for, take

STEPS = 300
SECRET = ap.Secret.insecure(11)
PLAN = plan_for(ap.strategies.BLT([0.9, 0.5], [0.1, 0.2], STEPS))


def store(path, model, step):
    temporary = path.with_suffix(".new.npz")
    np.savez(temporary, *model, step=step)
    os.replace(temporary, path)


def restored(path):
    if not path.exists():
        return fresh_model(), 0
    with np.load(path) as data:
        return [data["arr_0"], data["arr_1"]], int(data["step"])


def work(directory, checkpoint):
    """Train from the last checkpoint to the end. Every few steps, save the noise state or publish."""
    model, start = restored(checkpoint)
    with ap.Run.open(PLAN, directory, leaves=LEAVES, examples=40, secret=SECRET) as run:
        for step in range(start, STEPS):
            model = take(run, step, model)
            run.commit(step, ap.digest(model))
            if step % 3 == 2:
                run.save()
            if step % 7 == 6:
                run.publish(f"after step {step}")
                store(checkpoint, model, step + 1)
            time.sleep(0.001)
    store(checkpoint, model, STEPS)


def child(directory, checkpoint):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work(directory, checkpoint)
            status = 0
        finally:
            os._exit(status)
    return pid


def finished_despite_kills(directory, checkpoint, kills, rng):
    """Kill the worker at random times, `kills` times, then let it finish. Return how often a kill ended it."""
    hits = 0
    while True:
        pid = child(directory, checkpoint)
        if hits < kills:
            time.sleep(rng.random() * 0.03)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            hits += 1
            continue
        assert os.waitstatus_to_exitcode(status) == 0
        return hits


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.integration)])
def test_killed_at_random_instants(tmp_path, kills):
    steady, killed = tmp_path / "steady", tmp_path / "killed"
    ap.Run.open(PLAN, steady, leaves=LEAVES, examples=40, secret=SECRET).close()
    shutil.copytree(steady, killed)
    work(steady, tmp_path / "steady.npz")
    hits = finished_despite_kills(killed, tmp_path / "killed.npz", kills, random.Random(5))
    assert hits == kills
    for a, b in zip(restored(tmp_path / "steady.npz")[0], restored(tmp_path / "killed.npz")[0], strict=True):
        np.testing.assert_array_equal(a, b)
    reports = []
    for directory in (steady, killed):
        with ap.Run.open(PLAN, directory, leaves=LEAVES, examples=40, secret=SECRET) as run:
            reports.append(run.report())
    assert reports[0].steps_run == reports[1].steps_run == STEPS
    assert reports[1].rewinds == 0
    assert reports[0].guarantee == reports[1].guarantee
