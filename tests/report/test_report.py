"""What a report says is what the accountant says, in words, numbers and every form."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

import antiphase as ap
from antiphase._participation import Participation
from antiphase._report import gather, html, json_data, markdown, read
from antiphase._report.reading import ReportSource
from antiphase._report.statement import headline, statement
from antiphase._report.what_if import more_steps, smaller_separation
from antiphase.strategies import BLT, Identity, Toeplitz, Tree
from tests.report.cases import STEPS, command, made_plan, made_run, searched_plan, with_less_noise

# What bandmf-amplified App. K.1 asks of a report.
CHECKLIST = {
    "Setting",
    "Data accesses covered",
    "Outputs covered",
    "Unit of privacy",
    "Neighbouring data sets",
    "Participation assumed",
    "Accounting",
    "Kind of bound",
    "Noise",
    "Bits of releases",
    "Formal statement",
}


@pytest.fixture(scope="module")
def of_plan():
    return gather(ReportSource(searched_plan()))


@pytest.fixture(scope="module")
def of_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    made_run(directory, made_plan(), 10, label="<script>alert(1)</script> & co")
    return gather(read(directory))


def test_the_statement_has_every_item_of_the_checklist(of_plan, of_run):
    assert {term for term, _ in of_plan.statement} == CHECKLIST
    assert {term for term, _ in of_run.statement} == CHECKLIST | {"Published"}
    words = dict(of_run.statement)
    assert "device" in words["Unit of privacy"]
    assert "to zero" in words["Neighbouring data sets"]
    assert "at least 6 steps apart" in words["Participation assumed"]
    assert words["Accounting"].startswith(made_plan().guarantee.method)
    assert "floating point" in words["Bits of releases"]


EVERY = {
    ap.SingleParticipation(): "at most one step",
    ap.EveryStep(): "every step",
    ap.FixedEpochs(3, 5): "after exactly 5 steps",
    ap.ShuffledEpochs(3, 5): "once in each of 3 epochs",
    ap.MinSeparation(7, 2): "at least 7 steps apart, and each user takes part at most 2 times",
    ap.Poisson(0.25): "probability 0.25",
    ap.CyclicPoisson(4, 0.5): "one of 4 groups. The groups take turns",
    ap.FixedSize(2, 3): "draws 3 users of one group",
    ap.BallsInBins(3, 5): "assigned once, at random, to one of the 5 steps of an epoch",
    ap.PoissonMinSeparation(6, 0.1): "not drawn in the previous 5 steps",
}


def test_every_participation_has_words():
    for given, words in EVERY.items():
        assert words in given.describe("user", 15)
    names = {c.__name__ for c in [*Participation.__subclasses__(), *Participation.__subclasses__()[0].__subclasses__()]}
    assert {type(p).__name__ for p in EVERY} == names - {"Deterministic"}


@pytest.mark.parametrize("value", [0.123449999, 1.00001, 3.99995, 4.0])
def test_the_headline_never_states_less_than_was_proved(value):
    plan = made_plan()
    plan = replace(plan, guarantee=replace(plan.guarantee, value=value))
    stated = float(re.search(r"epsilon = ([\d.]+)", headline(ReportSource(plan)))[1])
    assert value <= stated <= value + 1e-4


def test_one_percent_less_noise_would_show():
    plan = made_plan()
    stated = float(re.search(r"epsilon = ([\d.]+)", headline(ReportSource(plan)))[1])
    assert ap.epsilon(with_less_noise(plan, 0.99), 1e-6).value > stated + 1e-3


def test_a_run_is_reported_by_what_ran(of_run):
    plan = made_plan()
    bound = ap.epsilon(plan.mechanism.first(10), 1e-6)
    assert f"epsilon = {math.ceil(bound.value * 1e4) / 1e4:.4f}" in of_run.headline
    # Where the outputs decided when to stop, only the plan's guarantee holds.
    assert f"Otherwise, epsilon is {math.ceil(plan.guarantee.value * 1e4) / 1e4:.4f}." in of_run.headline
    assert any("Stopped after 10 of 24" in text for text in of_run.remarks)
    assert json_data(of_run)["ran"]["publications"] == [{"label": "<script>alert(1)</script> & co", "steps": 10}]
    assert json_data(of_run)["guarantee"]["epsilon"] == bound.value < plan.guarantee.value


def test_a_run_without_steps_states_nothing(tmp_path):
    made_run(tmp_path / "run", made_plan(), 0)
    content = gather(read(tmp_path / "run"))
    assert content.headline == "No step has been taken, so nothing has been released."
    assert json_data(content)["guarantee"] is None
    assert "no guarantee to state" in dict(content.statement)["Formal statement"]


def test_curves_are_those_of_the_accountant(of_plan):
    plan = of_plan.source.plan
    steps, deltas = of_plan.charts["steps"].series[0], of_plan.charts["delta"].series[0]
    assert steps.x[-1] == STEPS
    assert steps.y[-1] == plan.guarantee.value
    assert (np.diff(steps.y) >= 0).all()
    for i in (0, 7, -1):
        assert deltas.y[i] == ap.epsilon(plan.mechanism, deltas.x[i]).value
    assert (np.diff(deltas.y) < 0).all()


def test_error_curves_of_all_candidates(of_plan):
    plan, lines = of_plan.source.plan, of_plan.charts["error"].series
    assert [line.name.removesuffix(" (planned)") for line in lines] == [c.name for c in plan.candidates]
    for line, candidate in zip(lines, plan.candidates, strict=True):
        assert math.sqrt((line.y**2).mean()) == pytest.approx(candidate.rms_error, rel=1e-5)  # 24 steps: not thinned
    families = [c.family for line, c in zip(lines, plan.candidates, strict=True) if not line.faint]
    assert sorted(families) == ["blt", "identity", "toeplitz", "tree"]


def test_candidates_without_a_curve_are_not_drawn_and_that_is_said():
    found = searched_plan()
    bare = replace(found, candidates=[replace(c, per_step=()) for c in found.candidates])
    content = gather(ReportSource(bare))
    assert len(content.charts["error"].series) == 1
    assert any("only the chosen candidate is drawn" in text for text in content.left_out)


def test_what_more_steps_would_cost():
    plan = made_plan()
    found = list(more_steps(plan))
    assert [c.what for c in found[:3]] == [f"{n} steps instead of 24" for n in (30, 36, 48)]
    assert found[0].bound == plan.extend(30).guarantee
    assert found[3].bound == ap.compose([plan.mechanism] * 2, 1e-6)
    assert plan.guarantee.value < found[0].bound.value < found[2].bound.value


def test_what_cannot_be_extended_says_why():
    plan = made_plan(Tree(STEPS, "full"))
    found = list(more_steps(plan))
    assert found[0].bound is None
    assert "cannot be extended" in found[0].reason
    assert found[3].bound is not None


def test_what_a_smaller_separation_would_cost():
    plan = made_plan()
    found = list(smaller_separation(plan))
    assert [c.what.split()[2] for c in found] == ["5", "4", "3"]
    for change, b in zip(found, (5, 4, 3), strict=True):
        expected = ap.epsilon(replace(plan.mechanism, participation=ap.MinSeparation(b)), 1e-6)
        assert change.bound == expected
        assert expected.value >= plan.guarantee.value
    fixed = made_plan(participation=ap.FixedEpochs(4, 6))
    assert next(smaller_separation(fixed)).what == "at least 6 steps apart instead of exactly 6"
    assert list(smaller_separation(made_plan(Identity(STEPS), ap.CyclicPoisson(4, 0.5)))) == []


def test_what_users_wrote_is_shown_as_text(of_run):
    assert "<script>" not in html(of_run)
    assert "&lt;script&gt;alert(1)" in html(of_run)


def test_all_candidates_are_in_every_form(of_plan):
    forms = (html(of_plan), markdown(of_plan), json.dumps(json_data(of_plan)))
    for candidate in of_plan.source.plan.candidates:
        assert all(candidate.name in form for form in forms)


def test_a_long_run_with_a_large_matrix_stays_small():
    rng = np.random.default_rng(0)
    matrix = np.tril(rng.random((256, 256))) + np.eye(256)  # the worst for a picture: nothing repeats
    big = made_plan(ap.strategies.Dense(matrix), ap.FixedEpochs(4, 64))
    assert len(html(gather(ReportSource(big))).encode()) < 1_000_000  # at most 192 cells per side are drawn
    long = made_plan(BLT([0.99, 0.5], [0.1, 0.2], 100_000), ap.MinSeparation(1000))
    content = gather(ReportSource(long))
    assert [heat.matrix.shape for heat in content.heat_maps] == [(512, 512)] * 2
    assert "the first 512 steps" in content.heat_maps[0].title
    np.testing.assert_allclose(content.heat_maps[0].matrix @ content.heat_maps[1].matrix, np.eye(512), atol=1e-9)


def test_matrices_too_large_to_draw_are_said_so():
    content = gather(ReportSource(made_plan(Tree(1500, "full"), ap.MinSeparation(500))))
    assert content.heat_maps == ()
    assert "The matrices are too large to draw." in content.left_out


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_the_command(tmp_path, form):
    path = tmp_path / "plan.json"
    made_plan(Toeplitz([1.0, 0.5], 12)).save(path)
    output = tmp_path / "out"
    result = command("report", path, "--format", form, "--output", output)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    text = output.read_text()
    assert "differentially private" in text
    if form == "json":
        assert json.loads(text)["planned"]["steps"] == 12
    if form != "html":
        assert command("report", path, "--format", form).stdout == text


def test_accounting_by_samples_gives_fewer_points_but_a_curve(monkeypatch):
    from antiphase._report import curves

    monkeypatch.setattr(curves, "SECONDS", 0.0)
    line = curves._curve("x", np.arange(33.0), lambda x: x * x)
    assert line.x.tolist() == [0.0, 8.0, 16.0, 24.0, 32.0]
    np.testing.assert_array_equal(line.y, line.x**2)
    assert (line.x[0], line.x[-1]) == (0.0, 32.0)


@pytest.mark.parametrize(("delta", "clip_norm"), [(1.0000049e-5, 0.30000011), (1e-6, 1.0), (9.9999951e-8, 1234567.0)])
def test_delta_and_the_clipping_norm_are_rounded_up(delta, clip_norm):
    made = made_plan()
    guarantee = ap.epsilon(made.mechanism, delta)
    budget = ap.Budget(max(guarantee.value, made.problem.budget.epsilon), delta)
    problem = replace(made.problem, budget=budget, clip_norm=clip_norm)
    source = ReportSource(ap.Plan(problem, made.mechanism, guarantee, made.error))
    said = dict(statement(source))
    for text in (headline(source), said["Formal statement"]):
        assert delta <= float(re.search(r"delta = ([-+.e\d]+)\)", text)[1]) < 1.00001 * delta
    assert (
        clip_norm <= float(re.search(r"norm at most ([-+.e\d]+)\.$", said["Unit of privacy"])[1]) < 1.00001 * clip_norm
    )


def test_rho_is_stated_for_ideal_noise_alone(tmp_path):
    """The draws of a run are bounded, so that no finite rho holds for it."""
    plan = made_plan()
    made_run(tmp_path / "run", plan, plan.steps)
    for source in (ReportSource(plan), read(tmp_path / "run")):
        said = dict(statement(source))["Formal statement"]
        rho = float(re.search(r"; with ideal Gaussian noise, which is unbounded, rho = ([.\d]+) zCDP\.$", said)[1])
        assert 0.0 <= rho - ap.zcdp(plan.mechanism).value < 1e-6


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_a_number_of_examples_that_readers_can_test_is_said_to_be_public(tmp_path, adjacency):
    """Readers of the ledger who know all else compute its hashes for n and for n - 1 examples."""
    found = {}
    for examples in (48, 47):
        mechanism = ap.Mechanism(Identity(4), ap.Poisson(0.25), 3.0, adjacency)
        guarantee = ap.epsilon(mechanism, 1e-6)
        budget = ap.Budget(max(8.0, guarantee.value), 1e-6)
        problem = ap.Problem(4, budget, examples, participation=ap.Poisson(0.25), adjacency=adjacency, unit="device")
        plan = ap.Plan(problem, mechanism, guarantee, error=1.0)
        ap.Run.open(plan, tmp_path / f"{examples}", leaves=[(2,)], examples=examples).close()
        entry = (tmp_path / f"{examples}" / "public" / "ledger.jsonl").read_text()
        found[examples] = json.loads(entry[: entry.rindex("}") + 1])["plan"]
        assert found[examples] == plan.fingerprint
        said = dict(statement(read(tmp_path / f"{examples}")))["Neighbouring data sets"]
        assert ("number of devices, which the plan and the run were given, counts as public" in said) == (
            adjacency == "add-or-remove"
        )
    assert found[48] != found[47]


def test_every_point_in_the_data_of_a_chart_of_epsilon_holds():
    """The table rounds both numbers up: one to the nearest digit would claim too much for about half of the points."""
    from antiphase._report import curves
    from antiphase._report.tables import chart_table

    plan = made_plan()
    rows = chart_table(curves.by_delta(plan)).rows
    assert len(rows) > 10
    assert all(ap.delta(plan.mechanism, float(eps)).value <= float(delta) for _, delta, eps in rows)
    chart = curves.by_step(plan, None)
    for _, steps, eps in chart_table(chart).rows:
        assert ap.epsilon(plan.mechanism.first(int(steps)), plan.problem.budget.delta).value <= float(eps)
