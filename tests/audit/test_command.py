"""`antiphase audit`, its page, and the section of the report."""

import json
import math
import warnings
from contextlib import suppress

import numpy as np
import pytest

with warnings.catch_warnings():  # typer before 0.21, which Flower asks for, uses a name that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

import antiphase as ap
from antiphase._cli.app import app
from antiphase._run import read_run
from antiphase.audit import Audit, Release, evaluate, release_of_run, simulate
from tests.audit.mechanisms import mechanism, plan_for


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def same_noise(monkeypatch):
    """A simulation makes its own secret. A new one each time would flag a right plan in up to 6 % of all runs."""
    monkeypatch.setattr(ap.Secret, "generate", lambda: ap.Secret.insecure(3))
    monkeypatch.setattr("antiphase._run.opening.fresh_run_id", lambda: "0" * 32)


@pytest.fixture(scope="module")
def plan():
    return plan_for(mechanism("min separation"), examples=400)


@pytest.fixture
def plan_file(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_is_simulated_and_shown(plan_file, tmp_path):
    result = run("audit", plan_file, "--canaries", 200, "--output", tmp_path / "a.json", "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "nothing that contradicts" in result.stdout
    page = (tmp_path / "a.html").read_text()
    assert "Trade-off curve" in page
    assert "never replaces or improves" in page
    assert "<script" not in page
    assert isinstance(ap.from_json(json.loads((tmp_path / "a.json").read_text())), Audit)


def test_json_has_names_of_its_own(plan_file):
    result = run("audit", plan_file, "--canaries", 200, "--json")
    data = json.loads(result.stdout)
    assert data["flagged"] is False
    assert {"measured_epsilon_at_least", "measured_at_delta"} < set(data["measured"][0])
    assert "epsilon" not in data["measured"][0]


def test_a_run_is_audited_with_its_own_leaves_and_batches(plan, tmp_path):
    with ap.Run.open(plan, tmp_path / "run", leaves=[(40, 20), (300,)], examples=400):
        pass
    result = run("audit", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "simulation of run" in result.stdout


def test_lattice_noise_is_audited_in_units_of_the_clipping_norm(tmp_path):
    problem = ap.Problem(
        steps=6,
        budget=ap.Budget(4.0, 1e-5),
        participation=ap.MinSeparation(2),
        clip_norm=3.0,
        examples=400,
        lattice=True,
        parameters=1000,
    )
    lattice = ap.plan(problem, families=["toeplitz"]).mechanism.lattice
    strategy = ap.strategies.Toeplitz([1.0, 0.5], 6)
    given = ap.Mechanism(strategy, problem.participation, 4.0, lattice=lattice)
    plan = ap.Plan(problem, given, ap.epsilon(given, 1e-5), error=1.0)
    plan.save(tmp_path / "plan.json")
    with ap.Run.open(plan, tmp_path / "run", leaves=[(1000,)], examples=400):
        pass
    for path, canaries in (("plan.json", 400), ("plan.json", 2000), ("run", 400)):  # 2000: more than the parameters
        result = run("audit", tmp_path / path, "--canaries", canaries, "--json")
        assert result.exit_code == 0, result.output
        scale = json.loads(result.stdout)["tests"][0]["measured_scale"]
        assert abs(scale - 1.0) < 6.0 / math.sqrt(2 * 6 * 256)  # at least 256 directions without contributions


def test_the_audit_of_a_run_contains_neither_its_noise_nor_its_batches(tmp_path):
    """Whoever knows a number computed from the noise can test which data set fits the released sums exactly."""
    poisson = ap.Mechanism(ap.strategies.Identity(30), ap.Poisson(0.3), noise_std=2.0)
    with ap.Run.open(plan_for(poisson, examples=400), tmp_path / "run", leaves=[(1500,)], examples=400) as own:
        noise, batches = [], np.zeros((30, 400), dtype=bool)
        for step in range(30):
            noise.append(own.gradient_noise(step)[0])
            batches[step, own.batch(step).indices] = True
            own.commit(step, own.digest(step, noise[-1:]))
    found = release_of_run(read_run(tmp_path / "run"))
    assert found is not None
    assert found.quiet.shape == (30, 1100)
    audited = (found.projections - found.taking_part * found.present) / 2.0
    values, others = np.concatenate([audited, found.quiet / 2.0], axis=1), np.stack(noise) / 2.0
    assert abs((values * others).sum()) < 6.0 * math.sqrt(values.size)  # false alarms: 2e-9, if independent
    agree = (found.taking_part == batches).mean()
    assert abs(agree - (0.3**2 + 0.7**2)) < 6.0 * math.sqrt(0.25 / batches.size)


def test_a_contradiction_is_exit_code_1(plan, plan_file, tmp_path):
    right = simulate(plan.mechanism, canaries=400, secret=ap.Secret.insecure(1))
    wrong = Release(right.projections, right.present, right.taking_part, 0.9 * right.quiet, right.signs)
    wrong.save(tmp_path / "released.npz")
    result = run("audit", plan_file, "--released", tmp_path / "released.npz")
    assert result.exit_code == 1
    assert "contradicts the claim" in result.stdout


def test_the_report_has_a_section(plan, plan_file, tmp_path):
    found = evaluate(plan, simulate(plan.mechanism, canaries=200, secret=ap.Secret.insecure(2)))
    audit = tmp_path / "audit.json"
    audit.write_text(json.dumps(ap.to_json(found)))
    for kind, words in (("html", 'id="measured"'), ("md", "## Measured"), ("json", '"measured"')):
        without = run("report", plan_file, "--format", kind, "--output", tmp_path / f"0.{kind}")
        result = run("report", plan_file, "--format", kind, "--audit", audit, "--output", tmp_path / f"1.{kind}")
        assert (without.exit_code, result.exit_code) == (0, 0), result.output
        assert words in (tmp_path / f"1.{kind}").read_text()
        assert words not in (tmp_path / f"0.{kind}").read_text()


def test_an_audit_of_another_plan_is_refused(plan, plan_file, tmp_path):
    other = plan_for(mechanism("every step"))
    found = evaluate(other, simulate(other.mechanism, canaries=200, secret=ap.Secret.insecure(2)))
    (tmp_path / "audit.json").write_text(json.dumps(ap.to_json(found)))
    result = run("report", plan_file, "--audit", tmp_path / "audit.json", "--output", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "different plan" in result.stderr


@pytest.mark.parametrize("name", ["min separation", "balls in bins"])
def test_a_report_does_not_repeat_a_claim_that_its_plan_does_not_have(name, tmp_path):
    plan = plan_for(mechanism(name), examples=400)
    plan.save(tmp_path / "plan.json")
    data = ap.to_json(evaluate(plan, simulate(plan.mechanism, canaries=200, secret=ap.Secret.insecure(3))))
    for share, expected in ((1.0, 0), (0.9, 1)):
        data["claim"]["value"] = share * plan.guarantee.value
        (tmp_path / "audit.json").write_text(json.dumps(data))
        result = run("report", tmp_path / "plan.json", "--audit", tmp_path / "audit.json", "--format", "md")
        assert result.exit_code == expected, result.output
        assert ("The audit claims epsilon" in result.output) == bool(expected)


def test_a_damaged_audit_and_release_are_refused(plan_file, tmp_path):
    (tmp_path / "audit.json").write_text('{"type": "Audit", "subject": ')
    assert run("report", plan_file, "--audit", tmp_path / "audit.json").exit_code == 1
    (tmp_path / "released.npz").write_bytes(b"not a release")
    assert run("audit", plan_file, "--released", tmp_path / "released.npz").exit_code == 1


def test_every_damaged_release_is_refused_with_its_name(plan, plan_file, tmp_path):
    """NumPy and zipfile raise errors of many types for damaged files. None of them is shown as a traceback."""
    simulate(plan.mechanism, canaries=40, secret=ap.Secret.insecure(1)).save(tmp_path / "released.npz")
    content, rng = (tmp_path / "released.npz").read_bytes(), np.random.default_rng(1)
    damaged = tmp_path / "damaged.npz"
    for _ in range(300):
        changed = bytearray(content[: rng.integers(len(content))] if rng.random() < 0.2 else content)
        for at in rng.integers(len(changed), size=2) if changed else []:
            changed[at] = rng.integers(256)
        damaged.write_bytes(changed)
        with suppress(ap.Corrupted):
            Release.load(damaged)
    damaged.write_bytes(b"")
    np.save(tmp_path / "array.npy", np.zeros(3))
    for path in (damaged, tmp_path / "array.npy"):
        result = run("audit", plan_file, "--released", path)
        assert result.exit_code == 1
        assert f"{path.name} is not a saved release" in " ".join(result.output.split())


WRONG_RELEASES = {
    "projections": np.full((16, 40), np.nan),
    "quiet": np.full((16, 10), np.inf),
    "signs": np.ones(3),
    "signs of another size": np.full(16, 2.0),
    "replayed": math.nan,
}


@pytest.mark.parametrize("name", WRONG_RELEASES)
def test_a_release_with_numbers_that_cannot_be_tested_is_refused(name):
    given = {"projections": np.zeros((16, 40)), "present": np.arange(40) % 2, "taking_part": np.ones((16, 40))}
    given |= {"quiet": np.zeros((16, 10)), name.split()[0]: WRONG_RELEASES[name]}
    with pytest.raises(ap.InvalidArgument, match=f"'{name.split()[0]}' parameter of Release"):
        Release(**given)


def test_a_black_box_audit_says_what_it_did_not_test(plan_file, tmp_path):
    result = run("audit", plan_file, "--canaries", 200, "--black-box", "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "were not tested" in " ".join(result.output.split())
    found = json.loads(run("audit", plan_file, "--canaries", 200, "--black-box", "--json").stdout)
    assert found["tests"] == []
    assert not found["flagged"]
    assert "were not tested" in (tmp_path / "a.html").read_text()
