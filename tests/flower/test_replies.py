"""What is wrong with a reply: rejected, counted and reported; the round goes on with the rest or fails by the rule.

Most of these are for dropouts="replace", where a reply that is no update frees its place; test_dropouts.py has the
default.
"""

import math
from functools import partial

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import antiphase as ap
from antiphase.flower import report
from tests.flower.federation import (
    GRID,
    SECRET,
    SHAPES,
    Client,
    FakeGrid,
    blt,
    clipped,
    failed,
    federation,
    ledger_entries,
    model,
    model_by_hand,
    names_by_hand,
    plan_for,
    record_by_hand,
    updates,
)
from tests.flower.federation import strategy as default_strategy

strategy = partial(default_strategy, dropouts="replace")
both = pytest.mark.parametrize("dropouts", ["zero", "replace"])
BAD = 100  # node of the client that misbehaves


def replaced(arrays):
    """A reply with other arrays, everything else as an honest client sends it."""

    def tamper(message: Message, reply: Message) -> list[Message]:
        content = RecordDict({"arrays": arrays(reply.content["arrays"]), "antiphase": reply.content["antiphase"]})
        return [Message(content, reply_to=message)]

    return tamper


def stated(**fields):
    """A reply that states other things about itself."""

    def tamper(message: Message, reply: Message) -> list[Message]:
        tag = ConfigRecord({**reply.content["antiphase"], **fields})
        return [Message(RecordDict({"arrays": reply.content["arrays"], "antiphase": tag}), reply_to=message)]

    return tamper


def each(change):
    return lambda record: ArrayRecord({name: Array(change(array.numpy())) for name, array in record.items()})


def one_entry(value):
    def change(array):
        made = array.copy()
        made.reshape(-1)[0] = value
        return made

    return each(change)


def raw(change):
    """Tampers with the bytes behind an array, past what Flower's constructors allow."""

    def made(record):
        for array in record.values():
            change(array)
        return record

    return replaced(made)


def header_says(array: Array) -> None:
    array.data = array.data.replace(b"(2,)", b"(9,)").replace(b"(3, 2)", b"(3, 9)")


def cut_short(array: Array) -> None:
    array.data = array.data[:-1]


def no_array_at_all(array: Array) -> None:
    array.data = b"\x93NUMPY" + b"\xff" * 60


def huge_header(array: Array) -> None:
    array.data = array.data.replace(b"(2,)", b"(2000000000000,)")


def header_is(text: bytes):
    """A header of the right length whose dictionary is something else."""

    def change(array: Array) -> None:
        array.data = array.data[:10] + text.ljust(117) + b"\n" + array.data[128:]

    return change


def unknown_kind(array: Array) -> None:
    array.stype = "pickle"


MALFORMED = {
    "shape": replaced(each(lambda a: np.zeros(7))),
    "dtype": replaced(each(lambda a: a.astype("float32"))),
    "complex": replaced(each(lambda a: a.astype("complex128"))),
    "integer": replaced(each(lambda a: a.astype("int64"))),
    "byte order": replaced(each(lambda a: a.astype(">f8"))),
    "memory order": replaced(each(np.asfortranarray)),
    "names": replaced(lambda record: ArrayRecord({f"x{n}": a for n, a in record.items()})),
    "order of names": replaced(lambda record: ArrayRecord(dict(reversed(record.items())))),
    "one array more": replaced(lambda record: ArrayRecord({**record, "z": Array(np.zeros(1))})),
    "no array": replaced(lambda record: ArrayRecord()),
    "header": raw(header_says),
    "cut short": raw(cut_short),
    "garbage": raw(no_array_at_all),
    "huge": raw(huge_header),
    "empty header": raw(header_is(b"")),
    "open bracket": raw(header_is(b"{'descr': (")),
    "open string": raw(header_is(b"'''")),
    "empty descr": raw(header_is(b"{'descr': (), 'fortran_order': False, 'shape': (2,)}")),
    "nested header": raw(header_is(b"(" * 110)),
    "null in header": raw(header_is(b"{\x00}")),
    "no bytes": raw(lambda array: setattr(array, "data", b"")),
    "pickle": raw(unknown_kind),
    "no tag": lambda message, reply: [Message(RecordDict({"arrays": reply.content["arrays"]}), reply_to=message)],
    "extra field": stated(extra=1),
    "type of a field": stated(release=0.0),
    "status": stated(status="accepted"),
    "no name": stated(client=""),
    "long name": stated(client="x" * 1000),
    "name in other characters": stated(client="\ud800"),
    "mark in other characters": stated(seen=[0], marks=["\ud800"]),
    "long mark": stated(seen=[0], marks=["0" * 1000]),
    "many marks": stated(seen=[0] * 65, marks=["0"] * 65),
    "marks without releases": stated(seen=[], marks=["0"]),
    "releases that are text": stated(seen=["0"], marks=["0"]),
    "marks that are numbers": stated(seen=[0], marks=[0]),
    "nothing": lambda message, reply: [Message(RecordDict(), reply_to=message)],
}


