"""Damaged plans, headers, heads and ledgers: each is refused with a reason, or means what it meant before."""

import json
import random
import shutil
import signal
from collections import Counter
from contextlib import contextmanager

import pytest

import antiphase as ap
from antiphase._report import read
from antiphase._report.curves import error_by_step
from antiphase._report.tables import candidates
from tests.fuzz.mutations import damage_bytes, damage_file, damage_plan
from tests.run.plans import LEAVES, STRATEGIES, candidate_of, fresh_model, plan_for, train

SECONDS = 20  # for one damaged file; a good one takes a few milliseconds
EXAMPLES = 40


@contextmanager
def time_limit():
    def stop(*_):
        raise TimeoutError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """One file for each strategy, all with candidates and notes."""
    directory = tmp_path_factory.mktemp("plans")
    promises = {"tree": ap.FixedEpochs(3, 4), "identity": ap.Poisson(0.25), "toeplitz": ap.CyclicPoisson(4, 1.0)}
    for name, strategy in STRATEGIES.items():
        made = plan_for(strategy, promises.get(name))
        rows = (candidate_of(made, "the plan"), candidate_of(made, "another"))
        full = ap.Plan(made.problem, made.mechanism, made.guarantee, made.error, rows, notes=("a note",))
        full.save(directory / f"{name}.json")
    return sorted(directory.iterdir())


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "run"
    with ap.Run.open(plan_for(STRATEGIES["toeplitz"]), directory, leaves=LEAVES, examples=EXAMPLES) as run:
        train(run, fresh_model(), 3)
        run.publish("weights")
        train(run, fresh_model(), 4)
    return directory


def attempt(action, path):
    """What the action makes of the file, or None where it refuses it with a reason and a hint."""
    try:
        with time_limit():
            return action(path)
    except ap.AntiphaseError as refusal:
        if not (refusal.message.strip() and refusal.hint):
            raise AssertionError("a refusal without a reason or a hint") from refusal
        return None


def load_damaged_plans(plans, path, seeds):
    counts = Counter()
    for seed in seeds:
        generator = random.Random(seed)
        source = generator.choice(plans)
        original = ap.Plan.load(source)
        data = damage_plan(source.read_bytes(), generator)
        path.write_bytes(data)
        try:
            found = attempt(ap.Plan.load, path)
            if found is not None:
                check_accepted_plan(found, original, data)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {source.name}: {data[:3000]!r}") from error
        counts["refused" if found is None else "accepted"] += 1
    return counts


def check_accepted_plan(found, original, data):
    """The plan of before, or another one whose fingerprint was computed again and whose guarantee is its own."""
    assert found.fingerprint == json.loads(data)["fingerprint"]
    assert found.guarantee.value >= ap.epsilon(found.mechanism, found.problem.budget.delta).value
    if found.fingerprint == original.fingerprint:
        assert found.guarantee == original.guarantee
        assert (found.problem, found.mechanism, found.root) == (original.problem, original.mechanism, original.root)
    assert len(candidates(found).rows) == len(found.candidates)
    drawn = attempt(error_by_step, found)  # refused if C^-1 grows beyond floating point
    assert drawn is None or drawn.series
    assert set(found.pareto) <= set(found.candidates)


def open_damaged_runs(good, tmp_path, seeds):
    """The same history, or refused; resumed and read for a report in turn."""
    counts = Counter()
    before = reported(good)
    names = ["run.json", "run.json", "run.json", "private/heads", "public/ledger.jsonl", "private/ledger.jsonl"]
    for seed in seeds:
        generator = random.Random(seed)
        name = generator.choice(names)
        damage = damage_file if name == "run.json" else damage_bytes
        data = damage((good / name).read_bytes(), generator)
        directory = tmp_path / f"damaged-{seed}"
        shutil.copytree(good, directory)
        (directory / name).write_bytes(data)
        try:
            found = attempt(reported if seed % 2 else resumed, directory)
            assert found in (None, before)
        except BaseException as error:
            raise AssertionError(f"seed {seed}, {name}: {data[:3000]!r}") from error
        shutil.rmtree(directory)
        counts["refused" if found is None else "accepted"] += 1
    return counts


def reported(directory):
    return read(directory).run


def resumed(directory):
    with ap.Run.open(plan_for(STRATEGIES["toeplitz"]), directory, leaves=LEAVES, examples=EXAMPLES) as run:
        return run.report()


def test_damaged_plans_are_refused_or_harmless(plans, tmp_path):
    counts = load_damaged_plans(plans, tmp_path / "plan.json", range(300))
    assert counts["refused"] > 200
    assert counts["accepted"] > 0


def test_damaged_runs_are_refused_or_harmless(run_directory, tmp_path):
    counts = open_damaged_runs(run_directory, tmp_path, range(200))
    assert counts["refused"] > 150


@pytest.mark.slow
def test_ten_thousand_damaged_files(plans, run_directory, tmp_path):
    load_damaged_plans(plans, tmp_path / "plan.json", range(1_000, 7_000))
    open_damaged_runs(run_directory, tmp_path, range(1_000, 5_000))
