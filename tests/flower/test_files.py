"""Server directories that are incomplete, moved or on a failing disk: refused, and left as they are."""

import itertools
import os
import shutil

import numpy as np
import pytest

import antiphase as ap
from antiphase._federated import read_state
from antiphase.flower._session import Session
from antiphase.flower._timer import locked_timer
from tests.flower.federation import blt, plan_for

PLAN = plan_for(blt(6), 3)
MODEL = {"w": np.zeros(3)}
PARTS = ("secret", "state.npz", "run", "clients")


def opened(directory):
    return Session.open(PLAN, directory, {"some": "settings"}, model=MODEL)


def release(session, value):
    session.noise()
    session.release({"w": np.full(3, value)}, {}, [f"client {session.state.release}"])


def content(directory):
    return {path: path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "server"
    session = opened(directory)
    release(session, 1.0)
    release(session, 2.0)
    session.close()
    return directory


@pytest.mark.parametrize("names", [n for k in range(1, 4) for n in itertools.combinations(PARTS, k)], ids="-".join)
def test_a_partial_copy_is_refused_and_left_as_it_is(whole, tmp_path, names):
    """All but the secret alone, which is what a kill right at the beginning leaves."""
    directory = tmp_path / "server"
    directory.mkdir()
    for name in names:
        (shutil.copytree if (whole / name).is_dir() else shutil.copy)(whole / name, directory / name)
    before = content(directory)
    if names == ("secret",):
        opened(directory).close()
        return
    with pytest.raises(
        ap.Corrupted, match=r"is (incomplete|not whole)\. Missing: |secret is missing|state file has 0 releases, but"
    ):
        opened(directory)
    assert content(directory) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_after_a_failed_release_the_session_must_be_opened_again(whole, tmp_path, monkeypatch, call):
    """What of it is on disk is not known: a second output under the same noise would reveal the difference of both."""
    directory = shutil.copytree(whole, tmp_path / "server")
    session = opened(directory)
    session.noise()
    real, count = getattr(os, call), itertools.count()

    def fails(*given):
        if call == "replace" or next(count) == 1:  # the second: the directory, after the rename
            raise OSError(5, "the disk fails")
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(OSError, match="the disk fails"):
            session.release({"w": np.full(3, 3.0)}, {}, ["client 2"])
    for act in (session.noise, lambda: session.release({"w": np.full(3, 4.0)}, {}, ["client 2"])):
        with pytest.raises(ap.Refused, match="open it again"):
            act()
    session.close()
    stored = read_state(directory)
    assert (stored.release, stored.model["w"][0]) == ((2, 2.0) if call == "replace" else (3, 3.0))
    session = opened(directory)
    assert session.run.published == stored.release
    session.close()


def test_a_moved_server_writes_into_no_other(whole, tmp_path):
    ours, theirs = (shutil.copytree(whole, tmp_path / name) for name in ("ours", "theirs"))
    session = opened(ours)
    session.noise()
    os.rename(ours, tmp_path / "moved")
    os.rename(theirs, ours)
    before = content(ours)
    with pytest.raises(ap.Refused, match="moved, removed or replaced"):
        session.release({"w": np.full(3, 3.0)}, {}, ["client 2"])
    assert content(ours) == before


@pytest.mark.parametrize("name", ["state.npz", "secret", "clients/private/heads", "clients/private/ledger.jsonl"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(whole, tmp_path, name):
    directory = shutil.copytree(whole, tmp_path / "server")
    (directory / name).unlink()
    os.mkfifo(directory / name, 0o600)
    with pytest.raises(ap.Corrupted, match=f"{name} must be a regular file, but is a named pipe"):
        opened(directory)


def test_a_client_does_not_wait_for_a_pipe_and_removes_what_a_kill_left(tmp_path):
    with locked_timer(tmp_path / "client"):
        pass
    (tmp_path / "client" / f".client.json.{'0a' * 8}.new").write_bytes(b"{")
    with locked_timer(tmp_path / "client"):
        assert [path.name for path in (tmp_path / "client").iterdir()] == ["client.json"]
    (tmp_path / "client" / "client.json").unlink()
    os.mkfifo(tmp_path / "client" / "client.json")
    with pytest.raises(ap.Corrupted, match="named pipe"), locked_timer(tmp_path / "client"):
        pass
