"""A server killed at any instant goes on with the same release, the same noise and the same record.

A child process serves; it ends itself right before the n-th operation that makes something durable, or is killed
from outside. Clients fail at random. In the end the model must be the one that the record and the run's noise give.
"""

import itertools
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

import antiphase as ap
from antiphase._federated import ServerState, StateKey, read_state
from antiphase._ledger import Ledger
from antiphase.flower import report
from antiphase.flower._session import SAVE_EVERY, Session
from tests.flower.federation import (
    GRID,
    SECRET,
    Client,
    blt,
    epsilon_by_hand,
    federation,
    model,
    model_by_hand,
    names_by_hand,
    participation_by_hand,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)
from tests.flower.kills import KILLED, dying, ended, forked, serve_all

STEPS, CLIENTS, GOAL, SEPARATION = 6, 40, 4, 3
PLAN = plan_for(blt(STEPS), SEPARATION)
LONG = plan_for(blt(3 * SAVE_EVERY + 5), separation=27)  # three noise states are saved on the way


def serve(folder, seed, *, plan=PLAN, goal=GOAL, clients=CLIENTS, **options):
    serve_all(folder, seed, plan=plan, goal=goal, clients=clients, **options)


def check(folder, plan=PLAN, goal=GOAL, clients=CLIENTS, dropouts="zero"):
    """Nothing lost, nothing doubled, nothing released twice, and the epsilon is that of the record."""
    record, steps, mechanism = record_by_hand(folder / "s"), plan.steps, plan.mechanism
    assert [len(present) for present in record] == [goal] * steps
    network = [json.loads(line) for line in (folder / "network").read_text().splitlines()]
    contributing = record if dropouts == "replace" else replies(folder, network, record)
    expected = model_by_hand(folder / "s", folder / "c", plan, goal, updates(clients), contributing)
    for found, wanted in zip(read_state(folder / "s").model.values(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=GRID)
    sent: dict[int, object] = {}
    for _, release, arrays in network:
        if not isinstance(arrays, list):
            continue
        assert sent.setdefault(release, arrays) == arrays, f"release {release} was broadcast with other bytes"
    assert list((folder / "s").glob(".state.npz.*")) == []
    gap, count = participation_by_hand(record)
    found = report(folder / "s", secret=SECRET)
    assert (gap or steps) >= mechanism.participation.separation
    assert found.run.steps_run == steps
    assert [p.steps for p in found.run.publications] == list(range(1, steps + 1))
    by_hand = epsilon_by_hand(mechanism.strategy.encoder(), gap or steps, count, mechanism.noise_std, 1e-6)
    assert found.guarantee.value == pytest.approx(by_hand, rel=1e-6)


def replies(folder, network, record):
    """Those of the clients of each release that replied to the process that made it; the others count as zero."""
    names, found = {i: name for name, i in names_by_hand(folder / "s", folder / "c").items()}, []
    for release, present in enumerate(record):
        last = next(pid for pid, stand, content in reversed(network) if content == "start" and stand <= release)
        contents = [content for pid, asked_for, content in network if (pid, asked_for) == (last, release)]
        found.append([names[content] for content in contents if isinstance(content, int)])
        assert set(found[-1]) <= set(present)
    return found


def operations(folder):
    """About how many durable operations a run has: which clients are new to it is left to chance."""

    def counted():
        count = dying(0)
        serve(folder, 1, flaky=False)
        (folder / "count").write_text(str(next(count) - 1))

    folder.mkdir()
    assert ended(forked(counted)) == 0
    return int((folder / "count").read_text())


def killed_at(folder, at):
    """Whether the run had so many operations that it was killed; it is finished and checked in any case."""
    folder.mkdir()
    code = ended(forked(lambda: (dying(at), serve(folder, at, flaky=False))))
    assert code in (0, KILLED)
    assert ended(forked(lambda: serve(folder, at + 1, flaky=False))) == 0
    check(folder)
    shutil.rmtree(folder)
    return code == KILLED


def test_killed_at_some_durable_operations(tmp_path):
    total, rng = operations(tmp_path / "whole"), random.Random(3)
    points = sorted(rng.sample(range(1, total), 12))
    assert sum(killed_at(tmp_path / f"{at}", at) for at in points) >= 9


@pytest.mark.slow
def test_killed_at_every_durable_operation(tmp_path):
    total = operations(tmp_path / "whole")
    killed = [killed_at(tmp_path / f"{at}", at) for at in range(1, total)]
    assert sum(killed) >= 0.9 * len(killed)


@pytest.mark.parametrize("dropouts", ["zero", "replace"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 20))])
def test_random_kills_of_server_and_clients(tmp_path, seed, dropouts):
    """SIGKILL at random instants and ends at random operations, in turn, with clients that fail: one of 20 runs."""
    rng, options = random.Random(seed), {"flaky": True, "dropouts": dropouts}
    for kill in range(2):
        pid = forked(lambda kill=kill: serve(tmp_path, 100 * seed + kill, **options))
        time.sleep(rng.random() * 0.3)
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) in (0, -signal.SIGKILL)
        at = rng.randrange(1, 120)
        assert ended(forked(lambda at=at: (dying(at), serve(tmp_path, at, **options)))) in (0, KILLED)
    assert ended(forked(lambda: serve(tmp_path, 100 * seed + 99, **options))) == 0
    check(tmp_path, dropouts=dropouts)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))])
