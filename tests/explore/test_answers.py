"""What the explorer shows: the numbers of the planner, and words that follow from them."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

import antiphase as ap
from antiphase._explore.answers import FACTORS, Answers, price_in_words
from antiphase._explore.settings import ExplorerSettings
from antiphase._planner import ranked_problem

pytestmark = pytest.mark.integration  # some dozens of plans

SETTINGS = ExplorerSettings(steps=48, epochs=4.0, batch_size=50, epsilon=2.0, delta=1e-6, participation="fixed-epochs")


def numbers(table):
    """The rows of a curve's table as {(mechanism, x): error}."""
    return {(name, float(x.replace(",", ""))): float(y) for name, x, y in table["rows"]}


@pytest.fixture(scope="module")
def found():
    told = []
    parts = list(Answers().parts(SETTINGS, lambda what, share: told.append((what, share))))
    return parts, told


def test_the_plan_comes_first_and_is_that_of_the_planner(found):
    parts, _ = found
    name, part = parts[0]
    expected = ap.plan(SETTINGS.problem, pipelines=SETTINGS.pipelines)
    assert name == "plan"
    assert part["error"] == expected.error
    assert f"{expected.candidates[0].noise_multiplier:.4g}" in str(part["facts"])
    assert len(part["memory"]["table"]["rows"]) == len(expected.candidates)
    assert part["notes"] == list(expected.notes)
    dp_sgd = next(c for c in expected.candidates if c.family == "identity")
    less = re.search(r"(\d+) % less", part["sentence"])
    assert float(less[1]) == pytest.approx(100 * (1 - expected.error / dp_sgd.error), abs=0.5)


def test_every_point_of_the_curves_is_a_plan(found):
    last = dict(found[0])
    ranked = ranked_problem(SETTINGS.problem, SETTINGS.pipelines)
    curve = numbers(last["epsilon"]["table"])
    names = {name for name, _ in curve}
    assert "DP-SGD" in names
    assert len(curve) == 2 * (1 + len(FACTORS))
    for epsilon in (0.5, 2.0, 8.0):
        problem = replace(ranked, budget=ap.Budget(epsilon, 1e-6))
        plain = ap.plan(problem, ["identity"], pipelines=["fixed-epochs"])
        assert curve["DP-SGD", epsilon] == pytest.approx(plain.error, rel=1e-3)
    steps = numbers(last["steps"]["table"])
    plain = ap.plan(replace(ranked, steps=96), ["identity"], pipelines=["fixed-epochs"])
    assert steps["DP-SGD", 96.0] == pytest.approx(plain.error, rel=1e-3)


def test_a_curve_meets_the_plan_where_the_settings_are(found):
    parts = dict(found[0])
    curve = numbers(parts["epsilon"]["table"])
    (name,) = {name for name, _ in curve} - {"DP-SGD"}
    assert curve[name, 2.0] == pytest.approx(parts["plan"]["error"], rel=1e-3)


def test_less_privacy_means_less_error(found):
    curve = numbers(dict(found[0])["epsilon"]["table"])
    for name in {name for name, _ in curve}:
        errors = [error for (line, _), error in sorted(curve.items()) if line == name]
        assert errors == sorted(errors, reverse=True)


def test_drawings_are_well_formed_and_have_no_scripts_or_styles(found):
    for _, part in found[0]:
        drawings = [part["svg"]] if "svg" in part else [part["memory"]["svg"], *(m["svg"] for m in part["matrices"])]
        for svg in drawings:
            root = ET.fromstring(svg)
            kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
            assert kinds <= {"svg", "title", "desc", "line", "text", "path", "circle", "image"}
            assert not any(key.startswith("on") or key == "style" for element in root.iter() for key in element.attrib)


def test_points_are_kept_for_the_next_settings(monkeypatch, found):
    answers = Answers()
    list(answers.parts(SETTINGS, lambda what, share: None))
    known = len(answers.points)
    list(answers.parts(SETTINGS, lambda what, share: None))
    assert len(answers.points) == known > 10


def test_estimated_points_are_close_to_plans_and_named_as_estimates():
    settings = replace(SETTINGS, steps=96, participation="balls-in-bins")
    parts = dict(Answers().parts(settings, lambda what, share: None))
    curve = numbers(parts["epsilon"]["table"])
    assert ("BLT", 2.0) in curve
    assert curve["BLT", 2.0] == pytest.approx(parts["plan"]["error"], rel=1e-3)
    ranked = ranked_problem(settings.problem, settings.pipelines)
    for epsilon in (0.5, 8.0):
        problem = replace(ranked, budget=ap.Budget(epsilon, 1e-6))
        found = ap.plan(problem, ["blt"], pipelines=["balls-in-bins"])
        assert curve["BLT", epsilon] == pytest.approx(min(c.error for c in found.candidates), rel=0.03)
    for name in ("epsilon", "steps"):
        assert any("BLT" in words and "estimates" in words for words in parts[name]["words"])


def test_progress_can_stop_the_work():
    class Enough(Exception):
        pass

    def stop(what, share):
        raise Enough

    with pytest.raises(Enough):
        list(Answers().parts(SETTINGS, stop))


def test_shares_are_shares(found):
    assert all(0.0 <= share <= 1.0 for _, share in found[1])
    assert len(found[1]) > 20


def test_where_dp_sgd_is_best_the_page_says_so():
    settings = ExplorerSettings(steps=40, epochs=1.0, batch_size=10, epsilon=0.5, delta=1e-6, participation="poisson")
    part = dict(Answers().parts(settings, lambda what, share: None))["plan"]
    assert part["name"] == "DP-SGD"
    assert "best here" in part["sentence"]


def test_the_price_is_interpolated_on_the_curve():
    curve = {"BLT": {1.0: 20.0, 2.0: 10.0, 0.5: 40.0}, "DP-SGD": {x: 40.0 / x for x in (0.25, 0.5, 1.0, 2.0, 4.0)}}
    words = price_in_words(1.0, curve)
    assert "Halving epsilon from 1 to 0.5 raises the predicted error by 100 %." in words
    assert "Doubling epsilon from 1 to 2 lowers the predicted error by 50 %." in words
    assert words[-1] == "At epsilon 1, DP-SGD has 2.00 times the error. It needs epsilon 2 or so for the same error."
    between = price_in_words(1.0, {"BLT": {1.0: 40.0 / math.sqrt(2.0)}, "DP-SGD": {1.0: 40.0, 2.0: 20.0}})
    assert "needs epsilon 1.4 or so" in between[-1]
    outside = price_in_words(1.0, {"BLT": {1.0: 1.0}, "DP-SGD": {1.0: 40.0, 2.0: 20.0}})
    assert "needs" not in outside[-1]
