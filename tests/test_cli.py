"""The command line: data on stdout, messages on stderr, errors without a traceback."""

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

with warnings.catch_warnings():  # typer before 0.21, which Flower asks for, uses a name that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

import antiphase as ap
from antiphase._bound import rounded_up
from antiphase._cli import demo
from antiphase._cli.app import app
from antiphase._run import privacy_report

COMMANDS = [
    *("demo", "plan", "explore", "account", "verify", "report", "audit", "reproduce", "bench", "doctor", "flower"),
]
PROBLEM = ["--steps", "24", "--epsilon", "2", "--delta", "1e-5"]
DATA = ["--examples", "600", "--batch-size", "100"]
FEW = ["--families", "identity,toeplitz"]


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    assert run("plan", *PROBLEM, *DATA, *FEW, "--output", str(path)).exit_code == 0
    return path


@pytest.fixture
def run_directory(plan_file, tmp_path):
    import numpy as np

    plan = ap.Plan.load(plan_file)
    with ap.Run.open(plan, tmp_path / "run", leaves=[(3,)], examples=600) as opened:
        for step in range(5):
            opened.batch(step)
            opened.commit(step, ap.digest([opened.gradient_noise(step)[0] + np.float32(step)]))
        opened.publish("half of it")
    return tmp_path / "run"


