"""A run that is killed at any step and resumed ends with the same bits; its checkpoints hold no secret."""

import hmac
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
import antiphase.jax as apj
from antiphase._run.integration import secret_of
from tests.jax.training import PARAMS, open_run, optimizer_for, train

SOURCES = ["host", "device"]


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("source", SOURCES)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, source):
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run, source)
        whole, last = train(run, optimizer, PARAMS, optimizer.init(PARAMS))
    for kept in (5,) if source == "device" else (1, 5):
        with open_run(tmp_path) as run:  # a replay from the start, free because its output is the same
            optimizer = optimizer_for(run, source)
            params, state = train(run, optimizer, PARAMS, optimizer.init(PARAMS), stop=kept)
            public, private = apj.split(state)
            apj.save(tmp_path / "model", (params, public), run)
            apj.save(tmp_path / "private" / "noise", private, run)
        with open_run(tmp_path) as run:
            optimizer = optimizer_for(run, source)
            like, hidden = apj.split(optimizer.init(PARAMS))
            params, public = apj.load(tmp_path / "model", (PARAMS, like), run)
            state = apj.join(public, apj.load(tmp_path / "private" / "noise", hidden, run))
            again, end = train(run, optimizer, params, state)
            report = apj.report(run, end)
        assert report.rewinds == 0
        assert any("not made by AES" in remark for remark in report.remarks) == (source == "device")
        assert bits(again) == bits(whole)
        assert bits(end) == bits(last)


KILLED = """
import sys
import tests.jax.conftest
from pathlib import Path
from tests.jax.training import *

directory, source, stop = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = open_run(directory)
optimizer = optimizer_for(run, source)
state = (PARAMS, optimizer.init(PARAMS))
if (directory / "checkpoint").exists():
    state = apj.load(directory / "checkpoint", state, run)
while (at := int(state[1][0].step)) < STEPS:
    state = train(run, optimizer, *state, stop=at + 1)
    if at % 3 == 2:
        apj.save(directory / "checkpoint", state, run)
    if at == stop:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
print(ap.digest([*state[0].values()]).hex())
run.close()
"""


def last_digest(directory: Path, source: str, stop: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(directory), source, str(stop)], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_a_killed_process_is_resumed_by_another(tmp_path, source):
    """Killed twice between checkpoints, so that steps are taken again; the run's own id makes two whole runs differ."""
    for stop in (4, 7):
        assert last_digest(tmp_path, source, stop).returncode == -signal.SIGKILL
    done = last_digest(tmp_path, source, -1)
    assert done.returncode == 0, done.stderr
    with open_run(tmp_path) as run:
        optimizer = optimizer_for(run, source)
        params, _ = train(run, optimizer, PARAMS, optimizer.init(PARAMS))
        assert ap.digest([*params.values()]).hex() == done.stdout.strip()
        assert run.report().rewinds == 0


def test_files_are_sealed_and_for_their_owner_alone(tmp_path):
    path = tmp_path / "state"
    tree = {"half": jnp.arange(3, dtype=jnp.bfloat16), "count": jnp.int32(7), "host": np.arange(4.0)}
    with open_run(tmp_path / "a") as run, open_run(tmp_path / "b") as other:
        apj.save(path, tree, run)
        assert os.stat(path).st_mode & 0o077 == 0
        assert bits(apj.load(path, jax.tree.map(lambda leaf: leaf * 0, tree), run)) == bits(tree)
        with pytest.raises(ap.Corrupted, match="another run"):
            apj.load(path, tree, other)
        with pytest.raises(ap.InvalidArgument, match="holds the arrays"):
            apj.load(path, {"count": jnp.int32(7)}, run)
        content = path.read_bytes()
        for wrong in (content[:-1], content[:60] + bytes([content[60] ^ 1]) + content[61:], b"", content + b"\0"):
            path.write_bytes(wrong)
            with pytest.raises(ap.Corrupted, match="it was changed"):
                apj.load(path, tree, run)
        with pytest.raises(ap.InvalidArgument, match="cannot be read"):
            apj.load(tmp_path / "none", tree, run)


def test_files_are_encrypted(tmp_path):
    """Noise buffers can be subtracted from what was released, wherever the file ends up."""
    buffer = np.arange(1000, dtype=np.float32)
    with open_run(tmp_path / "run") as run:
        files = []
        for name in ("one", "two"):
            apj.save(tmp_path / name, {"noise": jnp.asarray(buffer)}, run)
            files.append((tmp_path / name).read_bytes())
            assert not any(buffer[i : i + 2].tobytes() in files[-1] for i in range(999))
        assert files[0][-4000:] != files[1][-4000:]


def test_files_of_the_first_format_can_be_read(tmp_path):
    """They were authenticated and not encrypted; written here as they were then."""
    tree = {
        "half": jnp.arange(3, dtype=jnp.bfloat16),
        "count": jnp.int32(7),
        "host": np.arange(4.0),
        "none": np.ones(0),
    }
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    header = json.dumps([[array.dtype.name, list(array.shape)] for array in arrays]).encode()
    data = b"antiphase jax state, version 1\n" + len(header).to_bytes(8, "big") + header
    data += b"".join(array.tobytes() for array in arrays)
    with open_run(tmp_path / "a") as run, open_run(tmp_path / "b") as other:
        sealed = data + hmac.digest(secret_of(run).derive("jax state", run.run_id), data, "sha256")
        (tmp_path / "old").write_bytes(sealed)
        assert bits(apj.load(tmp_path / "old", jax.tree.map(lambda leaf: leaf * 0, tree), run)) == bits(tree)
        with pytest.raises(ap.Corrupted, match="another run"):
            apj.load(tmp_path / "old", tree, other)
        with pytest.raises(ap.InvalidArgument, match="holds the arrays"):
            apj.load(tmp_path / "old", {"count": jnp.int32(7)}, run)
        for wrong in (sealed[:-1], sealed[:60] + bytes([sealed[60] ^ 1]) + sealed[61:]):
            (tmp_path / "old").write_bytes(wrong)
            with pytest.raises(ap.Corrupted):
                apj.load(tmp_path / "old", tree, run)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with open_run(tmp_path / "run") as run, pytest.raises(ap.Corrupted, match="named pipe"):
        apj.load(tmp_path / "pipe", PARAMS, run)


def test_the_training_of_these_tests_uses_its_noise(tmp_path):
    """Two runs of one plan differ, so that equal bits above are not those of training without noise."""
    ends = []
    for name in ("a", "b"):
        with open_run(tmp_path / name) as run:
            optimizer = optimizer_for(run)
            ends.append(bits(train(run, optimizer, PARAMS, optimizer.init(PARAMS), stop=2)[0]))
    assert ends[0] != ends[1]
