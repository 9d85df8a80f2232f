"""The report of the demo as one self-contained HTML page, from templates/demo.html.jinja."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shutil import which

import numpy as np

from antiphase._check import Array
from antiphase._demo.comparison import Arm, Comparison
from antiphase._demo.demo_report import gains, guarantees, remarks, results, title_lines
from antiphase._demo.training import schedule
from antiphase._error import error
from antiphase._noise import NoiseStream
from antiphase._report import (
    Chart,
    IntervalChart,
    Table,
    chart_figure,
    draw_intervals,
    environment,
    page_style,
    series,
)
from antiphase._secret import Secret
from antiphase._version import __version__

DRAWN = 101  # number of parameters from which a typical one is chosen


def as_html(found: Comparison, directory: Path) -> str:
    """Return the report as an HTML page.

    Args:
        found: the result of the demo.
        directory: directory of the demo, for the commands on the page.
    """
    from markupsafe import Markup

    accuracy = accuracy_chart(found)
    figures = [chart_figure(chart, f"noise-{i}") for i, chart in enumerate(noise_charts(found))]
    columns, *rows = results(found)
    promised_columns, *promised_rows = guarantees(found)
    names = {
        "accuracy": "Accuracy",
        "noise": "Why: the noise cancels",
        "promise": "What was promised, and what ran",
        "read": "How to read this",
    }
    return (
        environment("antiphase._demo")
        .get_template("demo.html.jinja")
        .render(
            title="Private training on handwritten digits",
            style=Markup(page_style()),
            lead=title_lines(found),
            gains=gains(found),
            sections=names,
            accuracy={"title": accuracy.title, "svg": Markup(draw_intervals(accuracy, "accuracy"))},
            results=Table("All mechanisms", tuple(columns), tuple(map(tuple, rows)), text_columns=(0,)),
            noise=figures[:-1],
            spread=figures[-1],
            promise=Table(
                "From the plans and the ledgers of the runs",
                tuple(promised_columns),
                tuple(map(tuple, promised_rows)),
                text_columns=(0, 1),
            ),
            remarks=remarks(found),
            commands=_commands(found, directory),
            version=__version__,
        )
    )


def _commands(found: Comparison, directory: Path) -> list[tuple[str, str]]:
    run = found.chosen.directory
    return [
        (f"{command()} verify {run}", "check the ledger, the batches and the guarantee of a run"),
        (f"{command()} report {run} --output {directory / 'privacy.html'}", "write the privacy report for a reviewer"),
        (f"{command()} explore", "see how the best mechanism changes with the budget"),
    ]


def command() -> str:
    """Return how to call the command line: "antiphase", or its path if it is not on PATH."""
    return "antiphase" if which("antiphase") else os.path.relpath(Path(sys.executable).with_name("antiphase"))


def accuracy_chart(found: Comparison) -> IntervalChart:
    """Return a chart of the test accuracy of each mechanism, with confidence intervals."""
    arms = (found.chosen, found.plain, found.larger)  # this order gives a mechanism the same colour in all charts
    rows = [(_name(arm), arm.accuracy) for arm in arms]
    rows.append(("no noise, not private", found.without_noise))
    percent = tuple((name, 100.0 * value.value, 100.0 * value.margin) for name, value in rows)
    runs = len(found.chosen.accuracies)
    return IntervalChart(
        f"Test accuracy, mean of {runs} runs with its 95 % interval", "test accuracy in percent", percent
    )


def noise_charts(found: Comparison) -> list[Chart]:
    """Return charts for a typical parameter: noise in every step, noise in the model, and its standard deviation."""
    arms = (found.chosen, found.plain)
    added = {_name(arm): _scale(arm) * schedule(arm.plan.steps) * _sample(arm) for arm in arms}
    steps = {name: np.arange(1, len(values) + 1) for name, values in added.items()}
    spread = [
        series(_name(arm), steps[_name(arm)], _scale(arm) * arm.plan.mechanism.noise_std * _per_step(arm))
        for arm in arms
    ]
    each = [series(name, steps[name], values) for name, values in added.items()]
    total = [series(name, steps[name], np.cumsum(values)) for name, values in added.items()]
    unit = "noise in one parameter"
    return [
        Chart("Noise added in every step, a typical parameter", "step", unit, tuple(each)),
        Chart("The same noise in the model: the sum so far", "step", unit, tuple(total)),
        Chart("Standard deviation of the noise in the model", "step", "standard deviation", tuple(spread)),
    ]


def _sample(arm: Arm) -> Array:
    """Return noise of the mechanism for a typical parameter, from a new secret, so that no run's noise is revealed.

    Of `DRAWN` parameters, the typical one has the median noise in the model (root mean square over the steps).
    """
    stream = NoiseStream(arm.plan.mechanism, [(DRAWN,)], Secret.generate(), dtype="float64")
    noise = np.array([stream.next()[0] for _ in range(arm.plan.steps)])
    in_model = np.cumsum(schedule(arm.plan.steps)[:, None] * noise, axis=0)
    return noise[:, np.argsort(np.square(in_model).sum(axis=0))[DRAWN // 2]]


def _per_step(arm: Arm) -> Array:
    return np.sqrt(error(arm.plan.mechanism.strategy, arm.plan.problem.workload).per_step)


def _scale(arm: Arm) -> float:
    """Return how much one unit of noise changes a parameter in the first step."""
    assert arm.plan.problem.batch_size is not None
    return arm.learning_rate / arm.plan.problem.batch_size


def _name(arm: Arm) -> str:
    return f"{arm.name}, batch size {arm.plan.problem.batch_size}"