def test_killed_again_and_again_across_saved_noise_states(tmp_path, seed):
    """Each process makes a few releases before it dies, so that many begin from a saved state and replay from there."""
    rng, sizes, stands = random.Random(seed), {"plan": LONG, "goal": 2, "clients": 160}, []

    def serves(at):
        return forked(lambda: (dying(at), serve(tmp_path, at, flaky=False, **sizes)))

    while (code := ended(serves(rng.randrange(60, 250)))) == KILLED:
        states = (tmp_path / "s" / "run" / "private").glob("noise-*.state")
        newest = max((int(path.stem.removeprefix("noise-")) for path in states), default=0)
        stands.append((newest, state.release if (state := read_state(tmp_path / "s")) else 0))
    assert code == 0
    assert len(stands) >= 4, stands
    assert any(0 < saved < stand for saved, stand in stands), stands  # a later process replayed from a saved state
    check(tmp_path, **sizes)


@pytest.mark.parametrize("release", [0, 2])
def test_an_output_that_was_not_released_does_not_stay_on_disk(tmp_path, release):
    """Killed right before the rename of release 0 or 2: the file that was to be renamed is under noise used again."""

    def unfinished():
        return list((tmp_path / "s").glob(".state.npz.*"))

    def dies_before_the_rename():
        rename, states = os.replace, itertools.count()

        def replace(source, target):
            if os.fspath(target).endswith("state.npz") and next(states) == release + 1:  # the first is the new run's
                os._exit(KILLED)
            rename(source, target)

        os.replace = replace
        serve(tmp_path, 1, flaky=False)

    assert ended(forked(dies_before_the_rename)) == KILLED
    assert len(unfinished()) == 1
    assert read_state(tmp_path / "s").release == release
    assert report(tmp_path / "s", secret=SECRET).run.steps_run == release
    assert len(unfinished()) == 1, "a report changes nothing"
    assert ended(forked(lambda: serve(tmp_path, 2, flaky=False))) == 0
    check(tmp_path)  # nothing unfinished is left


def test_the_file_that_a_live_server_is_writing_is_left_alone(tmp_path):
    def second(release, arrays):
        (tmp_path / "s" / ".state.npz.00.new").touch()
        assert report(tmp_path / "s", secret=SECRET).run.steps_run == release
        assert (tmp_path / "s" / ".state.npz.00.new").exists()

    grid = federation(tmp_path / "c", CLIENTS)
    strategy(PLAN, tmp_path / "s", goal=GOAL).start(grid, model(), num_rounds=1, evaluate_fn=second)


