"""What integrations need from a run: noise of only one source, and entries for outputs dropped before the commit."""

import pytest

import antiphase as ap
from antiphase._run import integration
from tests.run.plans import LEAVES, STRATEGIES, fresh_model, plan_for, train

SECRET = ap.Secret.insecure(7)
DEVICE = "a generator on a device, version 1"


def opened(directory):
    plan = plan_for(STRATEGIES["toeplitz"])
    return ap.Run.open(plan, directory, leaves=LEAVES, examples=40, secret=SECRET)


def step_on_device(run, step, source=DEVICE):
    run.batch(step)
    integration.record_noise_read(run, source, step)
    run.commit(step, bytes([step]) * 32)


def test_a_run_from_a_device_never_gives_noise_of_the_host(tmp_path):
    with opened(tmp_path) as run:
        integration.set_noise_source(run, DEVICE)
        with pytest.raises(ap.Refused, match="a different source"):
            run._unit_noise(0)
        step_on_device(run, 0)
    with opened(tmp_path) as run:  # by someone who does not know
        for step in (0, 1):
            with pytest.raises(ap.Refused, match="a different source: a generator on a device"):
                run._unit_noise(step)
        with pytest.raises(ap.Refused, match="noise has not been read"):
            run.commit(1, bytes(32))
        assert any("not made by AES" in remark and DEVICE in remark for remark in run.report().remarks)
        run.save()


@pytest.mark.parametrize("other", ["host", "a generator on a device, version 2"])
def test_a_source_is_kept_to(tmp_path, other):
    with opened(tmp_path) as run:
        step_on_device(run, 0)
    with opened(tmp_path) as run:
        with pytest.raises(ap.Refused, match="started with noise from a different source"):
            integration.set_noise_source(run, other)
        step_on_device(run, 1)
        assert run.committed == 2


def test_a_run_begun_on_the_host_stays_there(tmp_path):
    with opened(tmp_path) as run:
        run.batch(0)
        run._unit_noise(0)
        with pytest.raises(ap.Refused, match="a different source: host"):
            integration.set_noise_source(run, DEVICE)
        run.commit(0, bytes(32))
    with opened(tmp_path) as run:
        for act in (integration.set_noise_source, lambda *given: integration.record_noise_read(*given, 0)):
            with pytest.raises(ap.Refused, match="a different source: host"):
                act(run, DEVICE)
        integration.set_noise_source(run, "host")
        with pytest.raises(ap.Refused, match="must be read from the run"):
            integration.record_noise_read(run, "host", 1)
        train(run, fresh_model(), 3)
        assert not any("AES" in remark for remark in run.report().remarks)


def test_the_source_is_authenticated(tmp_path):
    with opened(tmp_path) as run:
        step_on_device(run, 0)
    path = tmp_path / "public" / "ledger.jsonl"
    path.write_text(path.read_text().replace("version 1", "version 2"))
    with pytest.raises(ap.Corrupted):
        opened(tmp_path)


class Given:
    """Noise of an integration, which records how it is read."""

    def __init__(self):
        self.read_steps, self.saved = set(), 0

    def read(self, step):
        self.read_steps.add(step)
        return [f"noise of {step}"]

    def save(self):
        self.saved += 1


def test_a_run_reads_noise_from_the_replay_that_it_is_given(tmp_path):
    replay = Given()
    with opened(tmp_path) as run:
        integration.set_noise_source(run, DEVICE, replay)
        run.batch(0)
        assert run._unit_noise(0) == ["noise of 0"]
        with pytest.raises(ap.Refused, match="cannot be taken"):
            run._unit_noise(1)
        run.commit(0, bytes(32))
        run.save()
    assert replay.saved == 1


def test_an_output_dropped_before_its_commit_is_recorded(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 2)
        run._unit_noise(2)
        with pytest.raises(ap.Refused, match="not committed"):
            run.publish("model")
        integration.record_withdrawal(run, 2)
        run.publish("model")  # of the two steps that are committed
        with pytest.raises(ap.Refused, match="next step is 2"):
            integration.record_withdrawal(run, 3)
    with opened(tmp_path) as run:
        report = run.report()
        assert (report.rewinds, report.steps_run) == (1, 2)
        assert any("replaced 1 time" in remark for remark in report.remarks)


