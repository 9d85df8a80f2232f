"""Settings of the explorer: checked when they arrive, and the same plan from the page, the code and the command."""

import json
import shlex

import pytest

import antiphase as ap
from antiphase._explore.settings import ExplorerSettings
from tests.test_cli import run

SMALL = ExplorerSettings(steps=48, epochs=4.0, batch_size=50, epsilon=3.0, delta=1e-6, participation="cyclic-poisson")
CASES = [
    SMALL,
    ExplorerSettings(steps=40, epochs=2.5, batch_size=30, memory_copies=3, participation="fixed-epochs"),
    ExplorerSettings(steps=24, epochs=3.0, batch_size=20, adjacency="replace", participation="fixed-epochs"),
]


def test_the_number_of_examples_follows_from_the_epochs():
    assert ExplorerSettings(steps=2000, epochs=20, batch_size=500).examples == 50_000
    assert ExplorerSettings(steps=3, epochs=100, batch_size=500).examples == 500  # the batch size at least
    assert SMALL.problem.epochs == pytest.approx(4.0)


@pytest.mark.parametrize("settings", CASES, ids=lambda settings: f"{settings.steps}-{settings.participation}")
def test_the_code_and_the_command_make_the_plan_of_the_page(settings, capsys):
    expected = ap.plan(settings.problem, pipelines=settings.pipelines)
    names: dict[str, object] = {}
    exec(settings.python, names)
    assert names["plan"].fingerprint == expected.fingerprint
    assert str(expected) in capsys.readouterr().out
    words = shlex.split(settings.command)
    assert words[0] == "antiphase"
    assert json.loads(run(*words[1:], "--json").stdout)["fingerprint"] == expected.fingerprint


def test_settings_survive_the_way_to_the_page_and_back():
    for settings in CASES:
        assert ExplorerSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": 10**9},
        {"steps": 2.5},
        {"steps": True},
        {"steps": "12"},
        {"epochs": 0},
        {"epochs": float("nan")},
        {"batch_size": -1},
        {"epsilon": "2"},
        {"epsilon": None},
        {"delta": 0.0},
        {"memory_copies": -1},
        {"participation": "../../etc/passwd"},
        {"participation": ["any"]},
        {"participation": {}},
        {"file": "/etc/passwd"},
    ],
    ids=str,
)
def test_anything_else_is_refused(change):
    with pytest.raises(ap.InvalidArgument):
        ExplorerSettings.from_json({**SMALL.to_json(), **change})


@pytest.mark.parametrize("data", [None, [], "steps", 3, {}, {"steps": 3}], ids=str)
def test_what_is_not_settings_is_refused(data):
    with pytest.raises(ap.InvalidArgument):
        ExplorerSettings.from_json(data)


def test_an_unknown_adjacency_is_refused_before_planning():
    with pytest.raises(ap.InvalidArgument, match="adjacency"):
        _ = ExplorerSettings.from_json({**SMALL.to_json(), "adjacency": "<b>"}).problem
