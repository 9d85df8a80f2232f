"""A run directory that is not whole and authentic is refused, and nothing is reported about it."""

import json
import re
import shutil

import pytest

import antiphase as ap
from antiphase._report import gather, markdown, read
from antiphase._run import opening
from tests.report.cases import command, made_plan, made_run, searched_plan


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    directory = tmp_path_factory.mktemp("good") / "run"
    made_run(directory, made_plan(), 10)
    return directory


def test_a_good_run_is_read_and_nothing_is_changed(good):
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in good.rglob("*") if p.is_file()}
    source = read(good)
    assert source.run.steps_run == 10
    assert source.run.guarantee == ap.epsilon(made_plan().mechanism.first(10), 1e-6)
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in good.rglob("*") if p.is_file()}


def test_a_run_under_way_can_be_read(tmp_path):
    plan = made_plan()
    with ap.Run.open(plan, tmp_path / "run", leaves=[(2,)], examples=48) as run:
        for step in range(3):
            run.batch(step)
            run.commit(step, ap.digest(run.gradient_noise(step)))
        assert read(tmp_path / "run").run.steps_run == 3


def edit(directory, name, change):
    path = directory / name
    data = path.read_bytes()
    changed = change(data)
    assert changed != data
    path.write_bytes(changed)


BAD = {
    "nothing there": shutil.rmtree,
    "an empty directory": lambda d: [shutil.rmtree(d), d.mkdir()],
    "no header": lambda d: (d / "run.json").unlink(),
    "no plan": lambda d: (d / "plan.json").unlink(),
    "no secret": lambda d: (d / "private/secret").unlink(),
    "no heads": lambda d: (d / "private/heads").unlink(),
    "no ledger": lambda d: (d / "public/ledger.jsonl").unlink(),
    "header cut short": lambda d: edit(d, "run.json", lambda b: b[:-9]),
    "header of another kind": lambda d: edit(d, "run.json", lambda b: b"[1, 2]"),
    "other examples": lambda d: edit(d, "run.json", lambda b: b.replace(b'"examples": 48', b'"examples": 47')),
    "less noise": lambda d: edit(d, "plan.json", lambda b: b.replace(b'"noise_std": 3.0', b'"noise_std": 2.97')),
    "better guarantee": lambda d: edit(d, "plan.json", lambda b: re.sub(rb'"value": [\d.]+', b'"value": 0.1', b)),
    "plan cut short": lambda d: edit(d, "plan.json", lambda b: b[: len(b) // 2]),
    "last entries cut off": lambda d: edit(d, "public/ledger.jsonl", lambda b: b[: b[:-1].rindex(b"\n") + 1]),
    "half an entry cut off": lambda d: edit(d, "public/ledger.jsonl", lambda b: b[:-40]),
    "one entry edited": lambda d: edit(d, "public/ledger.jsonl", lambda b: b.replace(b'"step":4', b'"step":5')),
    "one entry dropped": lambda d: edit(d, "public/ledger.jsonl", lambda b: b"\n".join(b.split(b"\n")[1:])),
    "half a line added": lambda d: edit(d, "public/ledger.jsonl", lambda b: b + b'{"kind":"commit"'),
    "a forged line added": lambda d: edit(d, "public/ledger.jsonl", lambda b: b + b'{"kind":"x"} ' + b"0" * 64 + b"\n"),
    "heads edited": lambda d: edit(d, "private/heads", lambda b: b.replace(b"1", b"2", 1)),
    "private part emptied": lambda d: edit(d, "private/ledger.jsonl", lambda b: b""),
}
REASONS = {
    "nothing there": "does not exist",
    "an empty directory": r"run\.json",
    "no header": r"run\.json",
    "no plan": r"plan\.json",
    "no secret": "private/secret",
    "no heads": "private/heads",
    "no ledger": r"public/ledger\.jsonl",
    "header cut short": r"run\.json",
    "header of another kind": r"run\.json",
    "other examples": r"run\.json",
    "less noise": "fingerprint",
    "better guarantee": "states epsilon",
    "plan cut short": r"plan\.json",
    "last entries cut off": "at least 12 entries, but only 11 are authentic",
    "half an entry cut off": "at least 12 entries, but only 11 are authentic",
    "one entry edited": "at least 12 entries, but only 5 are authentic",
    "one entry dropped": "at least 12 entries, but only 0 are authentic",
    "half a line added": r"public/ledger\.jsonl",
    "a forged line added": r"public/ledger\.jsonl",
    "heads edited": "heads",
    "private part emptied": "at least 10 entries, but only 0 are authentic",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_run_is_refused_and_nothing_is_written(good, tmp_path, name):
    directory = tmp_path / "run"
    shutil.copytree(good, directory)
    BAD[name](directory)
    with pytest.raises(ap.AntiphaseError, match=REASONS[name]):
        read(directory)
    output = tmp_path / "report.html"
    result = command("report", directory, "--output", output)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: " in result.stderr
    assert not output.exists()


def test_a_foreign_run_is_refused(good, tmp_path):
    other = tmp_path / "other"
    made_run(other, made_plan(), 5)
    shutil.copy(other / "public/ledger.jsonl", tmp_path / "ledger")
    mixed = tmp_path / "mixed"
    shutil.copytree(good, mixed)
    shutil.copy(other / "public/ledger.jsonl", mixed / "public/ledger.jsonl")
    with pytest.raises(ap.Corrupted, match="ledger"):
        read(mixed)
    with pytest.raises(ap.Corrupted, match="not authentic"):
        read(good, ap.Secret.insecure(1))


def test_a_secret_kept_elsewhere(tmp_path):
    secret = ap.Secret.insecure(3)
    with ap.Run.open(made_plan(), tmp_path / "run", leaves=[(2,)], examples=48, secret=secret) as run:
        run.batch(0)
        run.commit(0, ap.digest(run.gradient_noise(0)))
    with pytest.raises(ap.Corrupted, match="secret is missing"):
        read(tmp_path / "run")
    assert any("known integer" in text for text in read(tmp_path / "run", secret).run.remarks)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"not json", b"\xff\xfe"])
def test_a_file_that_is_no_plan(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(ap.Corrupted, match="cannot be read"):
        read(path)


def edited(directory):
    """The second candidate made better by hand; the fingerprint does not cover it."""
    path = directory / "plan.json"
    data = json.loads(path.read_text())
    data["plan"]["candidates"][1]["error"] = 1e-3
    path.write_text(json.dumps(data))


def test_candidates_of_a_run_are_those_it_was_opened_with(tmp_path):
    plan = searched_plan()
    made_run(tmp_path, plan, 3)
    source = read(tmp_path)
    assert source.plan.candidates == plan.candidates
    assert source.left_out == ()
    edited(tmp_path)
    source = read(tmp_path)
    assert source.plan.candidates == source.plan.notes == ()
    content = gather(source)
    assert any("Candidates are left out" in text for text in content.left_out)
    assert plan.candidates[1].name not in markdown(content)
    result = command("verify", tmp_path)
    assert result.exit_code == 1
    assert "differ from those that the run was opened with" in result.stderr


def test_a_run_of_an_older_version_is_reported_without_candidates(tmp_path, monkeypatch):
    now = opening._identity
    with monkeypatch.context() as patch:
        patch.setattr(opening, "_identity", lambda *given: {k: v for k, v in now(*given).items() if k != "details"})
        made_run(tmp_path, searched_plan(), 3)
    assert "details" not in (tmp_path / "public" / "ledger.jsonl").read_text()
    source = read(tmp_path)
    assert source.run.steps_run == 3
    assert source.plan.candidates == ()
    assert "Candidates are left out" in source.left_out[0]
    assert command("verify", tmp_path).exit_code == 0


def test_a_plan_that_was_searched_again_resumes(tmp_path):
    """The same search takes other seconds; the candidates of the first one stay."""
    first, again = searched_plan(), searched_plan()
    assert first.candidates != again.candidates
    made_run(tmp_path, first, 3)
    with ap.Run.open(again, tmp_path, leaves=[(2,)], examples=48) as run:
        assert run.committed == 3
    assert read(tmp_path).plan.candidates == first.candidates
