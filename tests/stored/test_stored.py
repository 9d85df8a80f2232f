"""Plans and half-finished runs written by earlier versions load, and go on with the same batches and the same noise."""

import json
import shutil
from pathlib import Path

import pytest

import antiphase as ap
from tests.stored.cases import LEAVES, STEPS, make_private, take_steps

SETS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "expected.json").exists())
EXPECTED = {path.name: json.loads((path / "expected.json").read_text()) for path in SETS}
PLANS = [(version, name) for version, found in EXPECTED.items() for name in found["plans"]]
RUNS = [(version, name) for version, found in EXPECTED.items() for name in found["runs"]]
# The noise of these two comes from NumPy's linear algebra, whose last bits depend on the machine.
MACHINE = ("fourier", "tree-full")


def stored(version: str) -> Path:
    return Path(__file__).parent / version


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    make_private(target)
    return target


def test_there_are_files_of_every_strategy_and_participation():
    assert len(PLANS) >= 25
    assert len(RUNS) >= 26


@pytest.mark.parametrize(("version", "name"), PLANS)
def test_a_plan_loads_with_its_fingerprint_and_its_guarantee(version, name):
    plan, expected = ap.Plan.load(stored(version) / "plans" / f"{name}.json"), EXPECTED[version]["plans"][name]
    assert plan.fingerprint == expected["fingerprint"]
    assert plan.guarantee.value == pytest.approx(expected["epsilon"], rel=2e-3)


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_a_run_goes_on_bit_for_bit(tmp_path, version, name):
    expected = EXPECTED[version]["runs"][name]
    directory = copied(stored(version) / "runs" / name, tmp_path / "run")
    plan, dtype = ap.Plan.load(directory / "plan.json"), name.rpartition("-")[2]
    with ap.Run.open(plan, directory, leaves=LEAVES, examples=expected["examples"], dtype=dtype) as run:
        committed = run.committed
        seen = take_steps(run, STEPS)
        guarantee = run.report().guarantee
        assert run.report().rewinds == 0
    assert 0 < committed < STEPS
    if not any(kind in name for kind in MACHINE):
        assert seen == expected["noise"][committed:]
    assert (guarantee and guarantee.value) == pytest.approx(expected["epsilon"], rel=2e-3)


@pytest.mark.parametrize(("version", "name"), RUNS)
def test_the_same_noise_comes_from_the_key_alone(tmp_path, version, name):
    expected = EXPECTED[version]["runs"][name]
    directory = copied(stored(version) / "runs" / name, tmp_path / "run")
    for state in (directory / "private").glob("noise-*.state"):
        state.unlink()
    plan, dtype = ap.Plan.load(directory / "plan.json"), name.rpartition("-")[2]
    with ap.Run.open(plan, directory, leaves=LEAVES, examples=expected["examples"], dtype=dtype) as run:
        committed, seen = run.committed, take_steps(run, STEPS)
    if not any(kind in name for kind in MACHINE):
        assert seen == expected["noise"][committed:]
