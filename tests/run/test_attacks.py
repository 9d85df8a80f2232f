"""Ways to make a run repeat its noise or understate its epsilon. The library refuses each of them."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._durable import write_atomically
from antiphase._ledger import chain
from antiphase._report import gather, read
from antiphase._run.history import History
from antiphase._run.noise_replay import StreamReplay
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, take, train
from tests.signals import at_line

SECRET = ap.Secret.insecure(7)
PLAN = plan_for(STRATEGIES["toeplitz"])


def opened(directory, plan=PLAN, **options):
    return ap.Run.open(plan, directory, **{"leaves": LEAVES, "examples": 40, "secret": SECRET, **options})


def finished(directory):
    with opened(directory) as run:
        train(run, fresh_model(), STEPS)
        run.publish("model")


FORGED = {
    "more noise than was added": lambda m: replace(m, noise_std=300.0),
    "another participation": lambda m: replace(m, participation=ap.MinSeparation(12)),
    "another matrix": lambda m: replace(m, strategy=ap.strategies.Toeplitz([1.0, 0.1], 20)),
    "another family": lambda m: replace(m, strategy=ap.strategies.Identity(20)),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_only_the_extension_of_the_runs_own_plan_extends_it(tmp_path, forgery):
    finished(tmp_path)
    honest = PLAN.extend(20)
    mechanism = FORGED[forgery](honest.mechanism)
    problem = replace(honest.problem, participation=mechanism.participation)
    forged = replace(honest, problem=problem, mechanism=mechanism, guarantee=ap.epsilon(mechanism, 1e-6))
    with pytest.raises(ap.InvalidArgument, match="is not an extension of it"):
        opened(tmp_path, forged)
    with opened(tmp_path) as run:
        assert run.report().guarantee == PLAN.guarantee


def test_an_edited_header_does_not_let_another_plan_in(tmp_path):
    finished(tmp_path)
    other = plan_for(STRATEGIES["identity"], noise_std=1000.0)
    header = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**header, "root": other.fingerprint}))
    with pytest.raises(ap.Corrupted, match=r"run\.json"):
        opened(tmp_path, other)


@pytest.mark.parametrize("edit", [{"examples": 41}, {"dtype": "float64"}])
def test_an_edited_header_is_noticed_even_if_the_arguments_follow_it(tmp_path, edit):
    finished(tmp_path)
    header = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**header, **edit}))
    with pytest.raises(ap.Corrupted, match=r"run\.json"):
        opened(tmp_path, **edit)


def test_the_data_set_must_be_the_one_accounted_for(tmp_path):
    mechanism = ap.Mechanism(ap.strategies.Identity(STEPS), ap.FixedSize(1, 10), 3.0, "replace", examples=100_000)
    problem = replace(PLAN.problem, participation=mechanism.participation, adjacency="replace", examples=100_000)
    plan = ap.Plan(problem, mechanism, ap.epsilon(mechanism, 1e-6), 1.0)
    with pytest.raises(ap.InvalidArgument, match="accounts for 100000 examples"):
        opened(tmp_path, plan, examples=20)


def test_amplification_needs_the_runs_own_batches(tmp_path):
    mechanism = ap.Mechanism(ap.strategies.Identity(STEPS), ap.Poisson(0.25), 3.0)
    plan = ap.Plan(replace(PLAN.problem, participation=None), mechanism, ap.epsilon(mechanism, 1e-6), 1.0)
    with pytest.raises(ap.InvalidArgument, match=r"needs random batches \(Poisson\)"):
        opened(tmp_path, plan, examples=None)


def true_noise(run, step):
    return ap.NoiseStream(PLAN, LEAVES, SECRET, run.run_id, start_step=step).next()


def test_a_renamed_noise_state_is_not_used(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 8)
        run.save()
    private = tmp_path / "private"
    os.replace(private / "noise-000000000008.state", private / "noise-000000000003.state")
    with opened(tmp_path) as run:
        with pytest.warns(RuntimeWarning, match="contains the state at step 8"):
            noise = run.gradient_noise(5)
        assert all(map(np.array_equal, noise, true_noise(run, 5)))


FOREIGN = {
    "another source": {"source": "simulation"},
    "another first plan": {"first": plan_for(ap.strategies.Toeplitz([1.0, 0.5, 0.25], STEPS - 2))},
    "another dtype": {"dtype": "float64"},
    "another run": {"run_id": "another"},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_state_of_other_noise_is_replaced_by_a_replay(tmp_path, kind):
    """The run went on with noise that was not correlated with that of the steps before, and reported nothing."""
    at = 5
    with opened(tmp_path / "whole", secret=ap.Secret.insecure(7)) as run:
        run_id, wanted = run.run_id, []
        for step in range(STEPS):
            run.batch(step)
            wanted.append(run.gradient_noise(step))
            run.commit(step, ap.digest(wanted[-1]))
            if step == at - 1:
                shutil.copytree(tmp_path / "whole", tmp_path / "part")
    other = ap.NoiseStream(PLAN, LEAVES, SECRET, **{"run_id": run_id, "start_step": at, **FOREIGN[kind]})
    path = tmp_path / "part" / "private" / f"noise-{at:012d}.state"
    other.save(path)
    with opened(tmp_path / "part") as run:
        assert run.committed == at
        with pytest.warns(RuntimeWarning, match="belongs to another"):
            found = run.gradient_noise(at)
        for step in range(at, STEPS):
            run.batch(step)
            found = run.gradient_noise(step)
            assert all(map(np.array_equal, found, wanted[step]))
            run.commit(step, ap.digest(found))
    assert not path.exists()


@pytest.mark.parametrize("wrong", ["array", "list", "dict", "short", "tensor", "step"])
def test_an_error_shows_no_noise(tmp_path, wrong):
    """Forgetting antiphase.digest wrote the noise of the step into the log."""
    with opened(tmp_path / "run") as run:
        noise = run.gradient_noise(0)
        flat = noise[0].reshape(-1)
        given = {
            "array": flat,
            "list": noise,
            "dict": {"weight": noise[0]},
            "short": flat.tobytes()[:20],
            "tensor": flat.tolist(),
            "step": bytes(32),
        }[wrong]
        with pytest.raises(ap.AntiphaseError) as caught:
            run.commit(noise if wrong == "step" else 0, given)
    message = f"{caught.value} {caught.value.hint} {caught.value.args}"
    for number in flat.tolist():
        assert f"{number:.4f}"[:6] not in message
    assert repr(flat.tobytes()[:4])[2:-1] not in message
    assert len(message) < 600


def test_the_noise_state_of_another_run_is_not_used(tmp_path):
    for name in ("a", "b"):
        with opened(tmp_path / name) as run:
            train(run, fresh_model(), 8)
            run.save()
    state = "private/noise-000000000008.state"
    shutil.copy(tmp_path / "a" / state, tmp_path / "b" / state)
    with opened(tmp_path / "b") as run:
        with pytest.warns(RuntimeWarning, match="belongs to another run"):
            noise = run.gradient_noise(8)
        assert all(map(np.array_equal, noise, true_noise(run, 8)))


def test_a_header_without_its_ledger_is_no_new_run(tmp_path):
    finished(tmp_path / "a")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "run.json", tmp_path / "b" / "run.json")
    with pytest.raises(ap.Corrupted, match="Missing: private/heads"):
        opened(tmp_path / "b")


def test_a_ledger_without_its_header_is_left_alone(tmp_path):
    finished(tmp_path)
    header = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").unlink()
    with pytest.raises(ap.Corrupted, match=r"run\.json is missing"):
        opened(tmp_path)
    (tmp_path / "run.json").write_bytes(header)
    with opened(tmp_path) as run:
        assert run.committed == STEPS


def test_a_crash_while_making_the_run_leaves_a_directory_that_can_be_used(tmp_path):
    opened(tmp_path).close()
    (tmp_path / "run.json").unlink()  # the last file to be written
    finished(tmp_path)
    with opened(tmp_path) as run:
        assert run.committed == STEPS


def test_a_full_tree_is_not_extended():
    with pytest.raises(ap.Refused, match="cannot be extended"):
        plan_for(ap.strategies.Tree(STEPS, "full")).extend(20)


def test_a_step_needs_its_noise_before_it_is_committed(tmp_path):
    with opened(tmp_path) as run:
        with pytest.raises(ap.Refused, match="noise has not been read"):
            run.commit(0, bytes(32))
        run.batch(0)
        run.gradient_noise(0)
        with pytest.raises(ap.Refused, match="not committed"):
            run.publish("too early")
        run.commit(0, bytes(32))
        run.publish("in time")
    with opened(tmp_path) as run, pytest.raises(ap.Refused, match="noise has not been read"):
        run.commit(1, bytes(32))


def test_the_ledger_does_not_let_outputs_be_guessed(tmp_path):
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), 1)
    assert ap.digest(model).hex() not in (tmp_path / "public" / "ledger.jsonl").read_text()


@pytest.mark.parametrize("value", [{}, [], "ab", b"ab", np.zeros(3), iter(()), [{"w": np.zeros(2)}], [np.array("x")]])
def test_a_digest_of_nothing_is_refused(value):
    with pytest.raises(ap.InvalidArgument):
        ap.digest(value)


def test_a_digest_sees_every_piece_of_a_large_array():
    base = np.zeros(3 << 20, dtype=np.float32)
    found = {ap.digest([base])}
    for at in (0, (1 << 18) - 1, 1 << 18, (3 << 19) + 7, len(base) - 1):
        changed = base.copy()
        changed[at] = np.nextafter(np.float32(0.0), np.float32(1.0))
        found.add(ap.digest([changed]))
    assert len(found) == 6
    assert ap.digest([base[:5], base[5:]]) != ap.digest([base])


def test_a_digest_sees_values_names_shapes_and_types():
    base = {"w": np.zeros(2), "b": np.zeros(1)}
    others = [
        {"w": np.ones(2), "b": np.zeros(1)},
        {"w": np.zeros(2), "c": np.zeros(1)},
        {"w": np.zeros(2), "b": np.zeros(())},
        {"w": np.zeros(2, np.float32), "b": np.zeros(1)},
    ]
    assert len({ap.digest(value) for value in [base, *others]}) == 5
    assert ap.digest(base) == ap.digest(dict(reversed(base.items())))


def test_a_closed_run_can_do_nothing(tmp_path):
    run = opened(tmp_path)
    run.close()
    with opened(tmp_path):
        for act in (
            lambda: run.gradient_noise(0),
            lambda: run.batch(0),
            lambda: run.commit(0, bytes(32)),
            lambda: run.publish("x"),
            run.save,
            run.close,
        ):
            with pytest.raises(ap.Refused, match="closed"):
                act()


@pytest.mark.parametrize("call", ["gradient_noise", "commit", "publish", "save"])
def test_a_call_that_waits_while_the_run_is_closed_says_so(tmp_path, monkeypatch, call):
    """It has found the run open, and waits for the lock that the closing thread holds."""
    run = opened(tmp_path)
    digest = run.digest(0, run.gradient_noise(0))
    act = {
        "gradient_noise": lambda: run.gradient_noise(0),
        "commit": lambda: run.commit(0, digest),
        "publish": lambda: run.publish("x"),
        "save": run.save,
    }[call]
    is_waiting, check_open = threading.Event(), run._journal.check_open

    def signalled():
        check_open()
        is_waiting.set()

    monkeypatch.setattr(run._journal, "check_open", signalled)
    with ThreadPoolExecutor(1) as pool:
        with run._thread_lock:
            called = pool.submit(act)
            assert is_waiting.wait(60)
            run.close()
        with pytest.raises(ap.Refused, match="The run is closed"):
            called.result()


def test_a_forked_child_can_do_nothing(tmp_path):
    with opened(tmp_path) as run:
        pid = os.fork()
        if pid == 0:
            try:
                run.gradient_noise(0)
            except ap.Refused:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_forked_child_with_the_pid_of_its_parent_can_do_nothing(tmp_path, monkeypatch):
    """As in another PID namespace, where numbers begin again."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    stream = ap.NoiseStream(PLAN, LEAVES, SECRET, "fork", threads=1)
    with opened(tmp_path) as run:
        pid = os.fork()
        if pid == 0:
            refused = 0
            for act in (lambda: run.gradient_noise(0), stream.next):
                try:
                    act()
                except ap.Refused:
                    refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        run.gradient_noise(0)
        stream.next()


