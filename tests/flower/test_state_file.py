"""The state file is believed only if it is authentic, also when it is ahead of the ledgers that it completes."""

import json
import shutil

import numpy as np
import pytest

import antiphase as ap
from antiphase._federated import FILE, read_state
from antiphase.flower import SGD, ServerOptimizer, report
from tests.flower.federation import blt, federation, ledger_entries, model, plan_for, record_by_hand, strategy
from tests.stored.frameworks import CLIENTS as OLD_CLIENTS
from tests.stored.frameworks import GOAL as OLD_GOAL
from tests.stored.test_stored import copied, stored

PLAN, OLD_PLAN, CLIENTS = plan_for(blt(8)), plan_for(blt(6)), 20


class Copying(ServerOptimizer):
    """Plain SGD that copies the server's directory in the middle of a release: the state is older than the release."""

    def __init__(self, folder, at):
        self._folder, self._at = folder, at

    def init(self, model):
        return {}

    def step(self, release, model, update, state):
        if release == self._at:
            shutil.copytree(self._folder / "s", self._folder / "copy")
        return SGD().step(release, model, update, state)


def serve(folder, stop, *, first=100, **options):
    grid = federation(folder / "c", CLIENTS, first=first)
    options = {"dropouts": "replace", **options}
    return strategy(PLAN, folder / "s", **options).start(grid, model(), num_rounds=stop)


