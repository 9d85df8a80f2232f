"""The ledger keeps what was written, notices what was changed, and survives a crash."""

import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._ledger import Ledger
from antiphase._secret import Secret

SECRET = Secret.insecure(1)


def written(directory, count=6, run_id="run"):
    ledger = Ledger(directory, SECRET, run_id, create=True)
    for step in range(count):
        ledger.public.append({"kind": "commit", "step": step})
        ledger.private.append({"kind": "batch", "step": step, "size": 10 + step})
    ledger.close()
    return directory / "public" / "ledger.jsonl", directory / "private" / "ledger.jsonl"


def steps(ledger):
    return [entry["step"] for entry in ledger.public.entries()]


def test_entries_come_back_and_go_on(tmp_path):
    written(tmp_path)
    ledger = Ledger(tmp_path, SECRET, "run", create=False)
    ledger.public.append({"kind": "commit", "step": 6})
    ledger.close()
    again = Ledger(tmp_path, SECRET, "run", create=False)
    assert steps(again) == list(range(7))
    assert [entry["size"] for entry in again.private.entries()] == [10, 11, 12, 13, 14, 15]


def test_private_files_are_for_their_owner_only(tmp_path):
    _, private = written(tmp_path)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private" / "heads").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700


@given(
    position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), part=st.sampled_from(["public", "private"])
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_is_noticed(tmp_path_factory, position, flip, part):
    directory = tmp_path_factory.mktemp("ledger")
    written(directory)
    path = directory / part / "ledger.jsonl"
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= flip
    path.write_bytes(bytes(data))
    with pytest.raises(ap.Corrupted, match="are authentic"):
        Ledger(directory, SECRET, "run", create=False)


@given(keep=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_any_cut_is_noticed(tmp_path_factory, keep):
    directory = tmp_path_factory.mktemp("ledger")
    public, _ = written(directory)
    data = public.read_bytes()
    public.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(ap.Corrupted):
        Ledger(directory, SECRET, "run", create=False)


@pytest.mark.parametrize("change", ["swap", "drop", "double", "missing heads", "changed heads", "other secret"])
def test_rewriting_is_noticed(tmp_path, change):
    public, _ = written(tmp_path)
    lines, heads, secret = public.read_bytes().splitlines(keepends=True), tmp_path / "private" / "heads", SECRET
    match change:
        case "swap":
            lines[1], lines[2] = lines[2], lines[1]
        case "drop":
            del lines[2]
        case "double":
            lines.insert(2, lines[2])
        case "missing heads":
            heads.unlink()
        case "changed heads":
            heads.write_bytes(heads.read_bytes().replace(b'"entries": 6', b'"entries": 2'))
        case "other secret":
            secret = Secret.insecure(2)
    public.write_bytes(b"".join(lines))
    with pytest.raises(ap.Corrupted):
        Ledger(tmp_path, secret, "run", create=False)


def test_a_whole_chain_from_another_run_is_noticed(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    written(ours)
    written(theirs, count=9, run_id="another run")
    os.replace(theirs / "public" / "ledger.jsonl", ours / "public" / "ledger.jsonl")
    with pytest.raises(ap.Corrupted):
        Ledger(ours, SECRET, "run", create=False)


def test_a_torn_last_line_is_cut_off(tmp_path):
    public, _ = written(tmp_path)
    whole = public.read_bytes()
    ledger = Ledger(tmp_path, SECRET, "run", create=False)
    ledger.public.append({"kind": "commit", "step": 6})
    del ledger
    for size in range(len(whole) + 1, public.stat().st_size):
        torn = public.read_bytes()[:size]
        public.write_bytes(torn)
        ledger = Ledger(tmp_path, SECRET, "run", create=False)
        assert steps(ledger) == list(range(6))
        assert public.read_bytes() == torn  # opening changes nothing, the first write does
        ledger.close()
        assert public.read_bytes() == whole
        public.write_bytes(whole + torn[len(whole) :])


def test_entries_after_the_kept_head_survive_the_end_of_the_process(tmp_path):
    written(tmp_path)
    ledger = Ledger(tmp_path, SECRET, "run", create=False)
    ledger.public.append({"kind": "commit", "step": 6})
    del ledger  # no close, no sync: as after a kill
    assert steps(Ledger(tmp_path, SECRET, "run", create=False)) == list(range(7))
