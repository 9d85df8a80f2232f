"""Charts, tables and text that show the results of an audit, in a report or on a separate page.

A measurement is never stated as a guarantee, and the text says so wherever a measurement is shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antiphase._accounting import check_delta, restated
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._errors import Corrupted, InvalidArgument
from antiphase._escape import html_text
from antiphase._measured import Audit, rounded_down
from antiphase._plan import Plan
from antiphase._record import from_json, parse_json
from antiphase._report.chart import Chart, draw, series
from antiphase._report.style import page_style
from antiphase._report.tables import Table, chart_table
from antiphase._version import __version__

NOT_A_GUARANTEE = (
    "An audit attacks the program and measures what leaks. It can show that a claim is wrong. It cannot show that a "
    "claim is right, and it never replaces or improves the proved guarantee: a program may leak more than an audit "
    "finds."
)
# Relative tolerances for a claim that is computed again: with new random samples, and without samples.
BETWEEN_SAMPLES, ROUNDING = 1e-2, 1e-6
WIDTH, BAR, LEFT, RIGHT = 420.0, 30.0, 10.0, 14.0
ASSUMES = {
    "none": "nothing",
    "independent canaries": "canaries of one run have independent scores",
    "Gaussian trade-off": "the trade-off function is Gaussian",
    "Gaussian noise": "the noise is Gaussian and independent between canaries",
}


def read_audit(data: bytes, plan: Plan | None = None) -> Audit:
    """Read an audit from JSON. Raises an error if the JSON is invalid, or if a different plan was audited.

    If `plan` is given, the claim is computed again, because anyone can edit the file. Raises `Corrupted` if the file
    claims a better guarantee than the plan has. Measured values cannot be checked.
    """
    try:
        found = from_json(parse_json(data))
    except ValueError as error:
        why = error.message if isinstance(error, InvalidArgument) else f"{error}."
        raise Corrupted(f"The audit cannot be read: {why}", hint="write it with antiphase audit --output") from error
    if not isinstance(found, Audit):
        raise InvalidArgument("The file is not an audit.", hint="pass a file that antiphase audit --output wrote")
    if plan is not None and found.plan_fingerprint != plan.fingerprint:
        raise InvalidArgument("The audit belongs to a different plan.", hint="run antiphase audit on this plan or run")
    return found if plan is None else replace(found, claim=_proved_claim(found, plan))


def _proved_claim(audit: Audit, plan: Plan) -> Bound:
    """Return the claim of an audit, computed again from the plan."""
    delta = check_delta("report", audit.claimed_delta)
    derived = restated(plan.mechanism, audit.claim, delta)
    tolerance = BETWEEN_SAMPLES if derived.kind == "confident" else ROUNDING
    if derived.value > audit.claim.value * (1.0 + tolerance):
        raise Corrupted(
            f"The audit claims epsilon {audit.claim.value} at delta {delta}, but its plan gives {derived.value}.",
            hint="the file was edited; run antiphase audit again",
        )
    return derived


def verdict(audit: Audit) -> str:
    """Return the result of an audit in one sentence."""
    if audit.flagged:
        return f"The audit contradicts the claim of epsilon = {rounded_up(audit.claim.value)}."
    return f"The audit found nothing that contradicts the claim of epsilon = {rounded_up(audit.claim.value)}."


def bounds_table(audit: Audit) -> Table:
    """Return a table of the claim and of all measured lower bounds."""
    rows = [("claimed, proved", f"at most {rounded_up(audit.claim.value)}", "", "", audit.claim.method)]
    rows += [
        (
            "measured",
            f"at least {rounded_down(bound.measured_epsilon_at_least)}",
            f"{bound.measurement_confidence:.6g}",
            ASSUMES[bound.measurement_assumes],
            f"{bound.measurement_method}; {bound.measured_scores:,} scores",
        )
        for bound in audit.measured
    ]
    caption = f"Epsilon at delta {digits_up(audit.claimed_delta)}: claimed and measured"
    return Table(caption, ("", "epsilon", "confidence", "assumes", "method"), tuple(rows), text_columns=(3, 4))


def tests_table(audit: Audit) -> Table:
    """Return a table with a row for each part of each test. Every part has its own p-value."""
    rows = tuple(
        (test.what, name, f"{p:.3g}", "departs" if name in test.departures else "as claimed")
        for test in audit.tests
        for name, p in test.p_values
    )
    caption = f"Tests of released values; a correct program is flagged with probability at most {audit.level:.3g}"
    return Table(caption, ("test", "part", "p-value", "result"), rows)


def tradeoff_chart(audit: Audit) -> Chart:
    """Return a chart of the error rates of the attack, and of the smallest rates that the claimed guarantee allows."""
    lines = []
    for name, points in (("claimed", audit.claimed_roc), ("measured", audit.roc)):
        both = np.array([(x, 1.0 - y) for x, y in points if x > 0.0] or [(1.0, 0.0)])
        order = np.argsort(both[:, 0])
        lines.append(series(name, both[order, 0], both[order, 1]))
    return Chart(
        "Trade-off curve of the attack",
        "false positive rate",
        "false negative rate",
        tuple(lines),
        log_x=True,
    )


def draw_bars(audit: Audit, name: str) -> str:
    """Return a chart with the claimed epsilon as a line and the measured lower bounds as bars."""
    values = [bound.measured_epsilon_at_least for bound in audit.measured]
    most = max([*values, audit.claim.value, 1e-9]) * 1.05
    height = 2 * BAR + BAR * 1.5 * max(len(values), 1)

    def place(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(value / most, 1.0)

    texts = [f"claimed: {rounded_up(audit.claim.value)}"]
    parts = []
    for i, bound in enumerate(audit.measured):
        top = BAR * (1.2 + 1.5 * i)
        assumes = ASSUMES[bound.measurement_assumes]
        label = f"at least {rounded_down(bound.measured_epsilon_at_least)}, assumes {assumes}"
        texts.append(label)
        wide = place(bound.measured_epsilon_at_least) - LEFT
        parts.append(
            f'<rect class="bar" x="{LEFT:g}" y="{top:.1f}" width="{max(wide, 1.0):.1f}" height="12"/>'
            f'<text x="{LEFT:g}" y="{top + 27:.1f}">{html_text(label)}</text>'
        )
    at = place(audit.claim.value)
    anchor = "end" if at > WIDTH / 2 else "start"
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
            f'aria-labelledby="{name}-title {name}-text"><title id="{name}-title">Claimed and measured epsilon</title>',
            f'<desc id="{name}-text">{html_text("; ".join(texts))}</desc>',
            *parts,
            f'<line class="claim" x1="{at:.1f}" x2="{at:.1f}" y1="{BAR * 0.6:.1f}" y2="{height - 4:.1f}"/>',
            f'<text x="{at - 4 if anchor == "end" else at + 4:.1f}" y="{BAR * 0.5:.1f}" text-anchor="{anchor}">'
            f"{html_text(texts[0])}</text></svg>",
        ]
    )


def measured_parts(audit: Audit) -> dict[str, Any]:
    """Return the values that the template needs to show an audit."""
    from markupsafe import Markup

    chart = tradeoff_chart(audit)
    return {
        "audit": audit,
        "verdict": verdict(audit),
        "warning": NOT_A_GUARANTEE,
        "tables": [bounds_table(audit), tests_table(audit)],
        "bars": Markup(draw_bars(audit, "measured-bars")),  # `draw_bars` and `draw` escape all text
        "chart": {"title": chart.title, "svg": Markup(draw(chart, "measured-0")), "data": chart_table(chart)},
    }


def audit_page(audit: Audit) -> str:
    """Return an audit as a self-contained HTML page."""
    from markupsafe import Markup

    from antiphase._report.html_page import environment

    template = environment().get_template("audit.html.jinja")
    return template.render(
        title="Privacy audit", version=__version__, chart_style=Markup(page_style()), **measured_parts(audit)
    )
