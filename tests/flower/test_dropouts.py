"""Clients that fail or stay silent: by default they took part with a zero update, and nobody gets their place.

The point is who takes part: under dropouts="zero" one client's data must change nothing but its own contributions.
"""

import json
import os
import shutil

import numpy as np
import pytest
from flwr.app import Message, RecordDict

import antiphase as ap
from antiphase.flower import report
from antiphase.flower._session import Session
from tests.flower.federation import (
    GRID,
    SECRET,
    SHAPES,
    Client,
    FakeGrid,
    blt,
    clipped,
    epsilon_by_hand,
    failed,
    federation,
    is_check_in,
    ledger_entries,
    model,
    model_by_hand,
    names_by_hand,
    participation_by_hand,
    plan_for,
    record_by_hand,
    strategy,
    updates,
)
from tests.flower.test_replies import MALFORMED, pulls_raise, stated

X = 100  # node of the client that drops out; its directory is c0
GOAL = 4


class Killed(Client):
    """Its process ends in the middle of training, as by the out-of-memory killer; Flower may notice, or nobody does."""

    def __init__(self, *args, noticed, **named):
        super().__init__(*args, **named)
        self._noticed = noticed

    def answer(self, message):
        if is_check_in(message):
            return super().answer(message)
        pid = os.fork()
        if pid == 0:
            super().answer(message)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 137
        return [failed(message)] if self._noticed else []

    def _train(self, message, context):
        os._exit(137)


def silent(message, reply):
    return []


FATES = {
    "silent": lambda folder: Client(folder, updates(1)[0], silent),
    "killed": lambda folder: Killed(folder, updates(1)[0], noticed=True),
    "killed, unnoticed": lambda folder: Killed(folder, updates(1)[0], noticed=False),
    "malformed": lambda folder: Client(folder, updates(1)[0], MALFORMED["shape"]),
    "another name": lambda folder: Client(folder, updates(1)[0], stated(client="another")),
    "another release": lambda folder: Client(folder, updates(1)[0], stated(release=7)),
    "declines after all": lambda folder: Client(folder, updates(1)[0], stated(status="declined")),
    "claims too much": lambda folder: Client(folder, updates(1)[0], stated(last=7)),
    "ready, but no update": lambda folder: Client(folder, updates(1)[0], stated(status="ready")),
}
COUNTED = {
    "silent": "silent",
    "killed": "failed",
    "killed, unnoticed": "silent",
    "malformed": "malformed",
    "another name": "other-name",
    "another release": "other-release",
    "declines after all": "declined",
    "claims too much": "false-claim",
    "ready, but no update": "malformed",
}


def numbered(folder):
    names = names_by_hand(folder / "s", folder / "c")
    return [sorted(names[name] for name in present) for present in record_by_hand(folder / "s")]


def without_noise(folder, plan, arrays):
    """The final model minus the noise of its releases."""
    noise = model_by_hand(folder / "s", folder / "c", plan, GOAL, [], [[]] * len(record_by_hand(folder / "s")))
    return [found - z for found, z in zip(arrays.to_numpy_ndarrays(), noise, strict=True)]