def test_plan_prints_json_and_nothing_else():
    result = run("plan", *PROBLEM, *DATA, *FEW, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    found = ap.from_json({key: value for key, value in data.items() if key != "fingerprint"})
    assert found.fingerprint == data["fingerprint"]
    assert found.guarantee.value <= 2.0
    others = [c["error"] for c in data["candidates"][1:]]  # the first may have more error, but needs less memory
    assert others == sorted(others)


def test_plan_puts_noise_on_a_lattice():
    asked = ("plan", *PROBLEM, *DATA, *FEW, "--participation", "fixed-epochs", "--lattice")
    data = json.loads(run(*asked, "--parameters", "1000", "--json").stdout)
    assert data["problem"]["lattice"] is True
    assert data["mechanism"]["lattice"]["entries"] == 1000
    assert "parameters" in run(*asked).stderr


def test_plan_ranks_for_training_unless_asked_otherwise():
    usual, faster, over_steps = (
        run("plan", *PROBLEM, *DATA, *FEW, "--participation", "fixed-epochs", *more).stdout
        for more in ([], ["--learning-rate", "0.5"], ["--objective", "rms"])
    )
    assert "at the end of training" in usual
    assert "curvature x learning rate is" in " ".join(usual.split())
    assert "0.0005 to 0.15" in re.sub(r"\s+", " ", faster)
    assert "rms over the steps" in re.sub(r"\s+", " ", over_steps)
    assert "rms error" not in over_steps.split("front")[0]


def test_plan_shows_the_choice_the_promise_and_the_file(plan_file):
    result = run("plan", *PROBLEM, *DATA, *FEW, "--output", str(plan_file))
    found = ap.Plan.load(plan_file)
    lines = result.stdout.splitlines()
    assert any(line.startswith("plan ") and found.candidates[0].name in line for line in lines)
    assert any(line.startswith("guarantee ") and "epsilon" in line and "delta 1e-05" in line for line in lines)
    assert found.fingerprint in result.stdout
    assert result.stderr == f"wrote {plan_file}\n"
    assert all(line == line.rstrip() for line in lines)


def test_plan_lists_what_is_worth_it_or_everything():
    short, long = run("plan", *PROBLEM, *DATA, *FEW).stdout, run("plan", *PROBLEM, *DATA, *FEW, "--all").stdout
    assert "more candidates with --all" in short
    assert "more were tried" not in long
    assert len(long.splitlines()) > len(short.splitlines())


def test_memory_of_machines_is_a_number_of_copies():
    """McKenna 2024, Example 3.2, with a model of 128 million parameters."""
    million = str(128 << 20)
    result = run(
        "plan", *PROBLEM, *DATA, *FEW, "--memory-gb", "1", "--parameters", million, "--machines", "64", "--json"
    )
    assert json.loads(result.stdout)["problem"]["memory_copies"] == 128
    assert "hold 128 copies" in result.stderr


def test_account_for_another_delta_and_fewer_steps(plan_file):
    plan = ap.Plan.load(plan_file)
    whole = json.loads(run("account", str(plan_file), "--json").stdout)
    assert whole["epsilon"] == plan.guarantee.value
    part = json.loads(run("account", str(plan_file), "--steps", "6", "--delta", "1e-7", "--json").stdout)
    assert part["epsilon"] == ap.epsilon(plan.mechanism.first(6), 1e-7).value
    assert rounded_up(plan.guarantee.value, 6) in run("account", str(plan_file)).stdout


def test_delta_is_printed_rounded_up(tmp_path):
    """1.0000049e-5 was printed as 1e-05, at which epsilon is larger than the one beside it."""
    mechanism = ap.Mechanism(ap.strategies.Identity(4), ap.EveryStep(), 0.02)
    delta = 1.0000049e-5
    problem = ap.Problem(4, ap.Budget(1e5, delta), participation=ap.EveryStep())
    path = tmp_path / "plan.json"
    ap.Plan(problem, mechanism, ap.epsilon(mechanism, delta), 1.0).save(path)
    for command in ("account", "verify"):
        lines = run(command, str(path)).stdout.splitlines()
        (printed,) = [line.split()[1] for line in lines if line.startswith("delta ")]
        assert delta <= float(printed) <= 1.00001e-5
    planned = run("plan", "--steps", "4", "--epsilon", "2", "--delta", str(delta), *DATA, *FEW).stdout
    assert planned.count("at delta 1.00001e-05") == 2


def test_verify_finds_a_plan_and_a_run_in_order(plan_file, run_directory):
    before = {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()}
    result = run("verify", str(plan_file), str(run_directory), "--json")
    assert result.exit_code == 0
    plan, found = json.loads(result.stdout)
    assert plan["verified"]
    assert found["verified"]
    assert found["steps"] == "5 of 24"
    assert found["epsilon of what ran"] < found["epsilon"]
    assert found["batches"].startswith("5 redrawn")
    assert found["published"] == ["half of it (after step 5)"]
    assert {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()} == before
    assert "verified" in run("verify", str(run_directory)).stdout


@pytest.mark.parametrize("share", [1.0, pytest.param(0.9, marks=pytest.mark.integration)])
def test_a_guarantee_that_rests_on_sampling_is_verified_with_fresh_samples(tmp_path, share):
    """And one for a tenth less noise is refused.

    The plan states epsilon 2.1 for noise that is enough for 2: fresh samples then miss the claim by chance only when
    they lie 20 standard errors off.
    """
    strategy, bins, budget = ap.strategies.Toeplitz([1.0, 0.5], 12), ap.BallsInBins(3, 4), ap.Budget(2.1, 1e-5)
    found = ap.calibrate(strategy, bins, ap.Budget(2.0, 1e-5))
    assert found.guarantee.kind == "confident"
    mechanism, stated = (
        ap.Mechanism(strategy, bins, share * found.mechanism.noise_std),
        replace(found.guarantee, value=2.1),
    )
    ap.Plan(ap.Problem(12, budget, participation=bins), mechanism, stated, 1.0).save(tmp_path / "plan.json")
    result = run("verify", str(tmp_path / "plan.json"), "--json")
    if share < 1.0:
        assert result.exit_code == 1
        assert "its mechanism gives" in result.stderr
    else:
        assert json.loads(result.stdout)[0]["basis"].startswith("verified just now")


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """A run of 12 steps that stopped after 4, whose epsilon comes from samples."""
    strategy, bins, budget = ap.strategies.Toeplitz([1.0, 0.5], 12), ap.BallsInBins(3, 4), ap.Budget(2.1, 1e-5)
    found = ap.calibrate(strategy, bins, ap.Budget(2.0, 1e-5))
    problem = ap.Problem(12, budget, participation=bins)
    plan = ap.Plan(problem, found.mechanism, replace(found.guarantee, value=2.1), 1.0)
    directory = tmp_path_factory.mktemp("stopped") / "run"
    with ap.Run.open(plan, directory, leaves=[(3,)], examples=40) as opened:
        for step in range(4):
            opened.batch(step)
            opened.commit(step, ap.digest(opened.gradient_noise(step)))
    return directory


@pytest.mark.integration
def test_the_epsilon_of_an_early_stop_has_entropy_of_its_own(stopped_run, tmp_path):
    """Not that of the plan, which anyone could read before the run stopped, and the same in every report."""
    with ap.Run.open(ap.Plan.load(stopped_run / "plan.json"), stopped_run, leaves=[(3,)], examples=40) as opened:
        first, again, plan = opened.report().guarantee, opened.report().guarantee, opened.plan
    assert first == again
    assert first.kind == "confident"
    assert len(first.entropy) == 64
    assert first.entropy != plan.guarantee.entropy
    fresh = ap.epsilon(plan.mechanism.first(4), 1e-5)
    assert first.value == pytest.approx(fresh.value, rel=0.02)
    with ap.Run.open(plan, tmp_path / "other", leaves=[(3,)], examples=40) as opened:
        for step in range(4):
            opened.batch(step)
            opened.commit(step, ap.digest(opened.gradient_noise(step)))
        other = opened.report().guarantee
    assert other.entropy != first.entropy


@pytest.mark.integration
@pytest.mark.parametrize("share", [1.05, 0.8])
def test_the_epsilon_of_an_early_stop_is_verified_with_fresh_samples(stopped_run, monkeypatch, share):
    """A report that was lucky with its samples states too small an epsilon: fresh samples do not confirm it.

    With 5% more than the epsilon of the first steps, fresh samples confirm it but for a negligible probability.
    """
    true = privacy_report.epsilon_after

    def stated(*args):
        found = true(*args)
        return replace(found, value=share * found.value)

    monkeypatch.setattr(privacy_report, "epsilon_after", stated)
    result = run("verify", str(stopped_run), "--json")
    if share < 1.0:
        assert result.exit_code == 1
        assert "--attempt 2" in result.stderr
    else:
        (found,) = json.loads(result.stdout)
        assert found["steps"] == "4 of 12"
        assert found["epsilon of what ran"] < 0.9 * found["epsilon"]
        assert found["basis of what ran"].startswith("verified just now with fresh random samples")


def damage_ledger(directory):
    path = directory / "public" / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))