def met(function):
    """Return `function` followed by a barrier for two threads. A single thread continues after 0.2 seconds."""
    barrier = threading.Barrier(2)

    def act(*given):
        made = function(*given)
        with suppress(threading.BrokenBarrierError):
            barrier.wait(timeout=0.2)
        return made

    return act


def test_two_threads_get_the_same_noise_of_a_step(tmp_path, monkeypatch):
    """Not one of them that of the next step, which would then be used twice."""
    with opened(tmp_path) as run:
        train(run, fresh_model(), 1)
        alone = ap.NoiseStream(PLAN, LEAVES, SECRET, run.run_id, start_step=1).next()
        monkeypatch.setattr(StreamReplay, "_stream_at", met(StreamReplay._stream_at))
        with ThreadPoolExecutor(2) as threads:
            for noise in threads.map(run.gradient_noise, [1, 1]):
                assert all(map(np.array_equal, noise, alone))


def test_of_two_threads_one_commits_a_step(tmp_path, monkeypatch):
    def commits(digest):
        with suppress(ap.Refused):
            run.commit(0, digest)
            return True

    with opened(tmp_path) as run:
        run.batch(0)
        run.gradient_noise(0)
        with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
            patched.setattr(History, "check", met(History.check))
            done = list(threads.map(commits, [bytes(32), bytes([1]) * 32]))
        assert sorted(done, key=bool) == [None, True]
    with opened(tmp_path) as run:
        assert run.committed == 1