def edit(path, *, strip=False, arrays=None, **changes):
    """Change the meta data or arrays in a state file, as anyone can who may write to the directory."""
    with np.load(path) as archive:
        entries = {name: archive[name] for name in archive.files}
    meta = json.loads(entries["meta"].tobytes()) | changes
    entries["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    entries |= arrays or {}
    if strip:
        entries.pop("code", None)
    np.savez(path, **entries)


def one_release_behind(folder, at, **options):
    """Serve a release, then put the ledgers back to the moment before it was recorded, as after a kill."""
    serve(folder, at + 1, optimizer=Copying(folder, at), **options)
    truth = record_by_hand(folder / "s")
    for part in ("run", "clients"):
        shutil.rmtree(folder / "s" / part)
        shutil.copytree(folder / "copy" / part, folder / "s" / part)
    return truth


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("strip", [False, True], ids=["code kept", "code removed"])
@pytest.mark.parametrize("changes", [{"clients": []}, {"clients": ["00" * 8]}, {"counts": {"accepted": 9}}], ids=str)
def test_participants_of_a_release_that_is_not_yet_recorded_cannot_be_erased(tmp_path, at, strip, changes):
    one_release_behind(tmp_path, at)
    edit(tmp_path / "s" / FILE, strip=strip, **changes)
    for act in (lambda: serve(tmp_path, 8, first=500), lambda: report(tmp_path / "s", secret=ap.Secret.insecure(5))):
        with pytest.raises(ap.Corrupted, match="authentication code"):
            act()
    assert len(record_by_hand(tmp_path / "s")) == at


@pytest.mark.parametrize("dropouts", ["zero", "replace"])
def test_an_intact_file_completes_the_ledgers_with_the_true_participants(tmp_path, dropouts):
    truth = one_release_behind(tmp_path, 2, dropouts=dropouts)
    assert len(record_by_hand(tmp_path / "s")) == 2
    serve(tmp_path, 4, first=500, dropouts=dropouts)
    assert record_by_hand(tmp_path / "s")[:3] == truth


@pytest.mark.parametrize("releases", [0, 3])
@pytest.mark.parametrize("changes", [{}, {"model-0": np.full((3, 2), 7.0)}], ids=["same", "other model"])
def test_a_file_whose_code_was_removed_is_not_taken_for_one_of_an_older_version(tmp_path, releases, changes):
    serve(tmp_path, releases)
    edit(tmp_path / "s" / FILE, strip=True, arrays=changes)
    with pytest.raises(ap.Corrupted, match="code is missing"):
        serve(tmp_path, 4)


def test_the_file_of_another_run_with_the_same_secret_is_refused(tmp_path):
    for name in ("a", "b"):
        serve(tmp_path / name, 3)
    shutil.copy(tmp_path / "a" / "s" / FILE, tmp_path / "b" / "s" / FILE)
    with pytest.raises(ap.Corrupted, match="does not match its content"):
        serve(tmp_path / "b", 4)


@pytest.mark.parametrize("release", [-1, True, 1.0, "1", None, 2**80])
def test_a_release_index_of_another_kind_is_refused(tmp_path, release):
    serve(tmp_path, 1)
    edit(tmp_path / "s" / FILE, release=release)
    with pytest.raises(ap.Corrupted):
        serve(tmp_path, 2)


def old_run(folder):
    """A half-finished run of version 0.1.0, whose state file has no code."""
    directory = copied(stored("0.1.0") / "frameworks" / "flower", folder / "old")
    assert read_state(directory / "s").code == b""
    return directory


def go_on(directory, stop):
    grid = federation(directory / "c", OLD_CLIENTS)
    return strategy(OLD_PLAN, directory / "s", goal=OLD_GOAL).start(grid, model(), num_rounds=stop)


def test_a_run_of_an_older_version_gets_a_code_which_is_then_needed(tmp_path):
    directory = old_run(tmp_path)
    path, before = directory / "s" / FILE, read_state(directory / "s")
    report(directory / "s", secret=ap.Secret.insecure(5))
    assert read_state(directory / "s").code == b""  # a report leaves the run to the version that it belongs to
    go_on(directory, before.release)
    after = read_state(directory / "s")
    assert len(after.code) == 32
    assert after.release == before.release
    assert all(np.array_equal(a, b) for a, b in zip(before.model.values(), after.model.values(), strict=True))
    assert [entry["kind"] for entry in ledger_entries(directory / "s")].count("state code") == 1
    edit(path, strip=True)
    with pytest.raises(ap.Corrupted, match="code is missing"):
        go_on(directory, before.release)


@pytest.mark.parametrize("change", ["clients", "model", "ahead"])
def test_a_changed_file_of_an_older_version_is_refused(tmp_path, change):
    directory = old_run(tmp_path)
    path, state = directory / "s" / FILE, read_state(directory / "s")
    match change:
        case "clients":
            edit(path, clients=[])
        case "model":
            edit(path, arrays={"model-0": np.full((3, 2), 7.0)})
        case "ahead":  # as if the server had been killed before the release was recorded, which no ledger confirms
            edit(path, release=state.release + 1)
    with pytest.raises(ap.Corrupted, match="the ledger does not confirm"):
        go_on(directory, 6)


def test_momentum_cannot_be_added_to_a_run_without_velocity(tmp_path):
    serve(tmp_path, 3)
    with pytest.raises(ap.InvalidArgument, match=r"momentum 0\.9"):
        serve(tmp_path, 4, optimizer=SGD(0.1, 0.9))
    serve(tmp_path, 4, optimizer=SGD(0.1), zero_above=100.0)  # these may change
    assert read_state(tmp_path / "s").release == 4


def test_no_damage_to_the_state_file_raises_another_error(tmp_path):
    """An empty file, a file of NumPy that is no archive, and flipped bits everywhere."""
    serve(tmp_path, 2)
    path = tmp_path / "s" / FILE
    data = path.read_bytes()
    np.save(tmp_path / "array.npy", np.ones(3))
    flips = [(place, bit) for place in range(len(data)) for bit in (0, 3, 7)]
    flipped = [data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :] for place, bit in flips]
    refused = 0
    for content in [b"", (tmp_path / "array.npy").read_bytes(), *flipped]:
        path.write_bytes(content)
        try:
            read_state(tmp_path / "s")
        except ap.Corrupted:
            refused += 1
    assert refused > 2 + len(data)