def damage_plan(directory):
    path = directory / "plan.json"
    data = json.loads(path.read_text())
    data["plan"]["mechanism"]["noise_std"] *= 0.99
    path.write_text(json.dumps(data))


def damage_header(directory):
    path = directory / "run.json"
    path.write_text(path.read_text().replace("600", "601"))


def damage_private_ledger(directory):
    path = directory / "private" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"size":', b'"size":1'))


@pytest.mark.parametrize("damage", [damage_ledger, damage_plan, damage_header, damage_private_ledger])
def test_verify_refuses_what_was_changed(run_directory, damage):
    damage(run_directory)
    result = run("verify", str(run_directory))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "hint: " in result.stderr


def test_verify_notices_batches_from_elsewhere(plan_file, tmp_path, monkeypatch):
    """A run whose ledger is authentic, but whose batches are not the sampler's."""
    plan = ap.Plan.load(plan_file)
    with ap.Run.open(plan, tmp_path / "other", leaves=[(3,)], examples=600) as opened:
        true = ap.Run._batch
        monkeypatch.setattr(ap.Run, "_batch", lambda self, step: true(self, step + 1))
        opened.batch(0)
        opened.commit(0, ap.digest(opened.gradient_noise(0)))
        monkeypatch.undo()
    result = run("verify", str(tmp_path / "other"))
    assert result.exit_code == 1
    assert "not the one that the sampler draws" in result.stderr


def test_bench_measures(plan_file):
    data = json.loads(run("bench", str(plan_file), "--parameters", "100", "--no-replan", "--json").stdout)
    assert data["parameters"] == 100
    assert min(data["noise_seconds"], data["floor_seconds"], data["batch_seconds"]) > 0.0
    assert "independent noise" in run("bench", str(plan_file), "--parameters", "100", "--no-replan").stdout