@pytest.mark.parametrize("oversampling", [1.0, 3.0])
@pytest.mark.parametrize("fate", FATES)
def test_a_client_that_drops_out_keeps_its_place_and_adds_zero(tmp_path, fate, oversampling):
    """It and three others check in; four more come when the places are given out, and none of them is asked to train.

    The sum is that of the three, over the goal, and the participation of the client that dropped out is used up.
    """
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", GOAL)
    grid.clients[X] = FATES[fate](tmp_path / "c" / "c0")
    more, send = federation(tmp_path / "c", 8), grid.push_messages

    def push(messages):
        if not any(map(is_check_in, messages)):
            grid.clients.update({node: client for node, client in more.clients.items() if node >= X + GOAL})
        return send(messages)

    grid.push_messages = push
    made = strategy(plan, tmp_path / "s", goal=GOAL, oversampling=oversampling)
    result = made.start(grid, model(), timeout=0.2)
    assert sorted(message.metadata.dst_node_id for message in grid.tasks()) == [X, X + 1, X + 2, X + 3]
    assert numbered(tmp_path) == [[0, 1, 2, 3]]
    for found, parts in zip(
        without_noise(tmp_path, plan, result.arrays), zip(*map(clipped, updates(GOAL)[1:]), strict=True), strict=True
    ):
        np.testing.assert_allclose(found, sum(parts) / GOAL, rtol=1e-7, atol=GRID)
    counts = {name: n for name, n in report(tmp_path / "s", secret=SECRET).counts.items() if n and name != "clipped"}
    assert counts == {"checked-in": GOAL, "accepted": GOAL - 1, COUNTED[fate]: 1}


@pytest.mark.parametrize("kind", MALFORMED)
def test_whatever_is_sent_in_place_of_an_update_counts_as_zero(tmp_path, kind):
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", GOAL)
    grid.clients[X] = Client(tmp_path / "c" / "c0", updates(1)[0], MALFORMED[kind])
    result = strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    assert numbered(tmp_path) == [[0, 1, 2, 3]]
    rest = [sum(clipped(update)[i] for update in updates(GOAL)[1:]) / GOAL for i in range(len(SHAPES))]
    np.testing.assert_allclose(without_noise(tmp_path, plan, result.arrays)[0], rest[0], rtol=1e-7, atol=GRID)


def test_a_zero_update_is_a_participation_in_the_timers_and_in_the_report(tmp_path):
    """One client of four never replies and all four are needed; with separation 2 every other release is empty.

    The client that added nothing is accounted like the others: its data might have been such that it replied.
    """
    plan, grid = plan_for(blt(5), separation=2), federation(tmp_path / "c", GOAL)
    grid.clients[X] = Killed(tmp_path / "c" / "c0", updates(1)[0], noticed=True)
    strategy(plan, tmp_path / "s", goal=GOAL, when_short="release").start(grid, model(), timeout=0.2)
    assert numbered(tmp_path) == [[0, 1, 2, 3], [], [0, 1, 2, 3], [], [0, 1, 2, 3]]
    assert participation_by_hand(record_by_hand(tmp_path / "s")) == (2, 3)
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.clients, found.achieved) == (GOAL, ap.MinSeparation(2, 3))
    assert found.guarantee.value == pytest.approx(epsilon_by_hand(blt(5).encoder(), 2, 3, 4.0, 1e-6), rel=1e-6)


def test_a_client_without_participations_left_is_not_asked_even_if_all_its_updates_were_zero(tmp_path):
    plan, grid = plan_for(blt(4), separation=1, count=2), federation(tmp_path / "c", 1)
    grid.clients[X] = FATES["silent"](tmp_path / "c" / "c0")
    with pytest.raises(ap.Refused, match="checked in"):
        strategy(plan, tmp_path / "s", goal=1).start(grid, model(), timeout=0.1)
    assert numbered(tmp_path) == [[0], [0]]


def test_a_timer_that_a_client_lost_is_kept_by_the_server(tmp_path):
    """A client that ignores its own timer, and comes with a new node id each time, is not let in at check-in."""
    plan = plan_for(blt(4), separation=3)

    class Eager(Client):
        def answer(self, message):
            if is_check_in(message):
                (tmp_path / "eager" / "client.json").unlink(missing_ok=True)
            return [
                stated_without_arrays(message, reply, client="eager", last=-1, seen=[], marks=[])
                for reply in super().answer(message)
            ]

    def released(release, others):
        grid = federation(tmp_path / f"c{release}", others, first=1000 * release)
        grid.clients[1000 * release + 50] = Eager(tmp_path / "eager", updates(1)[0])
        strategy(plan, tmp_path / "s", goal=3).start(grid, model(), num_rounds=release + 1)
        return grid

    released(0, 2)
    for release in (1, 2):
        with pytest.raises(ap.Refused, match="early"):
            released(release, 2)
        grid = released(release, 3)
        assert 1000 * release + 50 not in {message.metadata.dst_node_id for message in grid.tasks()}
    released(3, 2)
    assert report(tmp_path / "s", secret=SECRET).achieved == ap.MinSeparation(3, 2)


