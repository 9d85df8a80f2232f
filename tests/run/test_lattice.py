"""Lattice noise in plans and runs: planning, opening, replaying, resuming, extending and reporting."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import antiphase as ap
from antiphase._lattice import log_overflow
from antiphase._report.reading import ReportSource
from antiphase._report.statement import statement
from antiphase._run.integration import dtype_of, open_shared
from antiphase._run.reading import read_run
from antiphase._run.tail import tail_of
from antiphase._run.transport import SingleProcess
from antiphase.strategies import BLT, Identity, Toeplitz
from tests.run.plans import plan_for

LEAVES = [(3, 2), (5,)]
PARAMETERS = 11


def lattice_plan(strategy=None, clip_norm=0.7, noise_std=3.0, participation=None):
    promise = participation or ap.MinSeparation(4)
    rounded = ap.rounded_strategy(strategy or Toeplitz([1.0, 0.5, 1 / 3], 12))
    lattice = ap.choose_lattice(rounded, promise, noise_std, PARAMETERS, clip_norm)
    mechanism = ap.Mechanism(rounded, promise, noise_std, lattice=lattice)
    guarantee = ap.epsilon(mechanism, 1e-6)
    problem = ap.Problem(
        steps=rounded.steps,
        budget=ap.Budget(guarantee.value, 1e-6),
        participation=promise,
        clip_norm=clip_norm,
        parameters=PARAMETERS,
        lattice=True,
    )
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


def train(run, stop, start=0):
    """Return the integers that each step releases, for random gradients."""
    lattice, released = run.plan.mechanism.lattice, []
    for step in range(start, stop):
        random = np.random.default_rng(step)
        batch = [random.standard_normal((4, *shape)) for shape in LEAVES]
        out = run.release(step, lattice.clipped_sum(batch))
        run.commit(step, run.digest(step, out))
        released.append(np.concatenate([array.reshape(-1) for array in out]))
    return released


def test_the_planner_chooses_the_grid(tmp_path):
    problem = ap.Problem(
        steps=16,
        budget=ap.Budget(2.0, 1e-6),
        participation=ap.FixedEpochs(4, 4),
        objective="rms",
        clip_norm=0.3,
        parameters=4_000_000,
        lattice=True,
    )
    found = ap.plan(problem)
    lattice = found.mechanism.lattice
    assert found.guarantee.value <= 2.0
    assert found.guarantee.kind == "upper"
    assert {c.family for c in found.candidates} <= {"identity", "toeplitz", "blt", "banded-inverse"}
    assert Fraction(lattice.norm) * Fraction(2) ** lattice.exponent <= Fraction(0.3)
    assert lattice.entries == 4_000_000
    without = ap.plan(replace(problem, lattice=False), families=[found.candidates[0].family])
    assert found.error < 1.00001 * without.error  # the price of the rounding
    found.save(tmp_path / "plan.json")
    assert ap.Plan.load(tmp_path / "plan.json") == found
    assert "lattice" in str(found)


def test_sampled_plans_have_a_lattice():
    problem = ap.Problem(
        steps=16,
        budget=ap.Budget(2.0, 1e-6),
        examples=100,
        batch_size=25,
        objective="rms",
        parameters=10,
        lattice=True,
    )
    found = ap.plan(problem, families=["identity", "toeplitz"], pipelines=["poisson", "cyclic-poisson"])
    assert found.mechanism.lattice is not None
    assert found.guarantee.value <= 2.0


def test_plans_without_a_lattice_have_the_fingerprint_they_always_had():
    plain = plan_for(Toeplitz([1.0, 0.5], 12))
    assert "lattice" not in json.dumps(ap.to_json(plain))


@pytest.mark.parametrize("strategy", [Identity(12), None, BLT([0.9, 0.5], [0.3, 0.2], 12)])
def test_a_run_resumes_with_the_same_integers(tmp_path, strategy):
    plan = lattice_plan(strategy)
    with ap.Run.open(plan, tmp_path / "whole", leaves=LEAVES, secret=ap.Secret.insecure(1)) as run:
        first = train(run, 7)
        run.save()
    with ap.Run.open(plan, tmp_path / "whole", leaves=LEAVES, secret=ap.Secret.insecure(1)) as run:
        again = train(run, 12, start=3)  # replays 3, ..., 6, then continues
        assert run.report().rewinds == 0
    assert all(np.array_equal(a, b) for a, b in zip(first[3:], again[:4], strict=True))
    assert first[0].dtype == np.int64


def test_releases_are_sums_plus_noise(tmp_path):
    plan = lattice_plan()
    with ap.Run.open(plan, tmp_path / "run", leaves=LEAVES) as run:
        sums = [np.full(shape, 1000, dtype=np.int64) for shape in LEAVES]
        noise = run.gradient_noise(0)
        out = run.release(0, sums)
        assert all(np.array_equal(o, n + 1000) for o, n in zip(out, noise, strict=True))
        real = plan.mechanism.lattice.value(out)
        assert all(r.dtype == np.float64 and np.isfinite(r).all() for r in real)
        with pytest.raises(ap.InvalidArgument, match="2 arrays"):
            run.release(0, sums[:1])
        with pytest.raises(ap.InvalidArgument, match="int64"):
            run.release(0, [s.astype(np.float64) for s in sums])
        with pytest.raises(ap.InvalidArgument, match="int64"):
            run.release(0, [[0.5], "x"])
        # Six draws with a standard deviation of at least 3 norms; below 0.03 norms with a probability of 1e-9.
        assert noise[0].std() > 0.03 * plan.mechanism.lattice.norm


def test_the_report_accounts_for_overflow_and_early_stopping(tmp_path):
    plan = lattice_plan()
    with ap.Run.open(plan, tmp_path / "run", leaves=LEAVES) as run:
        train(run, 5)
        report = run.report()
        assert report.guarantee.value <= plan.guarantee.value
        assert report.smallest_delta < 1e-300
    record = read_run(tmp_path / "run")
    assert record.report() == report
    words = dict(statement(ReportSource(plan, report)))
    assert "every bit" in words["Bits of releases"]
    tail = tail_of(plan, {"0": ap.Leaf((3, 2)), "1": ap.Leaf((5,))}, "int64")
    assert tail.log_mass == log_overflow(plan.mechanism.strategy, 11) < -1400


def test_runs_extend(tmp_path):
    plan = lattice_plan(BLT([0.9, 0.5], [0.25, 0.125], 12))
    with ap.Run.open(plan, tmp_path / "run", leaves=LEAVES) as run:
        train(run, 4)
    longer = plan.extend(20)
    assert longer.mechanism.lattice == plan.mechanism.lattice
    assert longer.guarantee.value > plan.guarantee.value
    with ap.Run.open(longer, tmp_path / "run", leaves=LEAVES) as run:
        train(run, 20, start=4)
        assert run.committed == 20


def test_integrations_in_floating_point_are_refused(tmp_path):
    with (
        ap.Run.open(lattice_plan(), tmp_path / "run", leaves=LEAVES) as run,
        pytest.raises(ap.Refused, match="lattice"),
    ):
        dtype_of(run)
    leaves = {"0": ap.Leaf((3, 2)), "1": ap.Leaf((5,))}
    with pytest.raises(ap.InvalidArgument, match="int64 for a plan with a lattice"):
        open_shared(lattice_plan(), tmp_path / "other", SingleProcess(), leaves=leaves, own_leaves=leaves)


def test_wrong_uses_are_refused(tmp_path):
    plan = lattice_plan()
    with pytest.raises(ap.InvalidArgument, match="int64 for a plan with a lattice"):
        ap.Run.open(plan, tmp_path / "a", leaves=LEAVES, dtype="float32")
    with pytest.raises(ap.InvalidArgument, match="accounts for 11 parameters"):
        ap.Run.open(plan, tmp_path / "b", leaves=[(12,)])
    plain = plan_for(Toeplitz([1.0, 0.5], 12))
    with (
        ap.Run.open(plan, tmp_path / "d", leaves=LEAVES) as run,
        pytest.raises(ap.InvalidArgument, match="a list of arrays"),
    ):
        run.release(0, 5)
    with (
        ap.Run.open(plain, tmp_path / "c", leaves=LEAVES, examples=40) as run,
        pytest.raises(ap.Refused, match="no lattice"),
    ):
        run.release(0, [])
    with pytest.raises(ap.InvalidArgument, match="parameters"):
        ap.Problem(steps=4, budget=ap.Budget(1.0, 1e-6), lattice=True)
    with pytest.raises(ap.InvalidArgument, match=r"problem\.lattice"):
        replace(plan, problem=replace(plan.problem, lattice=False))
    with pytest.raises(ap.InvalidArgument, match="clip_norm"):
        replace(plan, problem=replace(plan.problem, clip_norm=0.6))
    with pytest.raises(ap.InvalidArgument, match=r"problem\.parameters"):
        replace(plan, problem=replace(plan.problem, parameters=12))


@pytest.mark.parametrize(
    "participation",
    [ap.Poisson(0.1, max_batch=10), ap.CyclicPoisson(4, 0.1, max_batch=10), ap.FixedSize(groups=1, batch_size=5)],
)
def test_participations_without_a_proof_are_refused(participation):
    adjacency = "replace" if isinstance(participation, ap.FixedSize) else "zero-out"
    lattice = ap.Lattice(-32, 2**32, 10)
    mechanism = ap.Mechanism(Identity(8), participation, 1.0, adjacency, 100, lattice)
    with pytest.raises(ap.NotProved, match="lattice"):
        ap.epsilon(mechanism, 1e-6)


@pytest.mark.parametrize(
    ("participation", "rows"), [(ap.EveryStep(), 11), (ap.MinSeparation(4), 6), (ap.SingleParticipation(), 2)]
)
def test_the_sensitivity_includes_the_rounding(participation, rows):
    strategy, lattice = Toeplitz([1.0, 0.5, 0.25], 12), ap.Lattice(-10, 1000, 50)
    mechanism = ap.Mechanism(strategy, participation, 2.0, lattice=lattice)
    expected = ap.sensitivity(strategy, participation).value + np.sqrt(50 * rows) / 1000
    assert mechanism.reduction.sensitivity.value == pytest.approx(expected, rel=1e-11)
    assert mechanism.reduction.sensitivity.value >= expected
    assert ap.epsilon(mechanism, 1e-6).value > ap.epsilon(replace(mechanism, lattice=None), 1e-6).value


def test_more_parameters_and_coarser_grids_cost_more():
    strategy = BLT([0.75, 0.5], [0.25, 0.125], 40)
    values = [
        ap.epsilon(ap.Mechanism(strategy, ap.MinSeparation(8), 2.0, lattice=ap.Lattice(0, *given)), 1e-6).value
        for given in ((10**6, 100, 4), (10**6, 10_000, 4), (10**4, 10_000, 4), (10**4, 10_000, 0))
    ]
    assert values == sorted(values)
    assert len(set(values)) == 4