def with_bad_client(folder, tamper, count=12, update=None):
    grid = federation(folder, count)
    grid.clients[BAD] = Client(folder / "c0", update or updates(1)[0], tamper)
    return grid


def run(tmp_path, grid, steps=3, **options):
    """Asks everybody, so that the bad client is asked as well; gives the counts of the whole run."""
    plan = plan_for(blt(steps), separation=3)
    result = strategy(plan, tmp_path / "s", oversampling=4.0, **options).start(grid, model())
    return plan, result, report(tmp_path / "s", secret=SECRET).counts


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_reply_is_counted_and_never_enters(tmp_path, kind):
    """Only the bad client and three honest ones: the attempt must fail, and say why."""
    grid = with_bad_client(tmp_path / "c", MALFORMED[kind], count=4)
    with pytest.raises(ap.Refused, match=r"malformed 2"):
        run(tmp_path, grid, steps=1)
    assert record_by_hand(tmp_path / "s") == []


@both
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_updates_that_are_not_finite_count_as_zero_and_keep_their_place(tmp_path, value, dropouts):
    """Their data decides that they are not finite, so whether another client takes part must not depend on it."""
    given = updates(4)
    grid = with_bad_client(tmp_path / "c", replaced(one_entry(value)), count=4)
    plan, result, counts = run(tmp_path, grid, steps=1, dropouts=dropouts)
    assert (counts["not-finite"], counts["accepted"]) == (1, 3)
    assert len(record_by_hand(tmp_path / "s")[0]) == 4
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, [[0 * a for a in given[0]], *given[1:]])
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


def test_an_app_that_diverges_is_not_a_failure_but_a_zero(tmp_path):
    grid = with_bad_client(tmp_path / "c", None, count=4, update=[np.full(s, np.inf) for s in SHAPES.values()])
    assert run(tmp_path, grid, steps=1)[2]["not-finite"] == 1


@pytest.mark.parametrize("reply", ["raises", "error"])
def test_an_app_that_fails_keeps_its_place(tmp_path, reply):
    """One client more than needed is there: with an error reply it would be asked in place of the one that fails."""

    class Failing(Client):
        def _train(self, message, context):
            if reply == "raises":
                raise ValueError("an empty batch")
            return failed(message)

    grid = federation(tmp_path / "c", 4)
    grid.clients[BAD] = Failing(tmp_path / "c" / "c0", updates(1)[0])
    send = grid.push_messages

    def push(messages):  # the fifth client joins when the others are asked
        grid.clients[104] = Client(tmp_path / "c" / "c4", updates(5)[4])
        return send(messages)

    grid.push_messages = push
    plan = plan_for(blt(1), separation=3)
    result = strategy(plan, tmp_path / "s", goal=4).start(grid, model())
    counts = report(tmp_path / "s", secret=SECRET).counts
    assert {name: n for name, n in counts.items() if n} == {"not-finite": 1, "accepted": 3}
    assert {message.metadata.dst_node_id for message in grid.sent} == {100, 101, 102, 103}
    given = updates(4)
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, [[0 * a for a in given[0]], *given[1:]])
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