WRONG = {
    "a plan that is not there": ["account", "nowhere.json"],
    "a directory without a run": ["verify", "/"],
    "a batch larger than the data": ["plan", *PROBLEM, "--examples", "10", "--batch-size", "11"],
    "no data": ["plan", *PROBLEM],
    "an unknown family": ["plan", *PROBLEM, *DATA, "--families", "magic"],
    "an unknown pipeline": ["plan", *PROBLEM, *DATA, "--participation", "magic"],
    "an unknown objective": ["plan", *PROBLEM, *DATA, "--objective", "mean"],
    "memory without a model": ["plan", *PROBLEM, *DATA, "--memory-gb", "1"],
    "a file that cannot be written": ["plan", *PROBLEM, *DATA, *FEW, "--output", "/no/such/directory/plan.json"],
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_is_its_message_and_hint(case):
    result = run(*WRONG[case])
    assert result.exit_code == 1
    assert result.stdout == ""
    message, blank, hint = result.stderr.rstrip("\n").split("\n")
    assert message.startswith("error: ")
    assert blank == ""
    assert hint.startswith("hint: ")
    assert isinstance(run("--debug", *WRONG[case]).exception, ap.AntiphaseError)


def test_a_file_system_error_is_readable(monkeypatch, tmp_path):
    def fail(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(demo, "compare", fail)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tmp_path}: Permission denied\n\nhint: ")


def test_a_defect_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(demo, "compare", lambda *_: 1 / 0)
    assert isinstance(run("demo").exception, ZeroDivisionError)


def test_version():
    assert run("--version").stdout == f"{ap.__version__}\n"


def test_a_separation_and_pipelines_exclude_each_other():
    options = ["--steps", "10", "--epsilon", "1", "--delta", "1e-6", "--min-separation", "5"]
    result = run("plan", *options, "--participation", "poisson")
    assert result.exit_code == 1
    assert "cannot be combined" in result.stderr


@pytest.mark.parametrize("command", ["account", "audit", "bench", "report", "reproduce", "verify"])
def test_help_says_what_the_argument_is(command):
    assert re.search(r"PATHS? (is a|are) plan|NAMES are", " ".join(run(command, "--help").stdout.split()))


def test_a_wrong_option_is_a_usage_error():
    assert run("demo", "--no-such-option").exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    assert f"Example: antiphase {command}" in " ".join(run(command, "--help").stdout.split())


def test_what_is_compiled_is_said_while_it_is_compiled(capsys):
    """And how long it took, where it took long."""
    import numba

    from antiphase._cli import compilation

    told: list[tuple[str, float]] = []
    with compilation.reported(lambda what, share: told.append((what, share))) as progress:
        progress("planning", 0.25)

        @numba.njit
        def twice(x):
            return 2 * x

        assert twice(2) == 4
    assert told[0] == ("planning", 0.25)
    assert ("compiling once (10 s): twice", 0.25) in told
    with compilation.reported(lambda what, share: None):
        assert twice(3) == 6  # nothing to compile, so nothing is said
    watch = compilation._Watch(lambda what, share: None)
    watch.start("outer")
    watch.start("inner")
    watch.end()
    watch.end()
    assert watch.kernels == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(shell):
    code = f"import sys; sys.argv = ['antiphase', '--show-completion', '{shell}']; import antiphase._cli as c; c.main()"
    # The shell is otherwise that of the process above, which is not the same everywhere.
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert "ANTIPHASE_COMPLETE" in result.stdout


def test_names_are_completed():
    environment = {"_ANTIPHASE_COMPLETE": "complete_bash", "COMP_WORDS": "antiphase plan --participation cyc"}
    result = CliRunner().invoke(app, [], env={**environment, "COMP_CWORD": "3"}, prog_name="antiphase")
    assert "cyclic-poisson" in result.stdout


def test_runs_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "antiphase", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{ap.__version__}\n"