def interrupted(*given):
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", [(chain, "Head"), (History, "apply")], ids=["in the file", "in the ledger"])
def test_a_commit_that_was_interrupted_is_known_once_the_run_is_opened_again(tmp_path, monkeypatch, where):
    """By a key press; a second entry of the step would make the ledger one that nobody can read."""
    run = opened(tmp_path)
    model = take(run, 0, fresh_model())
    with monkeypatch.context() as patched:
        patched.setattr(run, "_record_batch", lambda step: None)  # which writes to the same kind of file
        patched.setattr(*where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.commit(0, ap.digest(model))
    with pytest.raises(ap.Refused, match="was interrupted"):
        run.commit(0, ap.digest(model))
    with pytest.raises(ap.Refused):
        run.publish("model")
    with suppress(ap.Corrupted):  # a line more than it knows of
        run.close()
    with opened(tmp_path) as run:
        assert run.committed == 1
        train(run, model, 3)
        run.publish("model")
    with opened(tmp_path) as run:
        assert (run.committed, run.report().rewinds) == (3, 0)


def test_what_handles_a_signal_enters_nothing_in_the_middle_of_an_entry(tmp_path, monkeypatch):
    def apply(history, entry):
        if entry["kind"] == "commit":
            with pytest.raises(ap.Refused, match="is writing to its ledger"):
                run.commit(entry["step"], bytes(32))  # by the thread that has its turn
        real(history, entry)

    real = History.apply
    with opened(tmp_path) as run, monkeypatch.context() as patched:
        patched.setattr(History, "apply", apply)
        train(run, fresh_model(), 2)
    with opened(tmp_path) as run:
        assert (run.committed, run.report().rewinds) == (2, 0)


@pytest.mark.parametrize("asked", [1, 0], ids=["the same step", "the last"])
def test_a_signal_handler_that_reads_noise_does_not_change_the_step_it_interrupts(tmp_path, asked):
    """Whatever line of the reading it interrupts; it gets the right noise itself, or a refusal."""
    moment, is_called, refusals = 0, True, 0
    while is_called:
        seen = []

        def handle(seen=seen):
            try:
                seen.append(run.gradient_noise(asked))
            except ap.Refused:
                seen.append(None)

        with opened(tmp_path / str(moment)) as run:
            stream = ap.NoiseStream(PLAN, LEAVES, SECRET, run.run_id)
            right = [stream.next(), stream.next()]
            train(run, fresh_model(), 1)
            files = ("noise_replay.py", "_noise/stream.py")
            noise, is_called = at_line(moment, files, handle, lambda run=run: run.gradient_noise(1))
            others = [(other, asked) for other in seen if other is not None]
            for found, step in [(noise, 1), (run.gradient_noise(1), 1), *others]:
                assert all(map(np.array_equal, found, right[step])), moment
        refusals += None in seen
        moment += 1
    assert 5 < refusals < moment


def test_a_step_that_was_made_from_a_withdrawn_one_is_not_committed(tmp_path):
    with opened(tmp_path) as run:
        first = train(run, fresh_model(), 1)
        second = take(run, 1, first)
        other = take(run, 0, fresh_model(), data_seed=1)
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            run.commit(0, ap.digest(other))
        with pytest.raises(ap.Refused, match="Step 1 cannot be committed: its noise has not been read"):
            run.commit(1, ap.digest(second))
        train(run, other, 3)
        assert (run.committed, run.report().rewinds) == (3, 1)


def test_a_program_that_changes_its_directory_writes_into_no_other_run(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        opened("run").close()
    monkeypatch.chdir(tmp_path / "one")
    with opened("run") as run:
        monkeypatch.chdir(tmp_path / "two")
        train(run, fresh_model(), 2)
        run.publish("model")
        run.save()
    cut = tmp_path / "one" / "run" / "public" / "ledger.jsonl"
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ap.Corrupted, match="does not match its stored head"):
        opened(tmp_path / "one" / "run")
    opened("run").close()


def test_a_foreign_line_in_the_ledger_stops_the_publication(tmp_path):
    run = opened(tmp_path)
    train(run, fresh_model(), 2)
    with (tmp_path / "public" / "ledger.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(ap.Corrupted, match="another process"):
        run.publish("x")
    with pytest.raises(ap.Refused):
        run.save()
    run.close()
    run = opened(tmp_path)
    with (tmp_path / "public" / "ledger.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(ap.Corrupted, match="another process"):
        run.close()


def test_a_hole_in_the_tail_costs_only_what_was_not_kept(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 3)
        run.publish("three")
    path = tmp_path / "public" / "ledger.jsonl"
    kept = path.read_bytes()
    path.write_bytes(kept + bytes(100) + b"\n{}\n")
    with opened(tmp_path) as run:
        assert (run.committed, run.published) == (3, 3)


@pytest.mark.parametrize("waiting", ["link", "file"])
def test_a_waiting_temporary_file_is_neither_used_nor_followed(tmp_path, monkeypatch, waiting):
    """Even one who could guess its name gains nothing."""
    monkeypatch.setattr("secrets.token_hex", lambda length: "ab" * length)
    target, planted = tmp_path / "victim", tmp_path / f".secret.{'ab' * 8}.new"
    target.write_text("untouched")
    if waiting == "link":
        planted.symlink_to(target)
    else:
        os.link(target, planted)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "secret", b"new")
    assert target.read_text() == "untouched"
    planted.unlink()
    write_atomically(tmp_path / "secret", b"new")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_report_says_that_the_budget_is_spent(tmp_path):
    plan = plan_for(STRATEGIES["blt"], noise_std=1.0)
    with opened(tmp_path, plan) as run:
        train(run, fresh_model(), 4)
    with opened(tmp_path, plan.extend(40)) as run:
        train(run, fresh_model(), 40)
        remarks = " ".join(run.report().remarks)
    assert f"above the budget of {plan.problem.budget.epsilon}" in remarks
    assert "extended 1 time" in remarks


@pytest.mark.parametrize("stop", [30, 40])
def test_a_report_on_an_extended_run_states_its_condition(tmp_path, stop):
    """The planned epsilon of an extended run was not known in advance, so it is no fallback."""
    plan = plan_for(STRATEGIES["blt"])
    with opened(tmp_path, plan) as run:
        train(run, fresh_model(), 4)
        assert run.report().extensions == 0
    with opened(tmp_path, plan.extend(40)) as run:
        train(run, fresh_model(), stop)
        report = run.report()
    assert report.extensions == 1
    assert "if the number of steps was not chosen by looking at the outputs" in " ".join(report.remarks)
    assert "planned epsilon applies" not in " ".join(report.remarks)
    assert gather(read(tmp_path, SECRET)).headline.endswith(
        "if the number of steps was not chosen by looking at the outputs."
    )


@pytest.mark.parametrize("bad", [{"dtype": "int8"}, {"examples": -3}, {"secret": b"bytes"}, {"leaves": 5}])
def test_bad_arguments_leave_no_run_behind(tmp_path, bad):
    with pytest.raises(ap.AntiphaseError):
        opened(tmp_path, **bad)
    assert not (tmp_path / "run.json").exists()
    finished(tmp_path)


def test_a_missing_secret_is_not_replaced(tmp_path):
    with opened(tmp_path, secret=None) as run:
        train(run, fresh_model(), 2)
    (tmp_path / "private" / "secret").unlink()
    with pytest.raises(ap.Corrupted, match="run's secret is missing"):
        opened(tmp_path, secret=None)


@pytest.mark.parametrize("wrong", [{"a": np.zeros(2), 1: np.zeros(2)}, [[[1.0, 2.0], [3.0]]]])
def test_a_digest_of_what_has_no_order_or_shape_is_refused(wrong):
    with pytest.raises(ap.InvalidArgument, match="digest"):
        ap.digest(wrong)


@pytest.mark.parametrize("drawn", [[], [1], [0, 2]])
def test_a_step_needs_its_batch_before_it_is_committed(tmp_path, drawn):
    """A loop that keeps a loader of its own would get the epsilon of batches that nobody used."""
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), 1)
        for step in drawn:
            run.batch(step)
        run.gradient_noise(1)
        if 1 in drawn:
            run.commit(1, ap.digest(model))
        else:
            with pytest.raises(ap.Refused, match="Step 1 cannot be committed: its batch has not been drawn"):
                run.commit(1, ap.digest(model))
            assert run.committed == 1
            run.batch(1)
            run.commit(1, ap.digest(model))
        run.gradient_noise(2)
        if 2 not in drawn:
            with pytest.raises(ap.Refused, match="Step 2 cannot be committed: its batch has not been drawn"):
                run.commit(2, bytes(32))