def test_what_an_integration_may_know(tmp_path):
    with opened(tmp_path) as run:
        assert integration.secret_of(run) == SECRET
        assert [leaf.global_shape for leaf in integration.leaves_of(run).values()] == LEAVES
        assert (integration.dtype_of(run), integration.examples_of(run)) == ("float32", 40)


def test_steps_read_again_are_committed_again_before_anything_else(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 3)
        for step in (0, 1, 3):
            run._unit_noise(step)
        for act in (lambda: run.commit(3, bytes(32)), lambda: run.publish("model")):
            with pytest.raises(ap.Refused, match="committed"):
                act()
        model = train(run, fresh_model(), 2, start=0)
        with pytest.raises(ap.Refused, match="step 3 was read"):
            run.publish("model")
        train(run, train(run, model, 3, start=2), 4)
        run.publish("model")
        assert (run.committed, run.report().rewinds) == (4, 0)
        run.batch(1)
        run._unit_noise(1)
        with pytest.raises(ap.Refused, match=r"not committed again: \[1\]"):
            run.publish("model")
    with opened(tmp_path) as run:  # what a process that ended had read is forgotten
        run.publish("model")


def test_steps_read_ahead_of_a_rewind_can_be_taken(tmp_path):
    with opened(tmp_path) as run:
        train(run, fresh_model(), 4)
        for step in (2, 3):
            run.batch(step)
            run._unit_noise(step)
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            model = train(run, fresh_model(), 1, start=0, data_seed=1)
        assert run.committed == 1
        train(run, model, 5)
        run.publish("model")


def test_a_run_killed_while_it_was_extended_says_how_to_go_on(tmp_path):
    plan = plan_for(STRATEGIES["toeplitz"])
    with opened(tmp_path) as run:
        train(run, fresh_model(), 2)
    short = (tmp_path / "plan.json").read_bytes()
    options = {"leaves": LEAVES, "examples": 40, "secret": SECRET}
    ap.Run.open(plan.extend(20), tmp_path, **options).close()
    (tmp_path / "plan.json").write_bytes(short)  # as if it had ended before the file was written
    with pytest.raises(ap.Corrupted, match="open the run with the extended plan"):
        opened(tmp_path)
    with ap.Run.open(plan.extend(20), tmp_path, **options) as run:
        assert (run.steps, run.committed) == (20, 2)


def test_lineages_tell_the_outputs_in_the_ledger_from_replaced_ones(tmp_path):
    def take(run, step, lineage):
        run.batch(step)
        run._unit_noise(step)
        integration.commit_with_lineage(run, step, lineage * 2, lineage)

    old, new = bytes(16), bytes([1]) * 16
    with opened(tmp_path) as run:
        integration.check_lineage(run, 0, new)  # begun, and before anything is committed begun otherwise
        integration.check_lineage(run, 0, old)
        take(run, 0, old)
        take(run, 1, old)
        integration.check_lineage(run, 2, old)
        with pytest.warns(RuntimeWarning, match="another one with the same noise"):
            take(run, 0, new)
        take(run, 1, new)
        assert old.hex() not in (tmp_path / "public" / "ledger.jsonl").read_text()  # keyed, as digests are
    with opened(tmp_path) as run:
        for step in (1, 2):
            integration.check_lineage(run, step, new)
            with pytest.raises(ap.Refused, match=f"for the first {step} steps"):
                integration.check_lineage(run, step, old)
        integration.check_lineage(run, 0, old)
        with pytest.raises(ap.Refused, match="started with different parameters"):
            integration.check_lineage(run, 0, new)
        run.batch(2)
        run._unit_noise(2)
        run.commit(2, bytes(32))  # by hand, without a lineage
        integration.check_lineage(run, 3, old)
        assert run.report().rewinds == 1
