"""Two processes train one model: the parameters are those of one process, and of a loop written by hand."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase.jax._processes import JaxProcesses

ROOT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(directory, size, source, stop=-1):
    """All processes at once; returns what each ended with."""
    directory.mkdir(exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "tests.jax.multihost_worker"]
    arguments = [str(size), str(port), str(directory), source, str(stop)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), *arguments], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        errors = [worker.communicate(timeout=300)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    codes = [worker.returncode for worker in workers]
    assert stop >= 0 or codes == [0] * size, "\n".join(errors)
    return codes


def result(directory):
    with np.load(directory / "params.npz") as arrays:
        return {name: arrays[name] for name in arrays}


@pytest.mark.parametrize("source", ["host", "device"])
def test_two_processes_train_the_model_of_one(tmp_path, source):
    """The noise is added once, and examples of both processes are clipped before they are summed."""
    for size in (1, 2):
        train(tmp_path / str(size), size, source)
    one, two = result(tmp_path / "1"), result(tmp_path / "2")
    for name, wanted in one.items():
        np.testing.assert_allclose(two[name], wanted, rtol=1e-5, atol=1e-5)
    assert (tmp_path / "1" / "report").read_text() == (tmp_path / "2" / "report").read_text()
    for rank in range(2):  # one process gave other indices: both were told
        assert "not the run's own batch" in (tmp_path / "2" / f"refused-{rank}").read_text()
    assert f"use the noise source '{source}'" in (tmp_path / "2" / "other-source").read_text()
    if source == "host":
        train(tmp_path / "hand", 1, "by-hand")
        for name, wanted in result(tmp_path / "hand").items():
            np.testing.assert_allclose(two[name], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("source", ["host", "device"])
def test_both_are_killed_and_resume_from_their_checkpoint(tmp_path, source):
    """In the fourth step, whose noise was already read; the checkpoint is that of the second."""
    train(tmp_path / "whole", 2, source)
    assert set(train(tmp_path / "killed", 2, source, stop=3)) != {0}
    assert (tmp_path / "killed" / "saved").exists()
    assert not (tmp_path / "killed" / "params.npz").exists()
    train(tmp_path / "killed", 2, source)
    for name, wanted in result(tmp_path / "whole").items():
        assert result(tmp_path / "killed")[name].tobytes() == wanted.tobytes()
    assert (tmp_path / "whole" / "report").read_text() == (tmp_path / "killed" / "report").read_text()


def test_processes_with_different_sources_do_not_wait_for_one_another(tmp_path):
    assert 0 not in train(tmp_path, 2, "host,device", stop=0)
    for rank in range(2):
        assert "do not have the same noise source" in (tmp_path / f"refused-{rank}").read_text()


@pytest.mark.parametrize("source", ["host", "device"])
def test_only_the_first_call_is_collective(tmp_path, monkeypatch, source):
    from tests.jax.training import open_run

    gathered = []
    monkeypatch.setattr(JaxProcesses, "all_gather", lambda self, value: gathered.append(value) or [value])
    with open_run(tmp_path) as run:
        run._transport = JaxProcesses()
        with pytest.raises(ap.InvalidArgument, match="source"):
            apj.add_correlated_noise(run, "gpu")
        apj.add_correlated_noise(run, source)
        assert gathered.pop() == source
        apj.add_correlated_noise(run, source)
        with pytest.raises(ap.Refused, match=f"use the noise source '{source}'"):
            apj.add_correlated_noise(run, "host" if source == "device" else "device")
        assert not gathered


def test_a_process_that_cannot_record_the_source_does_not_communicate_when_it_tries_again(tmp_path, monkeypatch):
    from tests.jax.training import open_run

    gathered = []
    monkeypatch.setattr(JaxProcesses, "all_gather", lambda self, value: gathered.append(value) or [value])
    with open_run(tmp_path) as run:
        run._transport = JaxProcesses()
        with monkeypatch.context() as fails:
            fails.setattr("antiphase.jax._transformation.set_noise_source", lambda run, source: interrupt())
            with pytest.raises(KeyboardInterrupt):
                apj.add_correlated_noise(run, "host")
        gathered.clear()
        apj.add_correlated_noise(run, "host")
        assert not gathered


def interrupt():
    raise KeyboardInterrupt


def test_a_process_that_fails_alone_does_not_leave_the_others_waiting(tmp_path, monkeypatch):
    from tests.jax.training import open_run

    monkeypatch.setattr(JaxProcesses, "all_gather", lambda self, value: [value, "no x64"])
    with open_run(tmp_path) as run:
        run._transport = JaxProcesses()
        run._transport.size = 2
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        monkeypatch.setattr("antiphase.jax._transformation._check_processes", lambda shardings: None)
        with pytest.raises(ap.Refused, match="Rank 1 raised an error: no x64"):
            apj.add_correlated_noise(run)
        assert run._transport.noise_source is None


def test_a_run_of_one_process_is_not_used_by_several(tmp_path, monkeypatch):
    from tests.jax.training import PARAMS, open_run

    with open_run(tmp_path) as run:
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(ap.Refused, match="JAX has 2 processes, but the run is shared by 1"):
            apj.add_correlated_noise(run)
        monkeypatch.setattr(jax, "device_count", lambda: 8)
        with pytest.raises(ap.Refused, match="devices of all processes"):
            apj.open_run(run.plan, tmp_path / "other", PARAMS)


def test_processes_at_different_steps_cannot_commit(tmp_path, monkeypatch):
    """As after a kill between the calls of `save` in two processes."""
    from tests.jax.training import PARAMS, open_run

    with open_run(tmp_path) as run:
        optimizer = apj.add_correlated_noise(run)
        _, state = optimizer.update(jax.tree.map(jax.numpy.zeros_like, PARAMS), optimizer.init(PARAMS))
        indices, mask = run.batch(0)
        run._transport = JaxProcesses()
        monkeypatch.setattr(JaxProcesses, "all_gather", lambda self, value: [value, (value[0] - 1, value[1])])
        monkeypatch.setattr(JaxProcesses, "run_on_all", lambda self, check: check())
        with pytest.raises(ap.Refused, match="do not have the same step and earlier outputs"):
            apj.commit(run, state, PARAMS, indices[mask])
        assert run.committed == 0