@both
@pytest.mark.parametrize(("zero_above", "kept"), [(None, 1.0), (100.0, 0.0)])
def test_updates_far_over_the_norm_are_clipped_or_zeroed(tmp_path, zero_above, kept, dropouts):
    given = updates(4)
    huge = [1e6 * array for array in given[0]]
    grid = with_bad_client(tmp_path / "c", replaced(lambda _: ArrayRecord(huge)), count=4)
    plan, result, counts = run(tmp_path, grid, steps=1, zero_above=zero_above, dropouts=dropouts)
    assert counts.get("too-large", 0) == (kept == 0.0)
    assert counts["clipped"] == (kept == 1.0)
    given[0] = [kept * array for array in clipped(huge)]
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, given)
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


@both
def test_a_malicious_client_moves_the_model_by_at_most_clip_over_goal(tmp_path, dropouts):
    """Against the same run with that client's update zero: whatever it sends, however often."""
    goal, clip, rng = 4, 0.3, np.random.default_rng(1)
    plan = plan_for(blt(1), separation=1, clip=clip)

    def released(name, tamper):
        folder = tmp_path / name
        grid = federation(folder / "c", 4)
        grid.clients[BAD] = Client(folder / "c" / "c0", [np.zeros(s) for s in SHAPES.values()], tamper)
        result = strategy(plan, folder / "s", goal=goal, dropouts=dropouts).start(grid, model())
        noise = model_by_hand(folder / "s", folder / "c", plan, goal, [[np.zeros(s) for s in SHAPES.values()]] * 4)
        return [a - n for a, n in zip(result.arrays.to_numpy_ndarrays(), noise, strict=True)]

    def distance(a, b):
        return np.sqrt(sum(((x - y) ** 2).sum() for x, y in zip(a, b, strict=True)))

    still = released("still", None)
    for i, scale in enumerate((1e-3, 1.0, 50.0, 1e150, 1e308)):
        send = ArrayRecord([scale * (0.5 + rng.random(shape) / 2) for shape in SHAPES.values()])

        def often(message, reply, send=send):
            return [*replaced(lambda _: send)(message, reply)] * 5

        moved = distance(released(f"moved{i}", often), still)
        assert moved <= clip / goal * (1 + 1e-9)
        if 1.0 <= scale < 1e300:
            assert moved >= clip / goal * (1 - 1e-6), "the test must reach the limit to show it"


@both
def test_two_replies_from_one_client_count_once(tmp_path, dropouts):
    grid = with_bad_client(tmp_path / "c", lambda message, reply: [reply, reply], count=4)
    _, _, counts = run(tmp_path, grid, steps=1, dropouts=dropouts)
    assert counts["accepted"] == 4
    assert len(set(record_by_hand(tmp_path / "s")[0])) == 4


@both
def test_two_nodes_with_one_pseudonym_count_once(tmp_path, dropouts):
    """A client started twice from one directory, with one timer."""
    grid = federation(tmp_path / "c", 4)
    grid.clients[50] = Client(tmp_path / "c" / "c0", updates(1)[0])
    plan = plan_for(blt(1), separation=3)
    strategy(plan, tmp_path / "s", goal=4, oversampling=2.0, dropouts=dropouts).start(grid, model())
    assert len(set(record_by_hand(tmp_path / "s")[0])) == 4


def test_a_reply_for_another_release_is_rejected(tmp_path):
    with pytest.raises(ap.Refused, match="other-release"):
        run(tmp_path, with_bad_client(tmp_path / "c", stated(release=7), count=4), steps=1)


@pytest.mark.parametrize("last", [1, 7, -2])
def test_a_client_that_claims_a_participation_it_did_not_have_is_rejected(tmp_path, last):
    with pytest.raises(ap.Refused, match="false-claim"):
        run(tmp_path, with_bad_client(tmp_path / "c", stated(last=last), count=4), steps=1)
    found = report(tmp_path / "s", secret=SECRET)
    assert found.counts == {"accepted": 3, "clipped": found.counts["clipped"], "false-claim": 2, "failed attempts": 2}
    assert "2 replies were rejected: they claimed participations or tasks that did not exist" in found.statement


