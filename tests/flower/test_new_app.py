"""`antiphase flower new`: the app passes its own tests, and runs as it is in a simulation and on SuperNodes."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import antiphase as ap
from antiphase.flower import report
from tests.flower.engine import ended, engines, start_node, until
from tests.flower.federation import epsilon_by_hand, participation_by_hand, record_by_hand
from tests.report.cases import command

DOCS = Path(__file__).parents[2] / "docs" / "flower.md"
FRAMEWORKS = ("numpy", "torch")
both = pytest.mark.parametrize("framework", FRAMEWORKS)


def created(folder, framework, name="my-app"):
    result = command("flower", "new", folder / name, "--framework", framework)
    assert result.exit_code == 0, result.stderr
    return folder / name


def settings(app):
    return tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


def check(server, rounds, goal):
    """What the record says, by hand; the report in every format; and `verify`."""
    record = record_by_hand(server)
    assert [len(present) for present in record] == [goal] * rounds, "all places of all releases"
    gap, count = participation_by_hand(record)
    mechanism = ap.Plan.load(server / "run" / "plan.json").mechanism
    by_hand = epsilon_by_hand(mechanism.strategy.encoder(), gap or rounds, count, mechanism.noise_std, 1e-3)
    found = report(server)
    assert found.guarantee.value == pytest.approx(by_hand, rel=1e-6)
    assert found.run.guarantee.value <= 8.0 * (1 + 1e-9)
    assert command("verify", server).exit_code == 0
    assert command("report", server, "--output", server.parent / "report.html").exit_code == 0
    return found


@both
def test_the_new_app_passes_its_own_tests(tmp_path, framework):
    app = created(tmp_path, framework)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=app,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert result.returncode == 0, result.stdout
    assert "4 passed" in result.stdout


@both
def test_the_new_app_keeps_the_rules_of_a_linter(tmp_path, framework):
    """ruff with its default rules, sorted imports, docstrings and the format."""
    app = created(tmp_path, framework)
    ruff = [sys.executable, "-m", "ruff"]
    options = ["--isolated", "--line-length", "120"]
    checks = subprocess.run(
        [*ruff, "check", *options, "--select", "E,F,W,I,B,UP,D1", "--ignore", "D103,D107", "."],
        cwd=app, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checks.returncode == 0, checks.stdout
    layout = subprocess.run(
        [*ruff, "format", "--check", *options, "."], cwd=app, capture_output=True, text=True, check=False
    )
    assert layout.returncode == 0, layout.stdout


@pytest.mark.parametrize("name", ["My App", "flwr", "1app", "import", "..", "a" * 80, 'x"', "torch", "tests"])
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path, name):
    result = command("flower", "new", tmp_path / name)
    assert result.exit_code == 1
    assert "hint:" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    app = created(tmp_path, "numpy")
    (app / "my_app" / "task.py").write_text("mine")
    result = command("flower", "new", app)
    assert result.exit_code == 1
    assert "already exists" in result.stderr
    assert (app / "my_app" / "task.py").read_text() == "mine"


def test_the_app_refuses_values_that_differ_from_those_of_its_run(tmp_path):
    """The plan of a run is kept: a server that was told another epsilon must not go on with the old one silently."""
    app = created(tmp_path, "numpy")
    code = (
        "import sys, tomllib, pathlib; sys.path.insert(0, '.')\n"
        "from my_app.server_app import plan_for\n"
        "config = tomllib.loads(open('pyproject.toml').read())['tool']['flwr']['app']['config']\n"
        "path = pathlib.Path('runs/plan.json')\n"
        "plan_for(config, path)\n"
        "plan_for({**config, 'goal': 1}, path)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=app, capture_output=True, text=True, check=False)
    assert "was started with other values" in result.stderr


@both
def test_the_new_app_runs_in_a_simulation_as_it_is(tmp_path, framework):
    """Five virtual clients, with the values of pyproject.toml; only the directory is the test's own."""
    app = created(tmp_path, framework)
    with engines(tmp_path) as make:
        simulated = make(app, "--simulation")
        simulated.simulate(f'directory="{tmp_path}/d"', "--federation-config", "num-supernodes=5")
        values = settings(app)
        assert (tmp_path / "d" / "server").exists(), simulated.log()
        found = check(tmp_path / "d" / "server", values["rounds"], values["goal"])
        assert found.clients == 5
        assert "Formal statement: epsilon = " in simulated.log()


ROUNDS = 4
MISBEHAVES = """    if context.node_config.get("misbehaves"):
        raise RuntimeError("this client always fails")
"""


@pytest.mark.slow
@both
def test_five_supernodes_of_which_one_misbehaves(tmp_path, framework):
    """What docs/flower.md tells a newcomer to do: one client always fails, and the server is killed on the way."""
    assert MISBEHAVES in DOCS.read_text()
    app, server = created(tmp_path, framework), tmp_path / "d" / "server"
    client = app / "my_app" / "client_app.py"
    before, last, after = client.read_text().rpartition("    return Message(")
    client.write_text(before + MISBEHAVES + last + after)

    def releases():
        path = server / "clients" / "private" / "ledger.jsonl"
        return path.read_text().count('"kind":"release"') if path.exists() else 0

    with engines(tmp_path) as make:
        link, values = make(app), settings(app) | {"rounds": ROUNDS}
        # On a busy machine, an app takes a minute to start.
        config = f'directory="{tmp_path}/d" rounds={ROUNDS} wait=600.0 timeout=600.0'
        for partition in range(5):
            place = f'"{tmp_path}/device-{partition}"'
            start_node(link, partition, **{"client-directory": place, "misbehaves": str(partition == 4).lower()})
        first = link.run(config)
        until(lambda: releases() >= 1)
        assert link.kill("flwr-serverapp") >= 1
        first.kill()
        first.wait()
        assert releases() < values["rounds"], "the kill came too late to show anything"
        ended(link.run(config))
        assert releases() == values["rounds"], link.log()
        found = check(server, values["rounds"], values["goal"])
    assert 3 <= found.clients <= 5
    bad = tmp_path / "device-4" / "client.json"
    took_part = bad.exists() and json.loads(bad.read_text())["last"] != {}
    assert (found.counts.get("not-finite", 0) >= 1) == took_part
    assert found.counts["accepted"] >= 1
    assert len(list(tmp_path.glob("device-*/client.json"))) >= found.clients
    assert not (tmp_path / "d" / "clients").exists(), "each device has a directory of its own"
    assert ("not-finite" in (tmp_path / "d" / "report.html").read_text()) == took_part
