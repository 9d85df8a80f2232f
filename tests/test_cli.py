"""The command line: data on stdout, talk on stderr, errors without a traceback."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import antiphase as ap
from antiphase._cli import _demo
from antiphase._cli._app import app

TWO = {name: make for name, make in _demo.MECHANISMS.items() if name.startswith(("Identity", "BLT"))}


@pytest.fixture
def two_mechanisms(monkeypatch):
    monkeypatch.setattr(_demo, "MECHANISMS", TWO)


@pytest.fixture
def failing(monkeypatch):
    def fail(*_):
        raise ap.NotProved("Nothing covers this.", hint="ask for less")

    monkeypatch.setattr(_demo, "compare", fail)


def run(*arguments: str):
    return CliRunner().invoke(app, arguments)


def test_json_is_all_there_is_on_stdout(two_mechanisms):
    result = run("demo", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert ap.from_json(data["problem"]["participation"]) == ap.FixedEpochs(20, 100)
    assert [row["mechanism"] for row in data["candidates"]] == list(TWO)
    assert "2 mechanisms" in result.stderr


def test_identity_is_k_participations_of_white_noise(two_mechanisms):
    row = json.loads(run("demo", "--json").stdout)["candidates"][0]
    assert row["sensitivity"] == pytest.approx(20**0.5)
    assert row["sensitivity_kind"] == "exact"
    assert row["rms_error"] == pytest.approx((2001 / 2) ** 0.5)
    assert row["max_loss"] == pytest.approx((20 * 2000) ** 0.5)
    assert row["memory_copies"] == 0


def test_table_puts_the_best_first(two_mechanisms):
    lines = run("demo").stdout.splitlines()
    rows = [line for line in lines if "BLT" in line or "Identity" in line]
    assert "BLT" in rows[0]
    assert rows[0].split()[-1] == "1.000"
    assert "Identity" in rows[1]


def test_every_mechanism_is_for_the_demo_problem():
    assert {make().steps for make in _demo.MECHANISMS.values()} == {_demo.STEPS}


def test_an_error_is_its_message_and_hint(failing):
    result = run("demo")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.endswith("error: Nothing covers this.\n\nhint: ask for less\n")


def test_debug_shows_the_traceback(failing):
    result = run("--debug", "demo")
    assert result.exit_code == 1
    assert isinstance(result.exception, ap.NotProved)


def test_version():
    assert run("--version").stdout == f"{ap.__version__}\n"


def test_a_wrong_option_is_a_usage_error():
    assert run("demo", "--no-such-option").exit_code == 2


@pytest.mark.parametrize("command", [["demo"]], ids=" ".join)
def test_help_shows_an_example(command):
    assert "Example: antiphase demo" in run(*command, "--help").stdout


def test_runs_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "antiphase", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"{ap.__version__}\n"
