"""The report: what the record of participations amounts to, against brute force; planning helpers."""

import shutil

import numpy as np
import pytest
from flwr.app import ArrayRecord

import antiphase as ap
from antiphase._bound import rounded_up
from antiphase._federated import Achieved, achieved_mechanism
from antiphase.flower import cohort, extrapolate, report
from tests.flower.federation import (
    SECRET,
    FakeGrid,
    blt,
    epsilon_by_hand,
    federation,
    model,
    participation_by_hand,
    plan_for,
    record_by_hand,
    strategy,
)
from tests.report.cases import command

STEPS = 10
BANDED = ap.strategies.Toeplitz([1.0, 0.6, 0.4, 0.2], STEPS)  # 4 bands
CASES = {
    "blt": (blt(STEPS), 3),
    "banded": (BANDED, 4),
    "banded, columns": (ap.strategies.Banded(BANDED.columns()), 4),
    "separation below the bands": (BANDED, 2),
    "tree": (ap.strategies.Tree(STEPS), 3),
    "identity": (ap.strategies.Identity(STEPS), 2),
}


@pytest.mark.parametrize("stop", [STEPS, 7])
@pytest.mark.parametrize("case", CASES)
def test_epsilon_is_that_of_the_achieved_participation(tmp_path, case, stop):
    """More clients than needed come in random order, so that what is achieved is not what was planned."""
    chosen, separation = CASES[case]
    plan = plan_for(chosen, separation)
    server = strategy(plan, tmp_path / "s", goal=3)
    server.start(federation(tmp_path / "c", 17), model(), num_rounds=stop)
    ran = server.plan.mechanism
    gap, count = participation_by_hand(record_by_hand(tmp_path / "s"))
    found = report(tmp_path / "s", secret=SECRET)
    assert found.achieved == ap.MinSeparation(gap or stop, count)
    assert found.achieved.separation >= separation
    matrix = ap.strategies.Tree(stop).encoder() if case == "tree" else chosen.encoder()[:stop, :stop]
    by_hand = epsilon_by_hand(matrix, gap or stop, count, ran.noise_std, 1e-6)
    assert found.guarantee.value >= by_hand * (1 - 1e-9)
    if found.guarantee.kind == "exact" or ran.lattice is not None:  # the rounding of a small model is negligible
        assert found.guarantee.value == pytest.approx(by_hand, rel=1e-6)
    assert found.guarantee.value <= found.run.guarantee.value * (1 + 1e-9), "less was used than was planned"
    assert found.zcdp.value == pytest.approx(ap.zcdp(mechanism_of(ran, found, stop)).value)


def mechanism_of(ran, found, stop):
    return ap.Mechanism(ran.strategy, found.achieved, ran.noise_std, lattice=ran.lattice).first(stop)


def test_clients_that_come_sooner_than_planned_cost_more_and_the_report_says_so(tmp_path):
    """The plan has 4 bands and separation 4, the server is told to accept 2: the columns of C overlap."""
    plan = plan_for(BANDED, 4)
    strategy(plan, tmp_path / "s", goal=3, separation=2).start(federation(tmp_path / "c", 6), model())
    found = report(tmp_path / "s", secret=SECRET)
    assert found.achieved == ap.MinSeparation(2, 5)
    by_hand = epsilon_by_hand(BANDED.encoder(), 2, 5, 4.0, 1e-6)
    assert found.guarantee.value == pytest.approx(by_hand, rel=1e-6)
    assert found.guarantee.value > plan.guarantee.value * 1.2
    assert any("above the planned" in remark for remark in found.remarks)
    assert found.planned == ap.MinSeparation(4)
    assert found.run.guarantee.value >= found.guarantee.value, "the run directory alone must not promise more"


def test_nobody_twice_is_a_single_participation(tmp_path):
    plan = plan_for(blt(3), 1)
    strategy(plan, tmp_path / "s", goal=2, separation=3).start(federation(tmp_path / "c", 6), model())
    found = report(tmp_path / "s", secret=SECRET)
    single = ap.Mechanism(blt(3), ap.SingleParticipation(), 4.0)
    assert found.guarantee.value == pytest.approx(ap.epsilon(single, 1e-6).value)
    assert "achieved once" in found.statement


