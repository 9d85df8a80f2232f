"""`verify` and `report` read a run in place. They copy no secret and change nothing, also while the run is open."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import antiphase as ap
from antiphase._report import read
from antiphase._run.reading import read_run
from tests.report.cases import command, made_plan, made_run

READERS = {"verify": lambda directory: command("verify", directory), "report": read}


def holders(folder, secret):
    """Return the files that contain the key, as bytes or in hexadecimal."""
    key = secret._key
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in found if any(form in path.read_bytes() for form in (key, key.hex().encode()))]


def reading(folder, reader):
    """Start a child process that reads the run again and again, and return its id.

    All folders in which it could create temporary files are inside `folder`.
    """
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME"):
                os.environ[name] = str(folder / "elsewhere")
            tempfile.tempdir = str(folder / "elsewhere")
            os.chdir(folder / "elsewhere")
            os.write(started, b"x")
            while True:
                READERS[reader](folder / "run")
        finally:
            os._exit(1)
    os.read(ready, 1)
    os.close(ready)
    os.close(started)
    return pid


def killed_readers(folder, kills):
    made_run(folder / "run", made_plan(), 10)
    (folder / "elsewhere").mkdir()
    secret, rng = ap.Secret.load(folder / "run" / "private" / "secret"), random.Random(4)
    for reader, act in READERS.items():
        act(folder / "run")  # loads all modules that are imported on first use
        for _ in range(kills):
            pid = reading(folder, reader)
            time.sleep(rng.random() * 0.1)
            os.kill(pid, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return holders(folder, secret)


@pytest.mark.parametrize("kills", [6, pytest.param(45, marks=pytest.mark.slow)])
def test_a_killed_reader_leaves_the_secret_nowhere(tmp_path, kills):
    assert killed_readers(tmp_path, kills) == [tmp_path / "run" / "private" / "secret"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.fixture
def readable(tmp_path):
    """A run whose files are read-only, even for their owner."""
    made_run(tmp_path / "run", made_plan(), 10)
    found = [*(tmp_path / "run").rglob("*"), tmp_path / "run"]
    for path in found:
        path.chmod(0o500 if path.is_dir() else 0o400)
    yield tmp_path / "run"
    for path in found:
        path.chmod(0o700 if path.is_dir() else 0o600)


def test_a_run_on_a_read_only_disk_is_read_without_a_write(readable, monkeypatch):
    """As root the modes stop nobody: what opens for writing does not pass either."""
    real = os.open

    def read_only(path, flags, *given, **named):
        assert not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), path
        return real(path, flags, *given, **named)

    monkeypatch.setattr(os, "open", read_only)
    for name in ("mkdir", "replace", "rename", "unlink", "ftruncate", "fsync", "link", "symlink"):
        monkeypatch.setattr(os, name, None)
    record = read_run(readable)
    assert record.report().steps_run == 10
    assert len(record.batches) == 10
    assert command("verify", readable).exit_code == 0
    assert read(readable).run == record.report()


LIVE = """
import sys
import antiphase as ap
from tests.report.cases import made_plan
run = ap.Run.open(made_plan(), sys.argv[1], leaves=[(2,)], examples=48)
for step in range(int(sys.argv[2])):
    run.batch(step)
    run.commit(step, ap.digest(run.gradient_noise(step)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.integration
def test_a_run_that_lives_in_another_process_is_read(tmp_path):
    arguments = [sys.executable, "-c", LIVE, str(tmp_path / "run"), "4"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as live:
        assert live.stdout.readline() == "ready\n"
        with pytest.raises(ap.Refused, match="Another live process"):
            made_run(tmp_path / "run", made_plan(), 0)
        assert read(tmp_path / "run").run.steps_run == 4
        assert command("verify", tmp_path / "run").exit_code == 0
        live.stdin.close()
    assert live.returncode == 0


def test_what_is_read_is_what_the_run_itself_reports(tmp_path):
    plan = made_plan()
    made_run(tmp_path / "run", plan, 7)
    with ap.Run.open(plan, tmp_path / "run", leaves=[(2,)], examples=48) as run:
        assert read_run(tmp_path / "run").report() == run.report()


def test_the_plan_of_another_run_is_refused(tmp_path):
    made_run(tmp_path / "run", made_plan(), 3)
    made_run(tmp_path / "other", made_plan(participation=ap.MinSeparation(8)), 3)
    shutil.copy(tmp_path / "other" / "plan.json", tmp_path / "run" / "plan.json")
    with pytest.raises(ap.Corrupted, match=r"plan\.json is not the plan of this run"):
        read(tmp_path / "run")