def started(folder, stop, **options):
    grid = federation(folder / "c", CLIENTS)
    return strategy(PLAN, folder / "s", goal=GOAL, **options).start(grid, model(), num_rounds=stop), grid


def test_recovery_broadcasts_the_stored_bytes(tmp_path):
    first, _ = started(tmp_path, 3)
    _, grid = started(tmp_path, 4)
    sent = grid.tasks()[0].content["arrays"]
    assert [array.data for array in sent.values()] == [array.data for array in first.arrays.values()]
    assert grid.tasks()[0].content["antiphase"]["release"] == 3


def test_counts_are_entered_once_where_the_ledger_fails_after_the_release(tmp_path, monkeypatch):
    """The release is in the state file and its counts with it: closing must not enter them as well."""

    def full(session):
        if session.state.release:
            raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_update_ledgers", full)
        with pytest.raises(OSError, match="no space"):
            started(tmp_path, 1)
    assert report(tmp_path / "s", secret=SECRET).counts["accepted"] == GOAL


def test_starting_again_after_the_end_does_nothing(tmp_path):
    first, _ = started(tmp_path, None)
    again, grid = started(tmp_path, None)
    assert grid.sent == []
    assert [a.data for a in again.arrays.values()] == [a.data for a in first.arrays.values()]


def test_an_older_state_file_is_refused(tmp_path):
    started(tmp_path, 2)
    shutil.copy(tmp_path / "s" / "state.npz", tmp_path / "old")
    started(tmp_path, 3)
    shutil.copy(tmp_path / "old", tmp_path / "s" / "state.npz")
    with pytest.raises(ap.Corrupted, match="step would be released twice"):
        started(tmp_path, 4)


def put_back(folder, stop, lost, clients=GOAL, during=False):
    """A copy of the directory after `stop` releases, or while the next one is made; `lost` more; and the copy back."""
    plan, copy = plan_for(blt(STEPS), 1), folder / "copy"

    def serves(until):
        grid = federation(folder / "c", clients)
        send = grid.push_messages

        def push(messages):
            if during and messages and messages[0].content["antiphase"]["release"] == stop and not copy.exists():
                shutil.copytree(folder / "s", copy)
            return send(messages)

        grid.push_messages = push
        return strategy(plan, folder / "s", goal=GOAL).start(grid, model(), num_rounds=until)

    if not during:
        serves(stop)
        shutil.copytree(folder / "s", copy)
    serves(stop + lost)
    shutil.rmtree(folder / "s")
    copy.rename(folder / "s")
    return serves


@pytest.mark.parametrize(("stop", "lost"), [(0, 1), (2, 1), (2, 3)])
def test_a_directory_put_back_is_noticed_from_what_clients_were_asked(tmp_path, stop, lost):
    """Also where it is one release older, which looks like a release that failed and is tried again."""
    serves = put_back(tmp_path, stop, lost)
    for _ in range(2):
        with pytest.raises(ap.Corrupted, match="restored from an older copy"):
            serves(stop + lost)
    assert len(record_by_hand(tmp_path / "s")) == stop
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.guarantee, found.zcdp, found.run.guarantee) == (None, None, None)
    assert "No guarantee can be stated" in found.statement


def test_a_directory_put_back_to_the_middle_of_a_release_is_noticed_by_the_next_task(tmp_path):
    """The copy knows the mark of release 2; that it was made is known to clients that were asked for release 3."""
    serves = put_back(tmp_path, 2, 2, during=True)
    with pytest.raises(ap.Corrupted, match="restored from an older copy"):
        serves(4)
    assert len(record_by_hand(tmp_path / "s")) == 2


def test_two_futures_of_one_directory_are_noticed_later(tmp_path):
    """Clients that had no part in the lost releases do not know of them; the first one that does ends the run."""
    serves = put_back(tmp_path, 1, 2)
    plan = plan_for(blt(STEPS), 1)
    others = federation(tmp_path / "others", GOAL)
    strategy(plan, tmp_path / "s", goal=GOAL).start(others, model(), num_rounds=4)
    assert report(tmp_path / "s", secret=SECRET).guarantee is not None
    with pytest.raises(ap.Corrupted, match="restored from an older copy"):
        serves(5)
    assert report(tmp_path / "s", secret=SECRET).guarantee is None


