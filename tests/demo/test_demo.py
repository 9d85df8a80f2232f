"""The demo from end to end, with few runs; and what it says where scikit-learn is missing."""

import json
import re
import sys
from dataclasses import replace

import pytest

import antiphase as ap
from antiphase._demo.comparison import Arm, Comparison, demo_problem
from antiphase._demo.confidence_interval import mean
from antiphase._demo.demo_page import noise_charts
from antiphase._demo.digits import load_digits
from antiphase._demo.training import train
from tests.test_cli import run


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "first"
    result = run("demo", "--seeds", "2", "--output", str(directory), "--json")
    assert result.exit_code == 0, result.stderr
    return directory, json.loads(result.stdout), result.stderr


def test_both_sides_have_the_same_epsilon_and_the_chosen_one_less_noise(done):
    _, found, _ = done
    plain, larger, chosen = found["arms"]
    for arm in found["arms"]:
        assert 0.999 * found["epsilon"] <= arm["epsilon"] <= found["epsilon"]
        assert len(arm["accuracies"]) == 2
    assert (plain["batch_size"], larger["batch_size"], chosen["batch_size"]) == (16, 64, 16)
    assert chosen["error"] < 0.7 * plain["error"]
    assert found["without_noise"]["accuracy"] > 0.8
    assert [gain["over"] for gain in found["gains"]] == [0, 1]


def test_every_run_is_kept_and_verifies(done):
    directory, found, _ = done
    runs = sorted(path.name for path in directory.iterdir() if path.is_dir())
    assert runs == ["chosen-01", "chosen-02", "dp-sgd-01", "dp-sgd-02", "dp-sgd-larger-01", "dp-sgd-larger-02"]
    checked = json.loads(run("verify", found["arms"][2]["run"], str(directory / "plan.json"), "--json").stdout)
    assert all(item["verified"] for item in checked)
    header = json.loads((directory / "chosen-01" / "run.json").read_text())
    assert header["dtype"] == "float64"  # as the sums: digits beyond the noise would come out bare
    assert checked[0]["published"] == [f"model and its test accuracy (after step {found['arms'][2]['steps']})"]


def test_the_report_is_written_and_its_path_comes_last(done):
    directory, found, talk = done
    text, page = (directory / "report.txt").read_text(), (directory / "report.md").read_text()
    for report in (text, page):
        assert "DP-SGD" in report
        assert f"{100 * found['arms'][2]['accuracy']:.1f} %" in report
        assert "epsilon from the ledger" in report
    assert page.startswith("# ")
    for name in ("report.md", "report.txt", "plan.json"):
        assert str(directory / name) in talk
    assert talk.rstrip().endswith((directory / "report.html").as_uri())


def test_the_page_says_what_was_promised_and_what_ran(done):
    directory, found, _ = done
    page = (directory / "report.html").read_text()
    assert len(page) < 300_000
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", page)  # nothing to fetch
    for arm in found["arms"]:
        assert f"{100 * arm['accuracy']:.1f} ± {100 * arm['margin']:.1f}" in page
        assert f"{arm['steps']} of {arm['steps']}" in page
    assert page.count("<svg") == 4
    assert f"antiphase verify {found['arms'][2]['run']}" in page


def test_drawn_noise_is_that_of_the_mechanisms(tmp_path):
    """The drawn sums have the standard deviation that is drawn beside them, and none of the noise of the runs."""
    import numpy as np

    data = load_digits()
    plan = ap.plan(demo_problem(len(data[0]), 16), pipelines=["fixed-epochs"])
    run = train(plan, *data, 4.0, tmp_path / "run")
    arm = Arm("chosen", plan, 4.0, (0.5, 0.6), run.report, run.directory)
    drawn = [noise_charts(Comparison(arm, arm, arm, mean([0.5, 0.6]))) for _ in range(60)]
    sums = np.array([charts[1].series[0].y for charts in drawn])
    expected = drawn[0][2].series[0].y
    ratio = np.sqrt((sums**2).mean(axis=0)) / expected
    assert 0.6 < ratio.min() <= ratio.max() < 1.5


def test_another_demo_removes_nothing(done, monkeypatch):
    directory, _, _ = done
    from antiphase._cli import demo

    assert demo._unused(directory) == directory.with_name("first-2")
    assert demo._unused(directory.with_name("new")) == directory.with_name("new")


def test_noise_reaches_the_model(tmp_path):
    """A run with a thousand times the noise learns nothing."""
    data = load_digits()
    loud = ap.plan(demo_problem(len(data[0]), 16), ["identity"])
    mechanism = replace(loud.mechanism, noise_std=1000.0 * loud.mechanism.noise_std)
    drowned = replace(loud, mechanism=mechanism, candidates=())
    assert train(drowned, *data, 4.0, tmp_path / "run").accuracy < 0.6


def test_without_scikit_learn_the_demo_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = run("demo", "--output", str(tmp_path / "demo"))
    assert result.exit_code == 1
    message, _, hint = result.stderr.rstrip("\n").split("\n")
    assert "not installed" in message
    assert "pip install 'antiphase[demo]'" in hint
    assert not (tmp_path / "demo").exists()


def test_a_directory_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch):
    def compare(*_):
        raise AssertionError("the work has begun")

    monkeypatch.setattr("antiphase._cli.demo.compare", compare)
    (tmp_path / "file").write_text("")
    result = run("demo", "--output", str(tmp_path / "file" / "demo"))
    assert result.exit_code != 0
    assert "cannot be created" in result.stderr.replace("\n", " ")