@pytest.mark.parametrize(("seen", "mark"), [(0, ""), (7, "0" * 48), (-1, "x"), (-2, ""), (0, "0" * 16 + "f" * 32)])
def test_a_client_that_claims_to_have_been_asked_when_it_was_not_is_rejected(tmp_path, seen, mark):
    """It does not have the key, so it cannot make the server believe that its directory is an older copy."""
    with pytest.raises(ap.Refused, match="false-claim"):
        run(tmp_path, with_bad_client(tmp_path / "c", stated(seen=[seen], marks=[mark]), count=4), steps=1)
    assert report(tmp_path / "s", secret=SECRET).counts["false-claim"] == 2


def test_a_mark_is_worth_nothing_for_another_release(tmp_path):
    """A client shows the mark of release 0, which it has, as that of release 5."""

    def later(message, reply):
        return stated(seen=[5], marks=[message.content["antiphase"]["mark"]])(message, reply)

    with pytest.raises(ap.Refused, match="false-claim"):
        run(tmp_path, with_bad_client(tmp_path / "c", later, count=4), steps=1)


def test_a_node_that_changes_its_pseudonym_is_refused(tmp_path):
    """It declines under one name, so that it is asked again, and then wants to take part under another."""
    names = iter(["first", "second", "third"])

    def renamed(message, reply):
        name = next(names)
        return stated(client=name, status="declined" if name == "first" else "update")(message, reply)

    grid = with_bad_client(tmp_path / "c", renamed, count=4)
    with pytest.raises(ap.Refused, match="other-name"):
        run(tmp_path, grid, steps=1)
    assert report(tmp_path / "s", secret=SECRET).counts["other-name"] == 1


@both
def test_two_keys_on_one_disk_count_once_in_a_release(tmp_path, dropouts):
    """Where keys count, a device with two of them would otherwise enter one release twice."""
    grid = federation(tmp_path / "c", 4)
    grid.clients[50] = Client(tmp_path / "c" / "c0", updates(1)[0])
    grid.keys = {node: b"key %d" % node for node in grid.clients}
    options = {"oversampling": 2.0, "identity": "key", "dropouts": dropouts}
    result = strategy(plan_for(blt(1)), tmp_path / "s", goal=4, **options).start(grid, model())
    assert len(record_by_hand(tmp_path / "s")[0]) == 4
    noise = model_by_hand(tmp_path / "s", tmp_path / "none", plan_for(blt(1)), 4, [], present=[[]])
    total = [sum(clipped(update)[i] for update in updates(4)) / 4 for i in range(2)]
    for found, wanted, z in zip(result.arrays.to_numpy_ndarrays(), total, noise, strict=True):
        np.testing.assert_allclose(found - z, wanted, rtol=1e-7, atol=GRID)


def test_a_reply_that_nobody_asked_for_is_rejected(tmp_path):
    def forged(message, reply):
        made = Message(reply.content, reply_to=message)
        made.metadata.__dict__["_src_node_id"] = 101  # in the name of another node
        return [made]

    with pytest.raises(ap.Refused, match="unsolicited"):
        run(tmp_path, with_bad_client(tmp_path / "c", forged, count=4), steps=1)


def test_a_client_that_ignores_its_timer_is_refused_by_the_server(tmp_path):
    """It comes with a new node id each time, as a restart gives it, and lies about its last release."""
    plan = plan_for(blt(4), separation=3)

    def eager(message, reply):
        release = message.content["antiphase"]["release"]
        fields = {"client": "eager", "release": release, "status": "update", "last": -1, "seen": [], "marks": []}
        arrays = dict(zip(message.content["arrays"], map(Array, updates(1)[0]), strict=True))
        content = RecordDict({"arrays": ArrayRecord(arrays), "antiphase": ConfigRecord(fields)})
        return [Message(content, reply_to=message)]

    def released(release, with_eager):
        others = federation(tmp_path / f"c{release}", 2 if with_eager else 3, first=1000 * release).clients
        if with_eager:
            others |= {1000 * release + 50: Client(tmp_path / "eager", updates(1)[0], eager)}
        strategy(plan, tmp_path / "s", goal=3).start(FakeGrid(others), model(), num_rounds=release + 1)

    released(0, with_eager=True)
    for release in (1, 2):
        with pytest.raises(ap.Refused, match="early"):
            released(release, with_eager=True)
        released(release, with_eager=False)
    released(3, with_eager=True)
    assert report(tmp_path / "s", secret=SECRET).achieved == ap.MinSeparation(3, 2)


