"""The client's side: clipping, the timer on disk, and what leaves the client."""

import json
import os
import threading

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import antiphase as ap
from antiphase.flower import _timer, participation_mod
from antiphase.flower._wire import Task
from tests.flower.federation import failed

START = {"w": np.array([[1.0, 2.0]], "float32"), "b": np.array(3.0, "float32")}


def ask(
    mod,
    release,
    *,
    run_id="run",
    separation=3,
    clip=1.0,
    raw=False,
    after=None,
    kind="train",
    node=1,
    app=None,
    mark="",
    phase="train",
):
    """The reply of a client whose app replies with `after`; each release has a mark of its own."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    task = {"run_id": run_id, "release": release, "separation": separation, "clip_norm": clip, "raw_metrics": raw}
    task |= {"mark": mark or f"mark {release}", "phase": phase}
    content = RecordDict({"config": ConfigRecord(), "antiphase": ConfigRecord(task)})
    if phase != "check-in":
        content["arrays"] = record(START)
    message = Message(content, node, kind)

    def trains(message, context):
        new = record(after or {"w": START["w"] + 3.0, "b": START["b"] + 4.0})
        return Message(RecordDict({"x": new, "m": MetricRecord({"loss": 1.0})}), reply_to=message)

    return mod(message, Context(1, node, {"partition-id": 5}, RecordDict(), {}), app or trains)


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def sent(reply):
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


def status(reply):
    return reply.content["antiphase"]["status"]


def shown(reply):
    tag = reply.content["antiphase"]
    return dict(zip(tag["seen"], tag["marks"], strict=True))


def test_it_sends_the_clipped_difference_and_nothing_else(tmp_path):
    reply = ask(participation_mod(tmp_path), 0)
    length = np.sqrt(9 + 9 + 16)
    np.testing.assert_allclose(sent(reply)["w"], np.array([[3.0, 3.0]]) / length, rtol=1e-6)
    np.testing.assert_allclose(sent(reply)["b"], 4.0 / length, rtol=1e-6)
    assert sent(reply)["b"].shape == ()
    assert set(reply.content) == {"arrays", "antiphase"}


def test_a_small_update_is_sent_as_it_is(tmp_path):
    small = {"w": START["w"] + 0.25, "b": START["b"]}
    np.testing.assert_array_equal(sent(ask(participation_mod(tmp_path), 0, after=small))["w"], [[0.25, 0.25]])


def test_metrics_leave_only_where_the_server_releases_them(tmp_path):
    assert dict(ask(participation_mod(tmp_path), 0, raw=True).content["metrics"]) == {"loss": 1.0}


def test_timer_counts_releases_and_survives_a_restart(tmp_path):
    """Separation 3: after release 5 the next one is 8. Every question is asked of a mod that was just made."""
    answers = {release: status(ask(participation_mod(tmp_path), release)) for release in (5, 6, 7, 8, 9, 10, 11)}
    assert answers == {
        5: "update",
        6: "declined",
        7: "declined",
        8: "update",
        9: "declined",
        10: "declined",
        11: "update",
    }


def test_a_failed_release_may_be_answered_again_but_no_earlier_one(tmp_path):
    mod = participation_mod(tmp_path)
    assert [status(ask(mod, release)) for release in (5, 5, 4, 2, 5)] == [
        "update",
        "update",
        "declined",
        "declined",
        "update",
    ]


def test_each_run_has_its_own_timer_and_one_pseudonym(tmp_path):
    mod = participation_mod(tmp_path)
    replies = [ask(mod, 0), ask(mod, 0, run_id="other"), ask(mod, 1)]
    assert [status(reply) for reply in replies] == ["update", "update", "declined"]
    names = {reply.content["antiphase"]["client"] for reply in replies}
    assert len(names) == 1
    assert len(names.pop()) == 32


def test_the_client_may_insist_on_a_larger_separation(tmp_path):
    mod = participation_mod(tmp_path, separation=5)
    assert [status(ask(mod, release, separation=1)) for release in (0, 1, 4, 5)] == [
        "update",
        "declined",
        "declined",
        "update",
    ]


def test_the_timer_is_on_disk_before_the_app_is_called(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError("no space")

    def reads(message, context):
        found.append(json.loads((tmp_path / "client.json").read_text())["last"])
        return failed(message)

    mod, found = participation_mod(tmp_path), []
    ask(mod, 0, app=reads)
    assert found == [{"run": 0}]
    monkeypatch.setattr(_timer, "write_atomically", full)
    with pytest.raises(OSError, match="no space"):
        ask(mod, 3, app=reads)
    assert len(found) == 1


def test_a_client_that_is_killed_while_it_trains_has_used_its_participation(tmp_path):
    """Its process ends at once, as by the out-of-memory killer: nothing after the app is reached."""
    pid = os.fork()
    if pid == 0:
        ask(participation_mod(tmp_path), 4, app=lambda message, context: os._exit(9))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    mod = participation_mod(tmp_path)
    assert [status(ask(mod, release, phase="check-in")) for release in (4, 5, 6, 7)] == [
        "ready",  # the same release again: at most one update enters it
        "declined",
        "declined",
        "ready",
    ]


def test_a_check_in_says_whether_the_timer_allows_it_and_touches_no_data(tmp_path):
    def touches(message, context):
        raise AssertionError("a check-in must not call the app")

    mod = participation_mod(tmp_path)
    for release in (0, 1):  # checking in is no participation
        reply = ask(mod, release, phase="check-in", app=touches)
        assert (status(reply), set(reply.content)) == ("ready", {"antiphase"})
    assert status(ask(mod, 1)) == "update"
    assert [status(ask(mod, release, phase="check-in", app=touches)) for release in (2, 3, 4)] == [
        "declined",
        "declined",
        "ready",
    ]
    assert shown(ask(mod, 5, phase="check-in")) == {release: f"mark {release}" for release in range(5)}


def test_a_declining_client_does_not_train(tmp_path):
    mod = participation_mod(tmp_path)
    ask(mod, 0)
    reply = ask(mod, 1, after={"w": np.zeros(99)})  # the app's reply would be an error
    assert (status(reply), set(reply.content)) == ("declined", {"antiphase"})


def test_a_damaged_timer_is_refused(tmp_path):
    mod = participation_mod(tmp_path)
    ask(mod, 0)
    (tmp_path / "client.json").write_text('{"client": "x"')
    with pytest.raises(ap.Corrupted, match="client could take part too often"):
        ask(mod, 1)


def test_a_client_asked_for_a_lost_release_again_declines_and_shows_why(tmp_path):
    """The server asks for release 5, then, as an older copy, for 4, or for 5 with a different token; no timer runs."""
    mod = participation_mod(tmp_path)
    ask(mod, 5, separation=9)
    ask(mod, 6, separation=9)  # declined, and yet remembered
    for release, mark in ((5, "mark 5"), (4, "mark 4"), (6, "another")):
        reply = ask(mod, release, mark=mark, separation=1)
        assert status(reply) == "declined"
        assert shown(reply) == {5: "mark 5", 6: "mark 6"}
    assert status(ask(mod, 6, separation=1)) == "update"


def test_the_client_shows_the_last_marks_it_was_sent(tmp_path):
    """Not only the latest: its reply to that one may be lost. Also where another run came between."""
    assert shown(ask(participation_mod(tmp_path), 0)) == {}
    for release in range(1, 80):
        ask(participation_mod(tmp_path), release)
        if release == 40:
            ask(participation_mod(tmp_path), 7, run_id="other")
    assert shown(ask(participation_mod(tmp_path), 99)) == {release: f"mark {release}" for release in range(16, 80)}
    assert shown(ask(participation_mod(tmp_path), 9, run_id="other")) == {7: "mark 7"}


def test_two_processes_of_one_client_cannot_both_take_part(tmp_path):
    """While the first trains for release 5, the second is asked for 6, too early, and for 8; then the first may not."""
    first, second, inner = participation_mod(tmp_path), participation_mod(tmp_path), []

    def slow(message, context):
        inner.extend([status(ask(second, 6)), status(ask(second, 8))])
        return replying(message, record({"w": START["w"] + 3.0, "b": START["b"]}))

    assert status(ask(first, 5, app=slow)) == "declined"
    assert inner == ["declined", "update"]
    assert json.loads((tmp_path / "client.json").read_text())["last"] == {"run": 8}


def test_many_threads_with_one_new_directory_have_one_pseudonym(tmp_path):
    """Each has its own descriptor, as processes have; without the lock most of them make a name of their own."""
    start, names = threading.Barrier(8), []

    def reads():
        start.wait()
        with _timer.locked_timer(tmp_path / "new") as timer:
            timer.start(_task(len(names)))
            names.append(timer.client)

    threads = [threading.Thread(target=reads) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 8
    assert len(set(names)) == 1
    assert json.loads((tmp_path / "new" / "client.json").read_text())["last"] == {f"run {i}": 0 for i in range(8)}


def _task(run):
    return Task(f"run {run}", 0, 1, 1.0, False, "")


def test_directories_of_virtual_clients(tmp_path):
    ask(participation_mod(lambda context: tmp_path / str(context.node_config["partition-id"])), 0)
    assert json.loads((tmp_path / "5" / "client.json").read_text())["last"] == {"run": 0}


def raises(message):
    raise RuntimeError("a label out of range")


def leaves(message):
    raise SystemExit("no data here")


class PanicException(BaseException):
    """As extensions in Rust raise it, for instance over a text that they cannot read."""


def panics(message):
    raise PanicException


FAILING = {
    "raises": raises,
    "panics": panics,
    "exits": leaves,
    "error reply": failed,
    "no message": lambda message: None,
    "no arrays": lambda message: Message(RecordDict({"m": MetricRecord({"loss": 1.0})}), reply_to=message),
    "two records": lambda message: replying(message, record(START), record(START)),
    "names": lambda message: replying(message, record({"w": START["w"]})),
    "shape": lambda message: replying(message, record({"w": np.zeros((2, 1)), "b": START["b"]})),
    "text": lambda message: replying(message, record({"w": np.array([["a", "b"]]), "b": START["b"]})),
    "no header": lambda message: replying(message, ArrayRecord({n: broken() for n in START})),
}


def replying(message, *records):
    content = {f"x{i}": item for i, item in enumerate(records)}
    return Message(RecordDict({**content, "m": MetricRecord({"loss": 1.0})}), reply_to=message)


def broken():
    array = Array(np.zeros(2))
    array.data = b"no array"
    return array


@pytest.mark.parametrize("kind", FAILING)
def test_an_app_that_fails_is_an_update_of_nan_that_starts_the_timer(tmp_path, kind):
    """From outside it must look like any update: an error would let the data choose who else takes part."""
    mod = participation_mod(tmp_path)
    reply = ask(mod, 0, raw=True, app=lambda message, context: FAILING[kind](message))
    assert (status(reply), set(reply.content)) == ("update", {"arrays", "antiphase"})
    assert {n: (a.shape, a.dtype) for n, a in sent(reply).items()} == {n: (a.shape, a.dtype) for n, a in START.items()}
    assert all(np.isnan(array).all() for array in sent(reply).values())
    assert json.loads((tmp_path / "client.json").read_text())["last"] == {"run": 0}
    assert status(ask(mod, 1)) == "declined"


@pytest.mark.parametrize("place", ["here", lambda context: "here"], ids=["path", "function"])
def test_an_app_that_changes_its_directory_does_not_lose_the_timer(tmp_path, monkeypatch, place):
    def changes(message, context):
        monkeypatch.chdir(tmp_path / "elsewhere")
        raise RuntimeError

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    assert status(ask(participation_mod(place), 0, app=changes)) == "update"
    assert json.loads((tmp_path / "here" / "client.json").read_text())["last"] == {"run": 0}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_app_that_is_interrupted_sends_nothing(tmp_path):
    def interrupted(message, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(participation_mod(tmp_path), 0, app=interrupted)
    assert status(ask(participation_mod(tmp_path), 1)) == "declined"


def test_messages_of_other_strategies_are_refused(tmp_path):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    message = Message(RecordDict({"arrays": record(START), "config": ConfigRecord()}), 1, "train")
    reply = participation_mod(tmp_path)(message, Context(1, 1, {}, RecordDict(), {}), None)
    assert "not a task of antiphase.flower.DPFTRL" in reply.error.reason


def test_other_messages_pass(tmp_path):
    assert "m" in ask(participation_mod(tmp_path), 0, kind="evaluate").content


@pytest.mark.parametrize(
    "task", [{"clip": -1.0}, {"clip": np.nan}, {"separation": 0}, {"release": -1}, {"phase": "x"}], ids=str
)
def test_a_task_that_cannot_be_is_refused(tmp_path, task):
    assert ask(participation_mod(tmp_path), **{"release": 0, **task}).has_error()
    assert not (tmp_path / "client.json").exists()


def test_a_bad_separation_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="separation"):
        participation_mod(tmp_path, separation=0)