def test_a_reply_that_is_lost_does_not_take_the_evidence_with_it(tmp_path):
    """Clients of the lost releases are asked for a later one, their replies do not arrive, and they are asked again."""
    serves, plan = put_back(tmp_path, 1, 2), plan_for(blt(STEPS), 1)
    strategy(plan, tmp_path / "s", goal=GOAL).start(federation(tmp_path / "others", GOAL), model(), num_rounds=3)
    silent = federation(tmp_path / "c", GOAL)
    silent.pull_messages = lambda ids: []
    with pytest.raises(ap.Refused):
        strategy(plan, tmp_path / "s", goal=GOAL, attempts=1).start(silent, model(), timeout=0.1)
    with pytest.raises(ap.Corrupted, match="restored from an older copy"):
        serves(STEPS)
    assert len(record_by_hand(tmp_path / "s")) == 3


@pytest.mark.parametrize("alone", [False, True])
def test_evidence_is_read_also_from_replies_that_are_not_needed(tmp_path, alone):
    """One of five knows of the lost release, and the other four fill the goal: pulled with them, or only afterwards."""
    put_back(tmp_path, 1, 1)
    grid = federation(tmp_path / "others", GOAL)
    grid.clients[999] = Client(tmp_path / "c" / "c0", updates(1)[0])
    pull = grid.pull_messages

    def last(ids):
        knows = {m.metadata.message_id for m in grid.sent if m.metadata.dst_node_id == 999}
        kept = [number for number in ids if not (alone and len(ids) > 1 and number in knows)]
        return sorted(pull(kept), key=lambda reply: reply.metadata.src_node_id)

    grid.pull_messages = last
    with pytest.raises(ap.Corrupted, match="restored from an older copy"):
        strategy(plan_for(blt(STEPS), 1), tmp_path / "s", goal=GOAL, oversampling=1.25).start(grid, model())
    assert len(record_by_hand(tmp_path / "s")) == 1


