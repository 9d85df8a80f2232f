"""Runs: batches, noise and ledger stay consistent, and a restarted run repeats its steps exactly or is refused."""

import hashlib
import os
import stat

import numpy as np
import pytest

import antiphase as ap
from antiphase._run import privacy_report
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, take, train

SECRET = ap.Secret.insecure(7)


def opened(directory, plan=None, **options):
    plan = plan or plan_for(STRATEGIES["toeplitz"])
    return ap.Run.open(plan, directory, **{"leaves": LEAVES, "examples": 40, "secret": SECRET, **options})


@pytest.mark.parametrize("name", STRATEGIES)
def test_noise_is_that_of_the_stream_with_the_runs_own_id(tmp_path, name):
    plan = plan_for(STRATEGIES[name])
    with opened(tmp_path, plan) as run:
        stream = ap.NoiseStream(plan, LEAVES, SECRET, run.run_id)
        for step in range(STEPS):
            run.batch(step)
            for ours, theirs in zip(run.gradient_noise(step), stream.next(), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            run.commit(step, bytes(32))


def test_batches_come_from_the_plans_own_sampler(tmp_path):
    plan = plan_for(STRATEGIES["toeplitz"])
    with opened(tmp_path, plan) as run:
        sampler = plan.mechanism.participation.sampler(40, STEPS, SECRET.child("batches", run.run_id))
        for step in range(STEPS):
            np.testing.assert_array_equal(run.batch(step).indices, sampler.batch(step).indices)


def test_two_runs_share_neither_noise_nor_batches(tmp_path):
    with opened(tmp_path / "a") as a, opened(tmp_path / "b") as b:
        assert a.run_id != b.run_id
        assert not np.array_equal(a.gradient_noise(0)[0], b.gradient_noise(0)[0])
        assert any(not np.array_equal(a.batch(t).indices, b.batch(t).indices) for t in range(STEPS))


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("save", [False, True])
def test_resuming_at_every_step_is_bit_identical(tmp_path, name, save):
    plan = plan_for(STRATEGIES[name])
    with opened(tmp_path, plan) as run:
        whole = train(run, fresh_model(), STEPS)
        digests = [run._history.digest(t) for t in range(STEPS)]
    for stop in range(1, STEPS):
        other = tmp_path / f"other-{stop}"
        model = fresh_model()
        for until in (stop, STEPS):
            with opened(other, plan) as run:
                # The run id is fresh, so compare within this directory: the first part again after a restart.
                model = train(run, model, until)
                if save:
                    run.save()
        with opened(other, plan) as run:
            again = fresh_model()
            for step in range(STEPS):
                again = take(run, step, again)
                run.commit(step, ap.digest(again))  # free: the same digest
            for a, b in zip(again, model, strict=True):
                np.testing.assert_array_equal(a, b)
    assert len(set(digests)) == STEPS
    assert all(np.isfinite(m).all() for m in whole)


def test_steps_are_taken_in_order_and_end_with_the_plan(tmp_path):
    with opened(tmp_path) as run:
        with pytest.raises(ap.Refused, match="next step is 0"):
            run.gradient_noise(1)
        with pytest.raises(ap.Refused, match="next step is 0"):
            run.commit(3, bytes(32))
        train(run, fresh_model(), STEPS)
        with pytest.raises(ap.Refused, match="ended"):
            run.gradient_noise(STEPS)
        with pytest.raises(ap.Refused, match="ended"):
            run.commit(STEPS, bytes(32))


def test_a_replay_with_changed_data_is_free_while_nothing_was_published(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 6)
    with opened(tmp_path) as run:
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            train(run, fresh_model(), 6, start=0, data_seed=1)
        report = run.report()
    assert report.rewinds == 1
    assert report.steps_run == 6
    assert any("replaced 1 time" in remark for remark in report.remarks)


def test_only_the_output_of_a_committed_step_is_confirmed(tmp_path):
    with opened(tmp_path) as run:
        before = train(run, fresh_model(), 4)
        early = take(run, 4, before)  # stored, and then the program is killed before it commits step 4
    with opened(tmp_path) as run:
        assert run.confirms(3, before)
        assert run.confirms(3, (array for array in before))
        assert not run.confirms(4, early)
        assert not run.confirms(3, early)
        assert not run.confirms(2, before)
        run.commit(4, run.digest(4, take(run, 4, before)))
        assert run.confirms(4, early)
        with pytest.warns(RuntimeWarning, match="replaced"):
            run.commit(4, run.digest(4, take(run, 4, before, data_seed=1)))
        assert not run.confirms(4, early)  # the output of a replaced step
        with pytest.raises(ap.InvalidArgument, match="step"):
            run.confirms(-1, before)
    with pytest.raises(ap.Refused, match="closed"):
        run.confirms(3, before)


def test_what_a_model_that_is_not_confirmed_would_have_leaked(tmp_path):
    """The noise of step 4 would be in two sums, and the stored models would reveal their difference."""
    with opened(tmp_path) as run:
        before = train(run, fresh_model(), 4)
        early = take(run, 4, before)
        indices, mask = run.batch(4)
    with opened(tmp_path) as run:
        later = take(run, 4, early)  # a loop over range(run.committed, run.steps) takes the step again
        assert not run.confirms(4, early)
    pull = np.sin(indices[mask]).sum()
    for old, new, last in zip(before, early, later, strict=True):
        np.testing.assert_allclose(((new - last) - (old - new)) / 0.1, (np.cos(new) - np.cos(old)) * pull, atol=1e-9)


def test_a_replay_with_changed_data_is_refused_after_a_publication(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 6)
        run.publish("checkpoint")
    with opened(tmp_path) as run, pytest.raises(ap.Refused, match="'checkpoint' was published after that step"):
        train(run, fresh_model(), 6, start=0, data_seed=1)
    with opened(tmp_path) as run:  # the same data again is free
        train(run, fresh_model(), 6, start=0)
        assert run.committed == 6


def test_what_the_refused_replay_would_have_leaked(tmp_path):
    """The same noise on two outputs of one step reveals the difference of the two gradients exactly."""
    with opened(tmp_path) as run:
        first = take(run, 0, fresh_model(), data_seed=0)
        run.commit(0, ap.digest(first))
        run.publish("model after one step")
        second = take(run, 0, fresh_model(), data_seed=1)
        with pytest.raises(ap.Refused):
            run.commit(0, ap.digest(second))
        indices, mask = run.batch(0)
    secret_sums = [np.sin(indices[mask] + seed).sum() for seed in (0, 1)]
    leaked = (first[0] - second[0]) / -0.1
    np.testing.assert_allclose(leaked, secret_sums[0] - secret_sums[1], atol=1e-9)


def test_steps_after_the_publication_may_change(tmp_path):
    with opened(tmp_path) as run:
        model = train(run, fresh_model(), 4)
        run.publish("first")
        train(run, model, 8)
    with opened(tmp_path) as run:
        assert (run.committed, run.published) == (8, 4)
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            train(run, model, 8, start=4, data_seed=1)
        run.publish("second")
        assert [p.label for p in run.report().publications] == ["first", "second"]


def test_report_accounts_what_ran(tmp_path):
    plan = plan_for(STRATEGIES["toeplitz"])
    with opened(tmp_path, plan) as run:
        assert run.report().guarantee is None
        train(run, fresh_model(), 5)
        early = run.report()
        train(run, fresh_model(), STEPS)
        full = run.report()
    mechanism = plan.mechanism
    assert early.guarantee.value == ap.epsilon(mechanism.first(5), 1e-6).value
    assert early.guarantee.value < full.guarantee.value
    assert full.guarantee.value == plan.guarantee.value
    assert any("Stopped after 5 of 12" in remark for remark in early.remarks)
    assert any("known integer" in remark for remark in full.remarks)


def test_a_second_live_process_is_refused(tmp_path):
    with opened(tmp_path), pytest.raises(ap.Refused, match="Another live process"):
        opened(tmp_path)
    opened(tmp_path).close()


@pytest.mark.parametrize(
    "change",
    [{"leaves": [(3, 2), (6,)]}, {"examples": 41}, {"dtype": "float64"}, {"plan": plan_for(STRATEGIES["blt"])}],
)
def test_resuming_with_anything_changed_is_refused(tmp_path, change):
    opened(tmp_path).close()
    with pytest.raises(ap.InvalidArgument, match="was created for"):
        opened(tmp_path, **change)


def test_another_secret_is_refused(tmp_path):
    opened(tmp_path).close()
    with pytest.raises(ap.Corrupted, match="not authentic"):
        opened(tmp_path, secret=ap.Secret.insecure(8))


def test_the_directory_keeps_its_own_secret_for_its_owner_only(tmp_path):
    with opened(tmp_path, secret=None) as run:
        first = run.gradient_noise(0)[0]
        run.save()
    path = tmp_path / "private" / "secret"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with opened(tmp_path, secret=None) as run:
        np.testing.assert_array_equal(run.gradient_noise(0)[0], first)
        assert not any("known integer" in remark for remark in run.report().remarks)
    with opened(tmp_path / "another", secret=None) as run:
        assert not np.array_equal(run.gradient_noise(0)[0], first)


def test_a_new_run_does_not_use_a_secret_that_it_finds(tmp_path):
    """Whoever filled the directory knows that secret, and could subtract the noise."""
    (tmp_path / "private").mkdir(mode=0o700)
    known = ap.Secret.generate()
    known.save(tmp_path / "private" / "secret")
    plan = plan_for(STRATEGIES["toeplitz"])
    with opened(tmp_path, plan, secret=None) as run:
        expected = ap.NoiseStream(plan, LEAVES, known, run.run_id).next()
        assert not np.array_equal(run.gradient_noise(0)[0], expected[0])
    assert ap.Secret.load(tmp_path / "private" / "secret") != known


def test_a_closed_run_states_no_epsilon(tmp_path):
    """Its object does not know the steps that were taken after it was closed."""
    first = opened(tmp_path)
    first.batch(0)
    first.gradient_noise(0)
    first.commit(0, bytes(32))
    first.close()
    with opened(tmp_path) as run:
        train(run, fresh_model(), STEPS)
        run.publish("all")
        with pytest.raises(ap.Refused, match="closed"):
            first.report()


def test_a_report_is_about_one_state_while_another_thread_commits(tmp_path, monkeypatch):
    """The accounting can take seconds; steps and publications of that time belong to the next report."""
    with opened(tmp_path) as run:
        train(run, fresh_model(), 3)
        expected = run.report()
        accounted = privacy_report.guarantee_after

        def meanwhile(*args, **named):
            train(run, fresh_model(), STEPS)
            run.publish("all")
            return accounted(*args, **named)

        monkeypatch.setattr(privacy_report, "guarantee_after", meanwhile)
        assert run.report() == expected
        assert run.committed == STEPS


def test_a_report_prints_its_epsilon_rounded_up(tmp_path):
    with opened(tmp_path) as run:
        assert "no step was taken" in str(run.report())
        train(run, fresh_model(), STEPS)
        run.publish("all")
        found = run.report()
    lines = dict(line.split(": ", 1) for line in str(found).split("\n"))
    assert found.guarantee.value <= float(lines["privacy spent"].split()[1]) < found.guarantee.value + 1e-4
    assert lines["published"] == f"all (after step {STEPS})"


@pytest.mark.parametrize("name", ["plan", "directory", "run_id"])
def test_what_a_run_is_cannot_be_assigned(tmp_path, name):
    with opened(tmp_path) as run, pytest.raises(AttributeError):
        setattr(run, name, getattr(run, name))


def test_public_part_holds_neither_batches_nor_secrets(tmp_path):
    with opened(tmp_path, secret=None) as run:
        train(run, fresh_model(), STEPS)
        run.publish("all")
        batches = [run.batch(step) for step in range(STEPS)]
    public = (tmp_path / "public" / "ledger.jsonl").read_text() + (tmp_path / "run.json").read_text()
    private = (tmp_path / "private" / "ledger.jsonl").read_text()
    for word in ("size", "indices"):
        assert word in private
        assert word not in public
    stored = dict(line.split(": ") for line in (tmp_path / "private" / "secret").read_text().splitlines()[1:])
    assert len(bytes.fromhex(stored["key"])) == 32
    assert stored["key"] not in public
    for indices, mask in batches:
        content = hashlib.sha256(np.asarray(indices[mask], "<i8").tobytes()).hexdigest()
        assert content in private
        assert content not in public


EXTENDED = ["identity", "toeplitz", "blt", "banded-inverse", "tree"]


@pytest.mark.parametrize("name", EXTENDED)
def test_an_extended_run_goes_on_with_the_same_noise(tmp_path, name):
    plan = plan_for(STRATEGIES[name])
    longer = plan.extend(20)
    assert longer.guarantee.value > plan.guarantee.value
    with opened(tmp_path, plan) as run:
        run.batch(0)
        before = [run.gradient_noise(0)]
        for step in range(STEPS - 1):
            run.commit(step, bytes(32))
            run.batch(step + 1)
            before.append(run.gradient_noise(step + 1))
        run.save()
        run_id = run.run_id
    with opened(tmp_path, longer) as run:
        assert run.run_id == run_id
        rows = ap.NoiseStream(longer, LEAVES, SECRET, run_id)
        whole = [rows.next() for _ in range(20)]
        for step in range(STEPS - 1, 20):
            run.batch(step)
            np.testing.assert_array_equal(run.gradient_noise(step)[0], whole[step][0])
            run.commit(step, bytes(32))
        for step in range(STEPS - 1):
            np.testing.assert_array_equal(before[step][0], whole[step][0])
        assert run.report().steps_run == 20
    with opened(tmp_path, longer) as run:
        assert run.committed == 20
    with pytest.raises(ap.InvalidArgument, match="already has a plan of 20 steps"):
        opened(tmp_path, plan)


def test_a_closed_tree_cannot_be_extended(tmp_path):
    plan = plan_for(STRATEGIES["tree"])
    with opened(tmp_path, plan) as run:
        train(run, fresh_model(), STEPS)
    with pytest.raises(ap.Refused, match="can no longer be extended"):
        opened(tmp_path, plan.extend(20))


@pytest.mark.parametrize("name", ["banded", "stamped"])
def test_a_matrix_that_depends_on_the_steps_cannot_be_extended(name):
    with pytest.raises(ap.Refused, match="cannot be extended"):
        plan_for(STRATEGIES[name]).extend(20)


def test_a_run_whose_ledger_cannot_be_written_lets_others_in(tmp_path, monkeypatch):
    run = opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(
            type(run._journal.ledger), "keep", lambda ledger: (_ for _ in ()).throw(OSError("no space left"))
        )
        with pytest.raises(OSError, match="no space left"):
            run.close()
    opened(tmp_path).close()


def test_a_digest_must_be_one(tmp_path):
    with opened(tmp_path) as run, pytest.raises(ap.InvalidArgument, match="32 bytes"):
        run.commit(0, "abc")


def test_a_run_without_examples_has_no_batches(tmp_path):
    with opened(tmp_path, examples=None) as run:
        run.gradient_noise(0)
        run.commit(0, bytes(32))
        with pytest.raises(ap.InvalidArgument, match="without the number of examples"):
            run.batch(0)