@both
def test_a_client_with_all_its_participations_is_refused(tmp_path, dropouts):
    plan = plan_for(blt(6), separation=1, count=2)
    with pytest.raises(ap.Refused):
        strategy(plan, tmp_path / "s", goal=4, dropouts=dropouts).start(federation(tmp_path / "c", 4), model())
    assert len(record_by_hand(tmp_path / "s")) == 2
    assert report(tmp_path / "s", secret=SECRET).achieved == ap.MinSeparation(1, 2)


@pytest.mark.parametrize("tamper", [lambda message, reply: [failed(message)], MALFORMED["shape"]], ids=["fails", "bad"])
def test_clients_that_do_not_count_are_replaced(tmp_path, tamper):
    grid = with_bad_client(tmp_path / "c", tamper, count=5)
    plan, result, counts = run(tmp_path, grid, steps=1)
    assert counts["accepted"] == 4
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(5))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


@both
def test_with_too_few_clients_the_release_waits_or_fails_and_spends_nothing(tmp_path, dropouts):
    plan = plan_for(blt(3), separation=3)
    with pytest.raises(ap.Refused, match="in each of 2 attempts"):
        strategy(plan, tmp_path / "s", dropouts=dropouts).start(federation(tmp_path / "c", 3), model())
    assert record_by_hand(tmp_path / "s") == []
    result = strategy(plan, tmp_path / "s", dropouts=dropouts).start(federation(tmp_path / "c", 16), model())
    counts = [entry["counts"] for entry in ledger_entries(tmp_path / "s") if entry["kind"] == "release"]
    assert sum(c.get("failed attempts", 0) for c in counts) == 0  # they belong to the process that ended
    assert report(tmp_path / "s", secret=SECRET).counts["failed attempts"] == 2
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(16))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


def test_a_client_asked_again_for_a_release_that_failed_takes_part(tmp_path):
    """Its timer holds the attempt that failed, which was for the same release: together they are one participation."""
    plan, silent = plan_for(blt(1), separation=3), federation(tmp_path / "c", 4)
    silent.clients[103] = None
    with pytest.raises(ap.Refused):
        strategy(plan, tmp_path / "s").start(silent, model(), timeout=0.3)
    _, _, counts = run(tmp_path, federation(tmp_path / "c", 4), steps=1)
    assert counts["accepted"] == 3 + 4  # replies; those of the attempt that failed entered nothing
    assert list(map(len, record_by_hand(tmp_path / "s"))) == [4]


def test_what_came_in_a_short_attempt_is_kept_for_the_next(tmp_path):
    """Three of four answer at first; the fourth one answers when it is asked again, and the three are not."""
    plan, grid = plan_for(blt(1), separation=3), federation(tmp_path / "c", 4)
    slow, grid.clients[103] = grid.clients[103], None
    send = grid.push_messages

    def push(messages):
        ids = send(messages)
        grid.clients[103] = slow
        return ids

    grid.push_messages = push
    result = strategy(plan, tmp_path / "s").start(grid, model(), timeout=0.3)
    assert sorted(message.metadata.dst_node_id for message in grid.sent) == [100, 101, 102, 103, 103]
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(4))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


def test_a_silent_client_does_not_stop_the_training(tmp_path):
    """One of five never replies, four are wanted, and two attempts allowed: the second must not ask it again."""
    grid = federation(tmp_path / "c", 5)
    grid.clients[BAD] = None
    strategy(plan_for(blt(10), separation=1), tmp_path / "s", attempts=2).start(grid, model(), timeout=0.01)
    assert len(record_by_hand(tmp_path / "s")) == 10


@both
def test_short_rounds_can_be_released(tmp_path, dropouts):
    plan, grid = plan_for(blt(3), separation=3), federation(tmp_path / "c", 3)
    result = strategy(plan, tmp_path / "s", when_short="release", dropouts=dropouts).start(grid, model())
    assert list(map(len, record_by_hand(tmp_path / "s"))) == [3, 0, 0]
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(3))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