def test_a_server_that_changes_its_directory_writes_into_no_other_run(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")

    def goes_elsewhere(releases, arrays):
        monkeypatch.chdir(tmp_path / "two")

    made = strategy(plan_for(blt(STEPS), 1), "s", goal=GOAL)
    made.start(federation(tmp_path / "c", GOAL), model(), num_rounds=2, evaluate_fn=goes_elsewhere)
    made.start(federation(tmp_path / "c", GOAL), model(), num_rounds=3)
    assert len(record_by_hand(tmp_path / "one" / "s")) == 3
    assert not list((tmp_path / "two").iterdir())


def test_the_newest_directory_ends_too_once_an_older_one_has_sent_tasks(tmp_path):
    """Clients know what the older one sent, and the newest one does not; not started again, it can be reported on."""
    plan = plan_for(blt(STEPS), 1)

    def serves(until, clients):
        grid = federation(tmp_path / "c", clients)
        strategy(plan, tmp_path / "s", goal=GOAL, oversampling=2.0).start(grid, model(), num_rounds=until)

    def is_stopped(until):
        with pytest.raises(ap.Corrupted, match="restored from an older copy"):
            serves(until, 2 * GOAL)  # half of them are new, and remember the task of the first one that asks

    serves(1, GOAL)
    shutil.copytree(tmp_path / "s", tmp_path / "older")
    serves(3, GOAL)
    (tmp_path / "s").rename(tmp_path / "newest")
    (tmp_path / "older").rename(tmp_path / "s")
    is_stopped(2)
    assert report(tmp_path / "newest", secret=SECRET).guarantee is not None
    (tmp_path / "s").rename(tmp_path / "older")
    (tmp_path / "newest").rename(tmp_path / "s")
    is_stopped(4)


def test_a_mark_that_a_killed_server_entered_is_on_disk_before_it_is_sent(tmp_path):
    """Killed between entering a mark and keeping it; started again; then the power goes, and what was not kept."""
    sizes = {"plan": plan_for(blt(STEPS), 1), "clients": GOAL}  # everybody is asked, so everybody knows the mark

    def killed_between():
        enter = Session._enter

        def dying(session, entry):
            enter(session, entry)
            if (entry["kind"], entry.get("release")) == ("mark", 2):
                os._exit(KILLED)

        Session._enter = dying
        serve(tmp_path, 1, flaky=False, **sizes)

    def killed_when_sent():
        grid = federation(tmp_path / "c", GOAL)
        send = grid.push_messages
        grid.push_messages = lambda messages: (send(messages), os._exit(KILLED))
        strategy(sizes["plan"], tmp_path / "s", goal=GOAL).start(grid, model())

    assert ended(forked(killed_between)) == KILLED
    assert ended(forked(killed_when_sent)) == KILLED
    private = tmp_path / "s" / "clients" / "private"
    os.truncate(private / "ledger.jsonl", json.loads((private / "heads").read_bytes().split(b"\n")[0])[1]["size"])
    assert ended(forked(lambda: serve(tmp_path, 3, flaky=False, **sizes))) == 0
    check(tmp_path, **sizes)


def test_what_was_written_is_what_is_digested_and_broadcast(tmp_path):
    """An optimizer that goes on writing into the arrays that it gave must not change a release that was made."""
    given = ServerState(1, {"w": np.zeros(3)}, {"m": np.asfortranarray(np.ones((2, 3)))}, ("a",), {"accepted": 1})
    tmp_path.joinpath("s").mkdir()
    key = StateKey(SECRET, "run")
    written = given.write(tmp_path / "s", key)
    before = key.code(given)
    given.model["w"] += 1.0
    given.optimizer["m"] += 1.0
    assert key.code(written) == key.code(read_state(tmp_path / "s")) == written.code == before
    assert key.code(given) != before


@pytest.mark.parametrize("part", ["entry", "ledger"])
def test_a_session_that_cannot_be_closed_properly_still_lets_others_in(tmp_path, monkeypatch, part):
    def full(*args):
        raise OSError("no space")

    def serves():
        with pytest.raises(ap.Refused if not failing else OSError):
            strategy(PLAN, tmp_path / "s", goal=GOAL).start(federation(tmp_path / "c", 1), model(), timeout=0.1)

    failing = True
    with monkeypatch.context() as patch:
        if part == "entry":
            patch.setattr(Session, "_enter", fails_for_counts(Session._enter, full))
        else:
            patch.setattr(Ledger, "close", fails_for_clients(Ledger.close, full))
        serves()
    failing = False
    serves()


def fails_for_counts(original, full):
    return lambda session, entry: full() if entry["kind"] == "counts" else original(session, entry)


def fails_for_clients(original, full):
    return lambda ledger: full() if ledger._heads.parts[-3] == "clients" else original(ledger)


def test_a_changed_model_is_refused(tmp_path):
    """Even one with the right code: the ledger has another digest. Without it, see test_state_file.py."""
    started(tmp_path, 3)
    state = read_state(tmp_path / "s")
    state.model["0"][0, 0] += 1.0
    run_id = json.loads((tmp_path / "s" / "run" / "run.json").read_text())["run_id"]
    state.write(tmp_path / "s", StateKey(SECRET, run_id))
    with pytest.raises(ap.Refused, match="different output"):
        started(tmp_path, 4)


def test_changed_participants_are_noticed(tmp_path):
    started(tmp_path, 3)
    path = tmp_path / "s" / "clients" / "private" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"release":1', '"release":9'))
    with pytest.raises(ap.Corrupted):
        started(tmp_path, 4)


@pytest.mark.parametrize("gone", ["state.npz", "clients", "run"])
def test_missing_parts_are_refused(tmp_path, gone):
    started(tmp_path, 3)
    path = tmp_path / "s" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ap.Corrupted):
        started(tmp_path, 4)


