"""Output files: whole or not there, symbolic links followed, streams written to, everything else refused."""

import os
import re
import socket
import stat
import subprocess
import sys
import threading

import pytest

import antiphase as ap
from antiphase._durable import write_output
from tests.run.plans import LEAVES, STRATEGIES, plan_for
from tests.test_cli import run as command


@pytest.fixture
def plan():
    return plan_for(STRATEGIES["toeplitz"])


WRITERS = {
    "a plan": lambda path: plan_for(STRATEGIES["toeplitz"]).save(path),
    "any output": lambda path: write_output(path, b"all of it"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_symbolic_link_is_followed_and_stays(tmp_path, write):
    target, link = tmp_path / "there" / "file", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to("there/file")
    write(link)  # nothing there yet
    first = target.read_bytes()
    target.write_bytes(b"old")
    target.chmod(0o640)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == first != b"old"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "there"]


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_pipe_is_written_to_and_stays(tmp_path, write):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join(10)
    write(tmp_path / "file")
    assert got == [(tmp_path / "file").read_bytes()]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_device_is_written_to_and_stays(tmp_path, write):
    before = os.stat(os.devnull)
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    write(link)
    after = os.stat(os.devnull)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert link.is_symlink()


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_anything_else_is_refused(tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        (tmp_path / "loop").symlink_to("loop")
        for name in ("socket", ".", "loop", "no/such/directory", "with\0zero"):
            with pytest.raises(ap.InvalidArgument, match=re.escape(str(tmp_path / name))):
                write(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "socket"]


def test_a_noise_state_replaces_regular_files_alone(tmp_path, plan):
    stream = ap.NoiseStream(plan, LEAVES, ap.Secret.insecure(1), "run")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ap.InvalidArgument, match="not a regular file"):
        stream.save(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("state")
    stream.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "state").is_file()


def test_a_report_that_cannot_be_written_leaves_what_was_there(tmp_path, plan, monkeypatch):
    plan.save(tmp_path / "plan.json")
    output = tmp_path / "report.html"
    output.write_text("the last one")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    result = command("report", str(tmp_path / "plan.json"), "--output", str(output))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert "hint: " in result.stderr
    assert output.read_text() == "the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.html"]


def antiphase(*arguments, environment=None, **options):
    command = [sys.executable, "-m", "antiphase", *arguments]
    options = {"capture_output": True, **options}
    return subprocess.run(command, check=False, env={**os.environ, **(environment or {})}, **options)


WITHOUT_UNICODE = {"PYTHONIOENCODING": "latin-1", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture
def foreign_plan(tmp_path, plan):
    problem = ap.Problem(12, plan.problem.budget, 40, 10, plan.problem.participation, unit="数据")
    ap.Plan(problem, plan.mechanism, plan.guarantee, 1.0).save(tmp_path / "plan.json")
    return str(tmp_path / "plan.json")


@pytest.mark.integration
@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_reports_do_not_depend_on_the_locale(tmp_path, foreign_plan, form):
    made = tmp_path / f"report.{form}"
    result = antiphase("report", foreign_plan, "--format", form, "--output", str(made), environment=WITHOUT_UNICODE)
    assert result.returncode == 0, result.stderr
    assert ("数据" if form != "json" else "\\u6570\\u636e") in made.read_text("utf-8")


@pytest.mark.integration
def test_what_is_printed_does_not_depend_on_the_locale(foreign_plan):
    shown = antiphase("report", foreign_plan, "--format", "md", environment=WITHOUT_UNICODE)
    assert shown.returncode == 0
    assert b"\\u6570\\u636e" in shown.stdout


@pytest.mark.integration
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_said_in_one_message(tmp_path, plan):
    plan.save(tmp_path / "plan.json")
    for arguments in (["account", str(tmp_path / "plan.json")], ["account", str(tmp_path / "plan.json"), "--json"]):
        with open("/dev/full", "w") as full:
            result = antiphase(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert result.returncode == 1
        assert result.stderr.startswith(b"error: The output cannot be written: No space left on device")
        assert b"Traceback" not in result.stderr
        assert b"Exception ignored" not in result.stderr