def stated_without_arrays(message, reply, **fields):
    content = {"antiphase": type(reply.content["antiphase"])({**reply.content["antiphase"], **fields})}
    content |= {"arrays": reply.content["arrays"]} if "arrays" in reply.content else {}
    return Message(RecordDict(content), reply_to=message)


class InOrder:
    """Takes the place of the server's random order: the same in every world that is compared."""

    def shuffle(self, items):
        items.sort()


def world(folder, monkeypatch, client, **options):
    """Twelve releases among ten clients, of which X is the one given; what was released, without its noise, and who."""
    monkeypatch.setattr("antiphase.flower._selection.secrets.SystemRandom", InOrder)
    plan, grid, models = plan_for(blt(12), separation=2), federation(folder / "c", 10), []
    grid.clients[X] = client(folder / "c" / "c0")
    strategy(plan, folder / "s", goal=GOAL, attempts=5, **options).start(
        grid, model(), timeout=0.05, evaluate_fn=lambda release, arrays: models.append(arrays.to_numpy_ndarrays()[0])
    )
    noise = [model_by_hand(folder / "s", folder / "c", plan, GOAL, [], [[]] * count)[0] for count in range(len(models))]
    return np.diff([found - z for found, z in zip(models, noise, strict=True)], axis=0), numbered(folder)


def honest(folder):
    return Client(folder, updates(1)[0])


def distance_and_records(tmp_path, monkeypatch, fate, **options):
    """Norms, release by release, of the difference between a world in which X works and one in which it does not."""
    works, there = world(tmp_path / "works", monkeypatch, honest, **options)
    fails, here = world(tmp_path / "fails", monkeypatch, FATES[fate], **options)
    return works - fails, there, here


@pytest.mark.parametrize("oversampling", [1.0, 1.5])
@pytest.mark.parametrize("fate", ["silent", "killed"])
def test_a_client_whose_data_make_it_fail_changes_its_own_contribution_and_nothing_else(
    tmp_path, monkeypatch, fate, oversampling
):
    """Two neighbouring worlds: with its data the client trains, with others it dies. The same clients take part in the
    same releases, and what is released differs by its clipped update where it took part, and by nothing elsewhere."""
    moved, there, here = distance_and_records(tmp_path, monkeypatch, fate, oversampling=oversampling)
    assert there == here
    own = clipped(updates(1)[0])[0] / GOAL
    assert sum(0 in present for present in there) >= 3, "it must take part to show anything"
    for difference, present in zip(moved, there, strict=True):
        np.testing.assert_allclose(difference, own if 0 in present else 0 * own, rtol=1e-6, atol=GRID)


def test_replacing_lets_the_data_of_one_client_decide_who_else_takes_part(tmp_path, monkeypatch):
    """What the default avoids, and the test above would notice."""
    moved, there, here = distance_and_records(tmp_path, monkeypatch, "silent", dropouts="replace")
    assert there != here
    own = clipped(updates(1)[0])[0] / GOAL
    assert any(
        not np.allclose(difference, own if 0 in present else 0 * own)
        for difference, present in zip(moved, there, strict=True)
    )