def test_it_goes_on_at_the_goal_and_never_holds_many_updates(tmp_path):
    """Twice as many are asked as are wanted, and one of them never replies; what is not needed is read and dropped."""
    grid, pulled = federation(tmp_path / "c", 24), []
    original = grid.pull_messages

    def pull(ids):
        found = original(ids)
        pulled.append(len(found))
        return found

    grid.pull_messages, grid.clients[BAD] = pull, None
    strategy(plan_for(blt(1)), tmp_path / "s", goal=12, oversampling=2.0, attempts=1).start(grid, model())
    assert max(pulled) <= 8
    counts = report(tmp_path / "s", secret=SECRET).counts
    assert (counts["accepted"], counts["unused"]) == (12, 11)


def pulls_raise(grid, error):
    """Like Flower with a reply that it cannot read: the pull raises, and the replies in it are not given again."""
    original = grid.pull_messages

    def pull(ids):
        found = original(ids)
        if any(reply.metadata.src_node_id == BAD for reply in found):
            raise error
        return found

    grid.pull_messages = pull
    return grid


@pytest.mark.parametrize("error", [TypeError("stype"), ValueError("{"), RecursionError(), MemoryError()], ids=repr)
def test_a_reply_that_flower_cannot_read_does_not_end_the_server(tmp_path, error):
    """All five are asked in every release; the first attempt loses all replies, later ones that of the bad client."""
    grid, plan = pulls_raise(federation(tmp_path / "c", 5), error), plan_for(blt(3), separation=1)
    result = strategy(plan, tmp_path / "s", oversampling=1.25).start(grid, model())
    names = names_by_hand(tmp_path / "s", tmp_path / "c")
    assert [{names[name] for name in present} for present in record_by_hand(tmp_path / "s")] == [{1, 2, 3, 4}] * 3
    counts = report(tmp_path / "s", secret=SECRET).counts
    assert (counts["accepted"], counts["failed attempts"]) == (12, 1)
    assert counts["failed"] == 5 + 3  # the whole first pull, then the bad reply alone in each release
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(5))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID)


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), ConnectionResetError()], ids=repr)
def test_a_superlink_that_is_down_ends_the_server(tmp_path, error):
    grid = pulls_raise(federation(tmp_path / "c", 4), error)
    with pytest.raises(type(error)):
        strategy(plan_for(blt(3)), tmp_path / "s").start(grid, model())


@both
def test_identity_by_authentication_key(tmp_path, dropouts):
    """Node ids and pseudonyms change at every start; the keys do not, and the separation holds."""
    plan = plan_for(blt(6), separation=3)
    for start in range(6):
        grid = federation(tmp_path / f"c{start}", 12, first=100 * start)
        grid.keys = {100 * start + i: b"key %d" % i for i in range(12)}
        made = strategy(plan, tmp_path / "s", identity="key", dropouts=dropouts)
        made.start(grid, model(), num_rounds=start + 1)
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.clients, found.achieved) == (12, ap.MinSeparation(3, 2))
    assert "only if the SuperLink authenticated its SuperNodes" in found.statement
    assert "pseudonym" not in found.statement


def test_a_node_without_a_key_does_not_stop_those_with_keys(tmp_path):
    grid = federation(tmp_path / "c", 5)
    grid.keys = {node: b"key %d" % node for node in grid.clients if node != BAD}
    strategy(plan_for(blt(3), separation=1), tmp_path / "s", identity="key").start(grid, model())
    assert {message.metadata.dst_node_id for message in grid.sent} == {101, 102, 103, 104}


def test_nodes_with_keys_may_come_after_one_without(tmp_path, monkeypatch):
    monkeypatch.setattr("antiphase.flower._selection.POLL_SECONDS", 0.01)
    late, grid = federation(tmp_path / "c", 5), FakeGrid({})
    grid.clients[BAD] = late.clients.pop(BAD)
    looks = iter(range(3))

    def nodes(grid):
        if next(looks, None) is None:
            grid.clients.update(late.clients)
            grid.keys = {node: b"key %d" % node for node in late.clients}
        return real(grid)

    real = FakeGrid.get_nodes
    monkeypatch.setattr(FakeGrid, "get_nodes", nodes)
    plan = plan_for(blt(3), separation=1)
    strategy(plan, tmp_path / "s", identity="key", wait=30.0).start(grid, model(), num_rounds=1)
    assert len(record_by_hand(tmp_path / "s")[0]) == 4