def test_a_replay_with_another_output_needs_its_batch_too(tmp_path):
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), 2)
        run.gradient_noise(1)
        run.commit(1, ap.digest(model))  # the same output
        run.gradient_noise(1)
        with pytest.raises(ap.Refused, match="its batch has not been drawn"):
            run.commit(1, bytes(32))
    with opened(tmp_path) as run:
        run.gradient_noise(1)
        with pytest.raises(ap.Refused, match="its batch has not been drawn"):  # since the run was opened again
            run.commit(1, bytes(32))
        run.batch(1)
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            run.commit(1, bytes(32))


def test_training_again_in_the_same_directory_is_noticed_at_once(tmp_path):
    """The same noise in two models: nothing was published, so it is not refused."""
    with opened(tmp_path) as run:
        train(run, fresh_model(), 3)
    ledger = tmp_path / "public" / "ledger.jsonl"
    with opened(tmp_path) as run:
        other = take(run, 0, fresh_model(), data_seed=1)
        before = ledger.read_bytes()
        with pytest.raises(RuntimeWarning, match=r"Step 0 was committed before.*new directory"):  # warnings are errors
            run.commit(0, ap.digest(other))
        assert (run.committed, ledger.read_bytes()) == (3, before)
        with pytest.warns(RuntimeWarning, match="another one with the same noise") as seen:
            train(run, fresh_model(), 5, start=0, data_seed=1)
        assert len(seen) == 1
        assert (run.committed, run.report().rewinds) == (5, 1)


def test_noise_given_as_a_label_or_as_nested_lists_is_not_shown(tmp_path):
    with ap.Run.open(plan_for(STRATEGIES["blt"]), tmp_path / "run", leaves=[(2, 3), (3,)]) as run:
        noise = run.gradient_noise(0)
        numbers = [f"{abs(value):.3g}"[:4] for array in noise for value in array.flat]
        run.commit(0, ap.digest(noise))
        for act in (lambda: run.publish(noise), lambda: run.publish(noise[1]), lambda: ap.digest([noise, [1.0]])):
            with pytest.raises(ap.AntiphaseError) as caught:
                act()
            assert not any(number in str(caught.value) for number in numbers)