@pytest.mark.parametrize("dropouts", ["zero", "replace"])
def test_a_reply_that_comes_when_the_round_is_closed_is_not_counted(tmp_path, dropouts):
    """The update for release 0 arrives while release 1 is collected, together with the one that belongs there."""
    plan, grid = plan_for(blt(2), separation=1), federation(tmp_path / "c", GOAL)
    late, honest_push = [], grid.push_messages

    def push(messages):
        ids = honest_push(messages)
        for message in messages:
            if message.metadata.dst_node_id == X and not is_check_in(message):
                reply = grid._inbox.pop(message.metadata.message_id)
                if message.content["antiphase"]["release"] == 0:
                    late.extend(reply)
                else:  # Flower would not give it, since nobody asks for it; here it comes with the others
                    grid._inbox[message.metadata.message_id] = [*late, *reply]
        return ids

    grid.push_messages = push
    short = {"zero": {}, "replace": {"when_short": "release"}}[dropouts]
    made = strategy(plan, tmp_path / "s", goal=GOAL, dropouts=dropouts, **short)
    result = made.start(grid, model(), timeout=0.1)
    assert len(late) == 1
    everybody = [clipped(update)[0] for update in updates(GOAL)]
    total = (sum(everybody[1:]) + sum(everybody)) / GOAL
    np.testing.assert_allclose(without_noise(tmp_path, plan, result.arrays)[0], total, rtol=1e-7, atol=GRID)
    assert report(tmp_path / "s", secret=SECRET).counts["unsolicited"] == 1
    assert numbered(tmp_path) == [[0, 1, 2, 3] if dropouts == "zero" else [1, 2, 3], [0, 1, 2, 3]]


def test_a_reply_that_flower_cannot_read_takes_no_other_with_it(tmp_path):
    """Killed while it sends, a client leaves a reply that is cut short; Flower raises for the whole pull."""
    plan, grid = plan_for(blt(2), separation=1), pulls_raise(federation(tmp_path / "c", GOAL), ValueError("cut short"))
    check_in_pull, pull = FakeGrid.pull_messages, grid.pull_messages
    grid.pull_messages = lambda ids: pull(ids) if set(ids) & sent_to_train(grid) else check_in_pull(grid, ids)
    result = strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    assert numbered(tmp_path) == [[0, 1, 2, 3]] * 2
    rest = 2 * sum(clipped(update)[0] for update in updates(GOAL)[1:]) / GOAL
    np.testing.assert_allclose(without_noise(tmp_path, plan, result.arrays)[0], rest, rtol=1e-7, atol=GRID)
    counts = report(tmp_path / "s", secret=SECRET).counts
    assert (counts["accepted"], counts["failed"], counts["silent"]) == (6, 2, 0)


def sent_to_train(grid):
    return {message.metadata.message_id for message in grid.tasks()}


def test_starting_the_server_again_frees_no_place(tmp_path):
    """Stopped by the operator while it waits for one that is silent; others are there now, under other node ids."""
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", GOAL)
    grid.clients[X] = FATES["silent"](tmp_path / "c" / "c0")
    pull = grid.pull_messages

    def interrupted(ids):
        if grid.tasks():
            raise KeyboardInterrupt
        return pull(ids)

    grid.pull_messages = interrupted
    with pytest.raises(KeyboardInterrupt):
        strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    assert record_by_hand(tmp_path / "s") == []
    again = federation(tmp_path / "c", 12, first=500)
    del again.clients[500]
    result = strategy(plan, tmp_path / "s", goal=GOAL).start(again, model())
    assert numbered(tmp_path) == [[0, 1, 2, 3]]
    assert sorted(message.metadata.dst_node_id for message in again.tasks()) == [501, 502, 503]
    rest = sum(clipped(update)[0] for update in updates(GOAL)[1:]) / GOAL
    np.testing.assert_allclose(without_noise(tmp_path, plan, result.arrays)[0], rest, rtol=1e-7, atol=GRID)
    assert report(tmp_path / "s", secret=SECRET).counts["silent"] == 1


def test_a_server_that_is_started_again_asks_the_cohort_first(tmp_path):
    """Of 200 nodes the four that have places are asked, and nobody else."""
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", 200)
    with pytest.raises(ConnectionResetError):
        strategy(plan, tmp_path / "s", goal=GOAL).start(gone_when_training(grid), model())
    asked = {message.metadata.dst_node_id for message in grid.tasks()}
    again = federation(tmp_path / "c", 200)
    strategy(plan, tmp_path / "s", goal=GOAL).start(again, model())
    assert {message.metadata.dst_node_id for message in again.sent} == asked