def test_the_statement_has_the_epsilon_of_what_was_enforced_beside_that_of_what_happened(tmp_path):
    """Nobody came twice, but clients that looked at the models could have seen to it that somebody did or did not."""
    plan = plan_for(blt(6), 2)
    strategy(plan, tmp_path / "s", goal=2).start(federation(tmp_path / "c", 2), model(), num_rounds=1)
    strategy(plan, tmp_path / "s", goal=2, when_short="release").start(FakeGrid({}), model(), num_rounds=5)
    found = report(tmp_path / "s", secret=SECRET)
    matrix = blt(5).encoder()
    assert found.guarantee.value == pytest.approx(epsilon_by_hand(matrix, 5, 1, 4.0, 1e-6), rel=1e-6)
    enforced = epsilon_by_hand(matrix, 2, 3, 4.0, 1e-6)
    assert enforced > 1.5 * found.guarantee.value
    assert f"enforced participation instead: epsilon = {rounded_up(enforced)}." in found.statement


def test_group_of_devices(tmp_path):
    strategy(plan_for(blt(3), 3), tmp_path / "s", goal=2).start(federation(tmp_path / "c", 6), model())
    one, three = report(tmp_path / "s", secret=SECRET), report(tmp_path / "s", secret=SECRET, devices_per_user=3)
    by_hand = epsilon_by_hand(blt(3).encoder(), 3, 1, 4.0 / 3, 1e-6)
    assert one.group is None
    assert three.group.value == pytest.approx(by_hand, rel=1e-6)
    assert any("3 devices" in remark for remark in three.remarks)


def test_before_the_first_release_nothing_is_claimed(tmp_path):
    strategy(plan_for(blt(3)), tmp_path / "s").start(federation(tmp_path / "c", 12), model(), num_rounds=0)
    found = report(tmp_path / "s", secret=SECRET)
    assert (found.guarantee, found.zcdp, found.achieved, found.clients) == (None, None, None, 0)
    assert "No guarantee is stated." in found.statement


def test_statement_names_what_a_reader_must_know(tmp_path):
    strategy(plan_for(blt(3)), tmp_path / "s", goal=2).start(federation(tmp_path / "c", 6), model())
    text = report(tmp_path / "s", secret=SECRET).statement
    for words in (
        "central",
        "user",
        "zero-out",
        "ideal Gaussian noise, which is unbounded, rho = ",
        "epsilon = ",
        "delta = 1e-06",
        "does not depend on",
        "pseudonym",
        "exact integers on a grid, and the statement covers every bit of the released models",
    ):
        assert words in text


def test_a_simulation_with_scaled_noise_is_never_accounted(tmp_path):
    """100 clients are simulated by 2: the noise in the mean is the same as with 100, and nothing is claimed."""
    plan = plan_for(ap.strategies.Identity(1), 1)
    entries, models = 200_000, {}
    for name, options in {"real": {}, "simulated": {"simulated_goal": 2}}.items():
        result = strategy(plan, tmp_path / name, goal=100, when_short="release", **options).start(
            federation(tmp_path / "none", 0), ArrayRecord([np.zeros(entries)])
        )
        models[name] = result.arrays.to_numpy_ndarrays()[0]
    spread = {name: value.std() for name, value in models.items()}
    assert spread["real"] == pytest.approx(4.0 / 100, rel=5 / np.sqrt(2 * entries))
    assert spread["simulated"] == pytest.approx(4.0 / 100, rel=5 / np.sqrt(2 * entries))
    found = report(tmp_path / "simulated", secret=SECRET)
    assert (found.guarantee, found.zcdp) == (None, None)
    assert any("not private" in remark for remark in found.remarks)
    truth = epsilon_by_hand(np.ones((1, 1)), 1, 1, 4.0 * 2 / 100, 1e-6)
    assert found.run.guarantee.value == pytest.approx(truth, rel=1e-6), "the run directory states what ran"
    assert report(tmp_path / "real", secret=SECRET).guarantee is not None