def test_nodes_without_keys_are_refused_where_keys_count(tmp_path):
    with pytest.raises(ap.Refused, match="None of the 12 nodes has an authentication key"):
        strategy(plan_for(blt()), tmp_path / "s", identity="key").start(federation(tmp_path / "c", 12), model())


@both
def test_a_timer_by_node_id_would_be_defeated_by_a_restart(tmp_path, dropouts):
    """Fresh node ids, the same disks: the pseudonyms keep the separation."""
    plan = plan_for(blt(6), separation=3)
    for start in range(6):
        grid = federation(tmp_path / "c", 12, first=100 * start)
        strategy(plan, tmp_path / "s", dropouts=dropouts).start(grid, model(), num_rounds=start + 1)
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.clients, found.achieved) == (12, ap.MinSeparation(3, 2))


@pytest.mark.parametrize(
    "options",
    [
        {"goal": 0},
        {"goal": 2.5},
        {"identity": "node-id"},
        {"when_short": "skip"},
        {"dropouts": "ignore"},
        {"oversampling": 0.5},
        {"attempts": 0},
        {"separation": 0},
        {"zero_above": 0.5},
        {"simulated_goal": 0},
        {"wait": -1.0},
    ],
    ids=str,
)
def test_bad_settings_are_refused(tmp_path, options):
    with pytest.raises(ap.InvalidArgument, match=next(iter(options))):
        strategy(plan_for(blt()), tmp_path / "s", **options)


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf, None, "60"])
def test_a_timeout_that_is_none_is_refused_before_anything_is_stored(tmp_path, timeout):
    """With NaN, the server waited for a silent client forever."""
    with pytest.raises(ap.InvalidArgument, match="timeout"):
        strategy(plan_for(blt()), tmp_path / "s").start(federation(tmp_path / "c", 4), model(), timeout=timeout)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("clip", [1e-101, 1e-200, 5e-324])
def test_clipping_norms_whose_squares_vanish_are_refused(tmp_path, clip):
    """An update of norm 1e-170 has norm zero in float64: it would pass a clipping norm of 1e-200 as it is."""
    with pytest.raises(ap.InvalidArgument, match="clip_norm"):
        strategy(plan_for(blt(), clip=clip), tmp_path / "s")


def test_the_smallest_clipping_norm_clips(tmp_path):
    plan = plan_for(blt(1), clip=1e-100)
    result = strategy(plan, tmp_path / "s").start(federation(tmp_path / "c", 4), model())
    expected = model_by_hand(tmp_path / "s", tmp_path / "c", plan, 4, updates(4))
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], expected[0], rtol=1e-7, atol=GRID * 1e-100)


def test_plans_for_other_participations_are_refused(tmp_path):
    mechanism = ap.Mechanism(blt(), ap.FixedEpochs(3, 4), 1.0)
    problem = ap.Problem(steps=12, budget=ap.Budget(80.0, 1e-6))
    plan = ap.Plan(problem, mechanism, ap.epsilon(mechanism, 1e-6), error=1.0)
    with pytest.raises(ap.InvalidArgument, match="must have MinSeparation participation"):
        strategy(plan, tmp_path / "s")


def test_add_or_remove_is_not_proved(tmp_path):
    """With a goal to fill, one client less makes room for another one."""
    plan = plan_for(blt())
    object.__setattr__(plan.mechanism, "adjacency", "add-or-remove")
    with pytest.raises(ap.NotProved, match="changes who else takes part"):
        strategy(plan, tmp_path / "s")


@pytest.mark.parametrize(
    "array", [np.array([1, 2]), np.array([np.nan]), np.array([1.0], dtype="float16")], ids=["integer", "nan", "half"]
)
def test_models_that_cannot_be_trained_are_refused(tmp_path, array):
    with pytest.raises(ap.InvalidArgument):
        strategy(plan_for(blt()), tmp_path / "s").start(FakeGrid({}), ArrayRecord([array]))