def test_a_torn_state_file_is_refused(tmp_path):
    started(tmp_path, 3)
    path = tmp_path / "s" / "state.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ap.Corrupted, match="cannot be read"):
        started(tmp_path, 4)


def test_a_second_server_is_refused(tmp_path):
    grid = federation(tmp_path / "c", CLIENTS)
    seen = []

    def second(release, arrays):
        if release == 1:
            with pytest.raises(ap.Refused, match="Another live process"):
                started(tmp_path, 4)
            seen.append(release)

    strategy(PLAN, tmp_path / "s", goal=GOAL).start(grid, model(), num_rounds=2, evaluate_fn=second)
    assert seen == [1]


def test_a_second_server_does_not_replace_the_secret_of_one_that_is_starting(tmp_path, monkeypatch):
    """Neither has a run yet, so each of them would make a new secret."""
    right, refused = ap.Run.open, []

    def late(*args, **named):
        monkeypatch.setattr("antiphase.flower._session.Run.open", right)
        with pytest.raises(ap.Refused, match="Another live process") as error:
            started(tmp_path, 1, secret=None)
        refused.append(error)
        return right(*args, **named)

    monkeypatch.setattr("antiphase.flower._session.Run.open", late)
    started(tmp_path, 1, secret=None)
    started(tmp_path, 2, secret=None)  # with the secret in the directory
    assert len(refused) == 1
    assert report(tmp_path / "s").run.steps_run == 2


@pytest.mark.parametrize(
    "options", [{"raw_metrics": True}, {"identity": "key"}, {"goal": 5}, {"dropouts": "replace"}], ids=str
)
def test_settings_cannot_change_within_a_run(tmp_path, options):
    started(tmp_path, 1)
    grid = federation(tmp_path / "c", CLIENTS)
    with pytest.raises(ap.InvalidArgument, match=next(iter(options))):
        strategy(PLAN, tmp_path / "s", **{"goal": GOAL, **options}).start(grid, model())


def test_another_model_is_refused(tmp_path):
    started(tmp_path, 1)
    with pytest.raises(ap.InvalidArgument, match="float32"):
        strategy(PLAN, tmp_path / "s", goal=GOAL).start(federation(tmp_path / "c", CLIENTS), model("float32"))


def test_another_secret_is_refused(tmp_path):
    started(tmp_path, 1)
    with pytest.raises(ap.Corrupted):
        started(tmp_path, 2, secret=ap.Secret.insecure(6))


def test_the_secret_is_kept_in_the_directory_where_none_is_given(tmp_path):
    started(tmp_path, 1, secret=None)
    started(tmp_path, 2, secret=None)
    assert (tmp_path / "s" / "secret").stat().st_mode & 0o077 == 0
    assert report(tmp_path / "s").run.steps_run == 2
    (tmp_path / "s" / "secret").unlink()
    with pytest.raises(ap.Corrupted, match="secret is missing"):
        started(tmp_path, 3, secret=None)


def test_a_new_run_does_not_use_a_secret_that_it_finds(tmp_path):
    (tmp_path / "s").mkdir(mode=0o700)
    known = ap.Secret.generate()
    known.save(tmp_path / "s" / "secret")
    started(tmp_path, 1, secret=None)
    assert ap.Secret.load(tmp_path / "s" / "secret") != known


def test_more_rounds_than_the_plan_has_are_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="num_rounds"):
        started(tmp_path, STEPS + 1)


def test_an_extended_plan_goes_on(tmp_path):
    started(tmp_path, STEPS)
    longer = PLAN.extend(STEPS + 3)
    grid = federation(tmp_path / "c", CLIENTS)
    strategy(longer, tmp_path / "s", goal=GOAL).start(grid, model())
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.run.steps_run, len(record_by_hand(tmp_path / "s"))) == (STEPS + 3, STEPS + 3)
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", PLAN.extend(STEPS + 3), GOAL, updates(CLIENTS))
    np.testing.assert_allclose(read_state(tmp_path / "s").model["0"], expected[0], rtol=1e-7, atol=GRID)