def test_a_simulation_cannot_be_continued_as_a_real_run(tmp_path):
    plan = plan_for(blt(4), 1)
    strategy(plan, tmp_path / "s", goal=100, simulated_goal=2).start(
        federation(tmp_path / "c", 4), model(), num_rounds=1
    )
    with pytest.raises(ap.InvalidArgument, match="created for a different plan"):
        strategy(plan, tmp_path / "s", goal=100).start(federation(tmp_path / "c", 4), model())
    assert report(tmp_path / "s", secret=SECRET).guarantee is None


@pytest.mark.parametrize("word", ["report", "verify"])
@pytest.mark.parametrize("copied", [False, True])
def test_the_inner_run_alone_is_not_reported_on(tmp_path, word, copied):
    """It does not know who took part, whether metrics were released raw, or that it is a simulation."""
    plan = plan_for(blt(3), 1)
    strategy(plan, tmp_path / "s", goal=100, simulated_goal=2, secret=None).start(
        federation(tmp_path / "c", 4), model()
    )
    assert report(tmp_path / "s").guarantee is None
    inner = tmp_path / "s" / "run"
    if copied:
        inner = shutil.copytree(inner, tmp_path / "elsewhere")
    for options in ((), ("--secret", tmp_path / "s" / "secret")):
        result = command(word, inner, *options)
        assert (result.exit_code, result.stdout) == (1, "")
        if options or not copied:
            assert "who took part" in result.stderr
            assert "directory of the server" in result.stderr


def test_no_run_no_report(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="no federated run"):
        report(tmp_path)
    with pytest.raises(ap.InvalidArgument, match="devices_per_user"):
        report(tmp_path, devices_per_user=0)


@pytest.mark.parametrize(("population", "goal", "rounds"), [(10, 3, 7), (9, 3, 9), (5, 5, 4), (100, 1, 20), (7, 2, 7)])
def test_cohort_is_the_largest_separation_that_never_runs_dry(population, goal, rounds):
    """Take clients in turn: with `separation` all releases can be filled, and with one more they cannot."""

    def fills(separation):
        last: dict[int, int] = {}
        for t in range(rounds):
            ready = [c for c in range(population) if t - last.get(c, -rounds) >= separation]
            if len(ready) < goal:
                return False
            last |= dict.fromkeys(ready[:goal], t)
        return True

    found = cohort(population, goal, rounds)
    assert fills(found.separation)
    assert found.separation == rounds or not fills(found.separation + 1)
    assert found.max_participations == -(-rounds // found.separation)


def test_extrapolation_scales_the_noise_with_the_goal():
    """Population 1,000 and 50 rounds; rho from the definition."""
    known = ap.Mechanism(blt(50), cohort(1000, 20, 50), noise_std=2.0)
    for row in extrapolate(known, 20, 1000, [20, 100, 500]):
        assert row.noise_std == pytest.approx(2.0 * row.goal / 20)
        assert (row.separation, row.participations) == (1000 // row.goal, -(-50 // (1000 // row.goal)))
        matrix, pattern = blt(50).encoder(), np.arange(0, 50, row.separation)
        sens = np.linalg.norm(matrix[:, pattern].sum(axis=1))  # the earliest pattern is the worst for a BLT
        assert row.zcdp.value == pytest.approx(sens**2 / (2 * row.noise_std**2))


BLT_400 = (
    (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
    (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
)


@pytest.mark.parametrize(
    ("rounds", "separation", "count", "rho", "epsilon"), [(1280, 300, 4, 0.16, 3.46), (2350, 447, 5, 0.20, 3.93)]
)
def test_published_reports_of_production_models(rounds, separation, count, rho, epsilon):
    """Planned for 4,000 rounds and separation 400, stopped early, accounted with what was achieved.

    Reference: McMahan, Xu and Zhang 2024, Table 2, es-ES and id-ID; rho is rounded up there.
    """
    plan = plan_for(ap.strategies.BLT(*BLT_400, 4000), 400, noise_std=7.379)
    mechanism = achieved_mechanism(plan, rounds, Achieved(separation, count, clients=1))
    assert rho - 0.01 < ap.zcdp(mechanism).value <= rho
    assert ap.epsilon(mechanism, 1e-10).value == pytest.approx(epsilon, rel=0.003)


def test_bad_planning_arguments():
    for arguments in ((3, 4, 5), (0, 1, 1), (5, 0, 1), (5, 1, 0)):
        with pytest.raises(ap.InvalidArgument):
            cohort(*arguments)