def gone_when_training(grid):
    pull = grid.pull_messages

    def gone(ids):
        if grid.tasks():
            raise ConnectionResetError
        return pull(ids)

    grid.pull_messages = gone
    return grid


def test_the_cohort_is_on_disk_before_anybody_is_asked_to_train(tmp_path):
    plan, grid = plan_for(blt(2), separation=1), federation(tmp_path / "c", 8)
    send, found = grid.push_messages, []

    def push(messages):
        if any(not is_check_in(message) for message in messages):
            kept = json.loads((tmp_path / "s" / "clients" / "private" / "heads").read_bytes().split(b"\n")[0])[1][
                "size"
            ]
            data = (tmp_path / "s" / "clients" / "private" / "ledger.jsonl").read_bytes()
            found.append(json.loads(data[:kept].splitlines()[-1].rpartition(b" ")[0]))
            assert sorted(found[-1]["nodes"]) == sorted(message.metadata.dst_node_id for message in messages)
        return send(messages)

    grid.push_messages = push
    strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    assert [(entry["kind"], entry["release"]) for entry in found] == [("cohort", 0), ("cohort", 1)]
    assert [entry["clients"] for entry in found] == record_by_hand(tmp_path / "s")


def test_participants_other_than_the_cohort_are_refused(tmp_path):
    """A ledger in which one of the cohort did not take part, or somebody else did, was not written by the server."""
    plan, grid = plan_for(blt(2), separation=1), federation(tmp_path / "c", GOAL)
    server = strategy(plan, tmp_path / "s", goal=GOAL)
    server.start(grid, model(), num_rounds=1)
    session = Session.open(server.plan, tmp_path / "s", {}, secret=SECRET)  # on a lattice, unlike the plan it was given
    try:
        session.fix_cohort(["a", "b"], [1, 2])
        for clients in (["a"], ["a", "c"], ["a", "b", "c"]):
            with pytest.raises(ap.Corrupted, match="cannot follow"):
                session.history.apply({"kind": "release", "release": 1, "clients": clients, "counts": {}})
        with pytest.raises(ap.Corrupted, match="cannot follow"):
            session.fix_cohort(["a", "b"], [1, 2])
    finally:
        session.run.close()


@pytest.mark.parametrize("dropouts", ["zero", "replace"])
def test_the_report_says_which_rule_applied(tmp_path, dropouts):
    grid = federation(tmp_path / "c", GOAL)
    strategy(plan_for(blt(1)), tmp_path / "s", goal=GOAL, dropouts=dropouts).start(grid, model())
    found = report(tmp_path / "s", secret=SECRET)
    assert found.dropouts == dropouts
    assert ("took part with a zero update" in found.statement) == (dropouts == "zero")
    assert ("replaced by another one" in found.statement) == (dropouts == "replace")
    assert "did not record" not in found.statement


@pytest.mark.parametrize("begun", ["zero", "replace"])
def test_the_rule_cannot_change_within_a_run(tmp_path, begun):
    plan, grid = plan_for(blt(3), separation=1), federation(tmp_path / "c", GOAL)
    strategy(plan, tmp_path / "s", goal=GOAL, dropouts=begun).start(grid, model(), num_rounds=1)
    other = {"zero": "replace", "replace": "zero"}[begun]
    with pytest.raises(ap.InvalidArgument, match="dropouts"):
        strategy(plan, tmp_path / "s", goal=GOAL, dropouts=other).start(grid, model())
    assert report(tmp_path / "s", secret=SECRET).dropouts == begun


