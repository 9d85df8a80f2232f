"""Run directories that are incomplete, moved, damaged or on a failing disk are refused and not changed."""

import errno
import itertools
import os
import shutil
import signal
import socket
import stat

import numpy as np
import pytest

import antiphase as ap
from antiphase._report import read
from tests.report.cases import command
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, take, train

PLAN = plan_for(STRATEGIES["toeplitz"])
HEADER, NOISE = "run.json", "private/noise-000000000005.state"
LEDGERS = ("public/ledger.jsonl", "private/ledger.jsonl")
NEEDED = ("plan.json", "private/secret", "private/heads", *LEDGERS)
FILES = (HEADER, *NEEDED, NOISE)


def opened(directory, plan=PLAN, **options):
    return ap.Run.open(plan, directory, **{"leaves": LEAVES, "examples": 40, **options})


def content(directory):
    """Return all paths in a directory, with the bytes of the files."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in directory.rglob("*")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    with opened(directory) as run:
        train(run, fresh_model(), 5)
        run.save()
        run.publish("five steps")
    assert {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == set(FILES)
    return directory


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture(autouse=True)
def no_waiting():
    """End a test that waits for a named pipe with an error."""

    def stop(*_):
        raise AssertionError("still waiting")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def noise_of(run, step):
    secret = ap.Secret.load(run.directory / "private" / "secret")
    return ap.NoiseStream(run.plan, LEAVES, secret, run.run_id, start_step=step).next()


def same(one, other):
    return all(map(np.array_equal, one, other))


# partial copies


def copied(whole, directory, names, *, bare):
    directory.mkdir()
    if not bare:
        (directory / "public").mkdir()
        (directory / "private").mkdir(0o700)
    for name in names:
        (directory / name).parent.mkdir(0o700, exist_ok=True)
        shutil.copy(whole / name, directory / name)
    return directory


@pytest.mark.parametrize("bare", [True, False])
def test_every_partial_copy_is_resumed_refused_or_has_nothing_of_a_run(whole, tmp_path, bare):
    ends = {"resumed": 0, "refused": 0, "new": 0}
    run_id = read(whole).run.run_id
    for number, chosen in enumerate(itertools.product([False, True], repeat=len(FILES))):
        names = [name for name, kept in zip(FILES, chosen, strict=True) if kept]
        directory = copied(whole, tmp_path / str(number), names, bare=bare)
        before = content(directory)
        missing = [name for name in NEEDED if name not in names]
        if HEADER in names and missing:
            with pytest.raises(ap.Corrupted) as caught:
                opened(directory)
            assert any(name in str(caught.value) for name in missing), (names, caught.value)
            ends["refused"] += 1
        elif HEADER not in names and {*LEDGERS, "private/heads", NOISE} & {*names}:
            with pytest.raises(ap.Corrupted, match=r"run\.json is missing"):
                opened(directory)
            ends["refused"] += 1
        else:
            with opened(directory) as run:
                assert (run.committed, run.run_id == run_id) == ((5, True) if HEADER in names else (0, False))
                assert same(run.gradient_noise(run.committed), noise_of(run, run.committed))
            ends["resumed" if HEADER in names else "new"] += 1
            continue
        assert content(directory) == before, names
    assert ends == {"resumed": 2, "refused": 122, "new": 4}  # with and without noise state; without secret, plan, both


@pytest.mark.parametrize("name", NEEDED)
def test_readers_name_the_missing_file(copy, name):
    (copy / name).unlink()
    before = content(copy)
    for done in (command("verify", copy), command("report", copy, "--format", "json")):
        assert done.exit_code == 1
        assert name in done.stderr
    assert content(copy) == before


def test_a_copy_is_refused_before_its_torn_ledger_is_cut(copy):
    with (copy / LEDGERS[0]).open("ab") as file:
        file.write(b'{"kind":"comm')
    header = (copy / HEADER).read_bytes()
    (copy / HEADER).write_bytes(header.replace(b'"examples": 40', b'"examples": 41'))
    before = content(copy)
    with pytest.raises(ap.Corrupted, match=r"run\.json"):
        opened(copy, examples=41)
    assert content(copy) == before


def test_a_killed_creation_begins_anew_and_keeps_what_is_not_its_own(whole, tmp_path):
    opened(tmp_path / "run").close()
    (tmp_path / "run" / HEADER).unlink()
    (tmp_path / "run" / "public" / "notes").write_text("mine")
    with opened(tmp_path / "run") as run:
        train(run, fresh_model(), 2)
    assert (tmp_path / "run" / "public" / "notes").read_text() == "mine"


# a directory that is moved while it is open


@pytest.mark.parametrize("replaced", ["by nothing", "by another run", "by a file"])
@pytest.mark.parametrize("act", ["publish", "save", "commit", "noise", "close"])
def test_a_moved_directory_stops_the_run(copy, whole, tmp_path, replaced, act):
    run, other = opened(copy), tmp_path / "other"
    with opened(other) as second:
        train(second, fresh_model(), 2)
        second.publish("another model")
    model = take(run, 5, fresh_model())
    os.rename(copy, tmp_path / "moved")
    if replaced == "by another run":
        os.rename(other, copy)
    elif replaced == "by a file":
        copy.write_text("a file")
    before = {**content(copy), **content(tmp_path / "moved")}
    acts = {
        "publish": lambda: run.publish("a model"),
        "save": run.save,
        "commit": lambda: run.commit(5, ap.digest(model)),
        "noise": lambda: run.gradient_noise(5),
        "close": run.close,
    }
    with pytest.raises(ap.Refused, match="moved, removed or replaced"):
        acts[act]()
    assert {**content(copy), **content(tmp_path / "moved")} == before
    if act != "close":
        with pytest.raises(ap.Refused, match="moved, removed or replaced"):
            run.close()
    with opened(tmp_path / "moved") as again:
        assert (again.committed, again.published) == (5, 5)
    if replaced == "by another run":
        with opened(copy) as second:
            assert (second.committed, second.published) == (2, 2)


def test_a_link_to_the_directory_that_is_turned_stops_the_run(copy, tmp_path):
    with opened(tmp_path / "other") as other:
        train(other, fresh_model(), 2)
    (tmp_path / "latest").symlink_to(copy)
    run = opened(tmp_path / "latest")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to(tmp_path / "other")
    before = content(tmp_path / "other")
    with pytest.raises(ap.Refused, match="replaced"):
        run.publish("a model")
    assert content(tmp_path / "other") == before


def test_a_replaced_ledger_stops_the_run(copy):
    run = opened(copy)
    shutil.copy(copy / LEDGERS[0], copy / "saved")
    os.replace(copy / "saved", copy / LEDGERS[0])
    with pytest.raises(ap.Refused, match="replaced"):
        run.publish("a model")


# a disk that fails


def failing(monkeypatch, call, number):
    real = getattr(os, call)

    def fail(*given, **named):
        if next(count) == number:
            raise OSError(errno.EIO if call == "fsync" else errno.ENOSPC, "the disk fails")
        return real(*given, **named)

    count = itertools.count()
    monkeypatch.setattr(os, call, fail)


@pytest.mark.parametrize(
    ("call", "number"), [*(("fsync", n) for n in range(4)), ("write", 0), ("replace", 0), ("open", 0)]
)
def test_after_a_failed_write_the_run_must_be_opened_again(copy, monkeypatch, call, number):
    """The operating system reports a failed write once: a later success says nothing about it."""
    run = opened(copy)
    model = take(run, 5, fresh_model())
    run.commit(5, ap.digest(model))
    with monkeypatch.context() as patched:
        failing(patched, call, number)
        with pytest.raises(OSError, match="the disk fails"):
            run.publish("a model")
    heads = (copy / "private" / "heads").read_bytes()
    for act in (
        lambda: run.publish("a model"),
        lambda: run.commit(5, ap.digest(model)),
        lambda: run.gradient_noise(6),
        lambda: run.batch(6),
        run.save,
        run.report,
    ):
        with pytest.raises(ap.Refused, match="open it again"):
            act()
    run.close()
    assert (copy / "private" / "heads").read_bytes() == heads  # nothing more is claimed to be on disk
    with opened(copy) as again:
        assert again.committed == 6
        again.publish("a model")
    assert read(copy).run.publications[-1] == ap.Publication("a model", 6)


# noise states are a shortcut


def damages(path):
    data = path.read_bytes()
    path.unlink()
    yield "empty", lambda: path.write_bytes(b"")
    yield "cut", lambda: path.write_bytes(data[:-1])
    yield "flipped", lambda: path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
    yield "a directory", path.mkdir
    yield "a link", lambda: path.symlink_to(path.parent / "elsewhere")
    yield "a pipe", lambda: os.mkfifo(path)


@pytest.mark.parametrize("number", range(6))
def test_without_a_usable_noise_state_the_noise_is_replayed(copy, number):
    name, damage = list(damages(copy / NOISE))[number]
    damage()
    with opened(copy) as run:
        run.batch(5)
        if name in ("empty", "cut", "flipped"):
            with pytest.warns(RuntimeWarning, match=r"noise-000000000005\.state.*replayed"):
                noise = run.gradient_noise(5)
        else:
            noise = run.gradient_noise(5)
        assert same(noise, noise_of(run, 5))
        run.commit(5, bytes(32))
        run.gradient_noise(6)


def test_an_older_noise_state_is_used_where_the_newest_is_damaged(copy, monkeypatch):
    with opened(copy) as run:
        train(run, fresh_model(), 8)
        run.save()
    newest = copy / "private" / "noise-000000000008.state"
    newest.write_bytes(newest.read_bytes()[:-9])
    with opened(copy) as run:
        made = []
        monkeypatch.setattr(run._replay, "_make", lambda: made.append(1))
        with pytest.warns(RuntimeWarning, match="000000000008"):
            assert same(run.gradient_noise(8), noise_of(run, 8))
        assert made == []
        run.save()
    assert sorted(path.name for path in (copy / "private").glob("noise-*")) == [
        "noise-000000000005.state",
        "noise-000000000009.state",
    ]


@pytest.mark.parametrize("name", ["noise-abc.state", "noise-.state", "noise-5.state", "noise-0000000000-5.state"])
def test_other_names_of_noise_states_are_left_alone(copy, name):
    (copy / "private" / name).write_bytes(b"mine")
    with opened(copy) as run:
        assert same(run.gradient_noise(3), noise_of(run, 3))
        train(run, fresh_model(), 5, start=0)
        run.batch(5)
        run.gradient_noise(5)
        run.commit(5, bytes(32))
        run.save()
    with opened(copy, PLAN.extend(STEPS + 3)) as run:
        run.gradient_noise(6)
    assert (copy / "private" / name).read_bytes() == b"mine"


def test_what_killed_writes_left_is_removed_and_nothing_else(copy):
    (copy / "private" / "shard-0-of-2-abc").mkdir(0o700)
    ours = [f"{place}.{name}.{'0f' * 8}.new" for place, name in (("", "run.json"), ("", "plan.json"))]
    ours += [f"private/.{name}.{'a1' * 8}.new" for name in ("heads", "secret", "noise-000000000007.state", "mine")]
    ours += [f"private/shard-0-of-2-abc/.noise-000000000007.state.{'a1' * 8}.new"]
    others = ["private/x.new", f"private/noise.{'a1' * 8}.new", "private/.heads.123.new", f"public/.x.{'a1' * 8}.new"]
    for name in (*ours, *others):
        (copy / name).write_bytes(b"unfinished")
    (copy / "private" / f".link.{'a1' * 8}.new").symlink_to(copy / HEADER)
    (copy / "private" / f".directory.{'a1' * 8}.new").mkdir()
    (copy / HEADER).rename(copy / "header")
    with pytest.raises(ap.Corrupted):
        opened(copy)
    assert all((copy / name).exists() for name in ours)  # a refusal changes nothing
    (copy / "header").rename(copy / HEADER)
    opened(copy).close()
    assert not any((copy / name).exists() for name in ours)
    assert all((copy / name).exists() for name in others)
    assert (copy / "private" / f".link.{'a1' * 8}.new").is_symlink()
    assert (copy / "private" / f".directory.{'a1' * 8}.new").is_dir()


# what is no file


def socket_at(path):
    here = os.getcwd()
    os.chdir(path.parent)  # a relative path, because the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


REPLACED = {
    "named pipe": os.mkfifo,
    "directory": os.mkdir,
    "symbolic link": lambda path: path.symlink_to(path.with_name("aside")),
    "socket": socket_at,
}


@pytest.mark.parametrize("kind", REPLACED)
@pytest.mark.parametrize("name", [HEADER, *NEEDED])
def test_what_is_no_file_is_refused_by_name(copy, name, kind):
    (copy / name).rename((copy / name).with_name("aside"))
    REPLACED[kind](copy / name)
    before = content(copy)
    with pytest.raises(ap.Corrupted, match=f"{name} must be a regular file, but is a {kind}"):
        opened(copy)
    with pytest.raises(ap.Corrupted, match=f"{name} must be a regular file, but is a {kind}"):
        read(copy)
    done = command("verify", copy)
    assert done.exit_code == 1
    assert f"is a {kind}" in done.stderr
    assert content(copy) == before


@pytest.mark.parametrize("name", ["public", "private"])
@pytest.mark.parametrize("kind", ["symbolic link", "file", "named pipe"])
def test_a_part_that_is_no_directory_is_refused(copy, name, kind):
    (copy / name).rename(copy / "aside")
    {"file": lambda path: path.write_bytes(b""), **REPLACED}[kind](copy / name)
    for act in (opened, read):
        with pytest.raises(ap.Corrupted, match=f"{name} must be a directory, but is a {kind}"):
            act(copy)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o750, 0o701, 0o1777])
@pytest.mark.parametrize("new", [True, False])
def test_a_private_directory_that_others_can_enter_is_refused(copy, tmp_path, mode, new):
    directory = tmp_path / "new" if new else copy
    (directory / "private").mkdir(parents=True, exist_ok=True)
    (directory / "private").chmod(mode)
    before = content(directory)
    for act in [opened] if new else [opened, read]:
        with pytest.raises(ap.Refused, match="chmod 700"):
            act(directory)
    assert content(directory) == before
    (directory / "private").chmod(0o700)
    opened(directory).close()


def test_a_new_private_directory_is_for_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        for secret in (None, ap.Secret.insecure(1)):
            opened(tmp_path / repr(secret), secret=secret).close()
            assert stat.S_IMODE((tmp_path / repr(secret) / "private").stat().st_mode) == 0o700
    finally:
        os.umask(before)


# batches that are not recorded


def crashed(directory, monkeypatch):
    """Leave a run behind as if its process had ended without closing it."""
    run = opened(directory)
    train(run, fresh_model(), 3)
    run._journal.ledger.public.close()
    run._journal.ledger.private.close()
    run._journal.lock.release()


def test_committed_steps_without_recorded_batches_are_not_verified(tmp_path, monkeypatch):
    crashed(tmp_path / "run", monkeypatch)
    private = tmp_path / "run" / LEDGERS[1]
    kept = private.read_bytes()
    for left in (b"", kept[: kept.index(b"\n") + 1]):
        private.write_bytes(left)
        for name in ("verify", "report"):
            done = command(name, tmp_path / "run", *(["--format", "json"] if name == "report" else []))
            assert done.exit_code == 1, done.stdout
            assert "no batches for" in done.stderr
        assert private.read_bytes() == left
    opened(tmp_path / "run").close()
    done = command("verify", tmp_path / "run")
    assert done.exit_code == 0
    assert "3 redrawn, all as recorded; 2 were recorded after a crash" in " ".join(done.stdout.split())


def test_a_run_whose_batches_are_recorded_gets_no_more(tmp_path, monkeypatch):
    crashed(tmp_path / "run", monkeypatch)
    before = (tmp_path / "run" / LEDGERS[1]).read_bytes()
    opened(tmp_path / "run").close()
    assert (tmp_path / "run" / LEDGERS[1]).read_bytes() == before


# labels


@pytest.mark.parametrize("label", ["x" * 201, "two\nlines", "\x1b[31mred", "nul\0", "half \ud800", "line\u2028break"])
def test_labels_are_one_line_of_bounded_length(copy, label):
    with opened(copy) as run:
        before = content(copy)
        with pytest.raises(ap.InvalidArgument, match=r"'label' parameter of Run\.publish"):
            run.publish(label)
        assert content(copy) == before
        run.publish("\u00dcber 9000 \u2764\ufe0f " + "x" * 180)
        assert run.published == 5


@pytest.mark.parametrize("kind", ["file", "under a file", "too long", "NUL", "dangling link", "None", "number"])
def test_a_run_directory_that_cannot_be_is_refused_by_name(tmp_path, kind):
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    given = {
        "file": tmp_path / "file",
        "under a file": tmp_path / "file" / "run",
        "too long": tmp_path / ("x" * 300),
        "NUL": f"{tmp_path}/a\0b",
        "dangling link": tmp_path / "link",
        "None": None,
        "number": 3,
    }[kind]
    with pytest.raises(ap.InvalidArgument, match="directory"):
        ap.Run.open(plan_for(STRATEGIES["identity"]), given, leaves=LEAVES, examples=40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("wrong", [None, "plan.json", plan_for(STRATEGIES["identity"]).mechanism])
def test_what_is_no_plan_is_refused_by_name(tmp_path, wrong):
    with pytest.raises(ap.InvalidArgument, match="must be a Plan"):
        ap.Run.open(wrong, tmp_path / "run", leaves=LEAVES, examples=40)
    assert not (tmp_path / "run").exists()