def begun_before_the_rule_was_recorded(folder, plan, grid, monkeypatch):
    """A directory as older versions wrote it: its first entry has no "dropouts"."""
    enter = Session._enter

    def old(session, entry):
        enter(session, {name: value for name, value in entry.items() if name != "dropouts"})

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_enter", old)
        strategy(plan, folder / "s", goal=GOAL, dropouts="replace").start(grid, model(), num_rounds=1)
    assert "dropouts" not in ledger_entries(folder / "s")[0]


@pytest.mark.parametrize("asked_for", ["zero", "replace"])
def test_a_run_begun_before_the_rule_was_recorded_goes_on_replacing(tmp_path, monkeypatch, caplog, asked_for):
    """A client that is silent in the second release is replaced, by the old rule, and the report says so."""
    plan, grid = plan_for(blt(2), separation=1), federation(tmp_path / "c", GOAL + 1)
    begun_before_the_rule_was_recorded(tmp_path, plan, grid, monkeypatch)
    grid.clients[X] = FATES["silent"](tmp_path / "c" / "c0")
    caplog.set_level("WARNING", logger="flwr")
    strategy(plan, tmp_path / "s", goal=GOAL, dropouts=asked_for).start(grid, model(), timeout=0.1)
    assert numbered(tmp_path)[1] == [1, 2, 3, 4]
    found = report(tmp_path / "s", secret=SECRET)
    assert found.dropouts == "replace"
    assert "always replaced clients that dropped out, and did not record" in found.statement
    assert ("always replaced" in caplog.text) == (asked_for == "zero")


def test_check_ins_of_an_attempt_that_fell_short_are_kept(tmp_path):
    """Three of four are there at first; the fourth comes later, and the three are not asked again."""
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", GOAL)
    slow, send = grid.clients.pop(X), grid.push_messages

    def push(messages):
        ids = send(messages)
        grid.clients[X] = slow
        return ids

    grid.push_messages = push
    strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    asked = [message.metadata.dst_node_id for message in grid.sent if is_check_in(message)]
    assert sorted(asked) == [X, X + 1, X + 2, X + 3]
    assert report(tmp_path / "s", secret=SECRET).counts["failed attempts"] == 1


def test_a_client_that_does_not_check_in_has_no_place(tmp_path):
    """No data are involved yet: another one is asked, and nothing is held against the first."""

    class Absent(Client):
        def answer(self, message):
            return [] if is_check_in(message) else super().answer(message)

    plan, grid = plan_for(blt(3), separation=1), federation(tmp_path / "c", GOAL + 1)
    grid.clients[X] = Absent(tmp_path / "c" / "c0", updates(1)[0])
    strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model())
    assert numbered(tmp_path) == [[1, 2, 3, 4]] * 3


def test_a_client_that_takes_longer_to_check_in_than_to_train_has_a_place(tmp_path):
    """Flower answers a message in the client's name, with an error, once its lifetime is over."""
    grid = federation(tmp_path / "c", 12)
    strategy(plan_for(blt(2), separation=2), tmp_path / "s", wait=60.0).start(grid, model(), timeout=5.0)
    lifetimes = [{m.metadata.ttl for m in sent} for sent in (filter(is_check_in, grid.sent), grid.tasks())]
    assert lifetimes == [{60.0}, {5.0}]


def test_rollback_is_noticed_at_check_in_before_anybody_trains(tmp_path):
    plan = plan_for(blt(4), separation=1)

    def serves(until):
        grid = federation(tmp_path / "c", GOAL)
        strategy(plan, tmp_path / "s", goal=GOAL).start(grid, model(), num_rounds=until)
        return grid

    serves(1)
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    serves(2)
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "copy").rename(tmp_path / "s")
    trained = []
    for client in (clients := federation(tmp_path / "c", GOAL).clients).values():
        client._train = lambda message, context: trained.append(message)
    with pytest.raises(ap.Corrupted, match="restored from an older copy"):
        strategy(plan, tmp_path / "s", goal=GOAL).start(FakeGrid(clients), model())
    assert trained == []
