"""Charts of values with confidence intervals, one row per value, as SVG with a text summary for screen readers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._escape import html_text
from antiphase._report.chart import COLOURS, RIGHT, WIDTH, axis, tick_text

LEFT, TOP, ROW, FOOT = 14.0, 8.0, 46.0, 44.0


@dataclass(frozen=True)
class IntervalChart:
    """Values with intervals.

    Args:
        title: title of the chart.
        label: label of the axis, with unit.
        rows: one (name, value, half width of the interval) per row.
    """

    title: str
    label: str
    rows: tuple[tuple[str, float, float], ...]

    @property
    def summary(self) -> str:
        """A description of the chart for screen readers."""
        rows = (f"{name}: {value:.1f} ± {half:.1f}" for name, value, half in self.rows)
        return f"{self.label}. {'; '.join(rows)}."


def draw_intervals(chart: IntervalChart, name: str) -> str:
    """Return the chart as an SVG element for an HTML page.

    Args:
        chart: chart to draw.
        name: prefix of the ids of the SVG elements; must be unique on the page.
    """
    ends = np.array([(value - half, value + half) for _, value, half in chart.rows])
    x = axis([ends], LEFT, WIDTH - RIGHT, log=False)
    below = TOP + ROW * len(chart.rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH:g} {below + FOOT:g}" role="img" '
        f'aria-labelledby="{name}-title {name}-text">',
        f'<title id="{name}-title">{html_text(chart.title)}</title>',
        f'<desc id="{name}-text">{html_text(chart.summary)}</desc>',
    ]
    for tick in x.ticks():
        at = x.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:g}" y2="{below:g}"/>')
        parts.append(f'<text x="{at:.1f}" y="{below + 17:g}" text-anchor="middle">{tick_text(tick)}</text>')
    for i, (title, value, half) in enumerate(chart.rows):
        top = TOP + ROW * i
        low, at, high, middle = x.place(value - half), x.place(value), x.place(value + half), top + 32.0
        bar = f"M{low:.1f} {middle:g}H{high:.1f}M{low:.1f} {middle - 5:g}v10M{high:.1f} {middle - 5:g}v10"
        words = f"{title}: {value:.1f} ± {half:.1f}"
        parts.append(f'<text x="{LEFT:g}" y="{top + 16:g}">{html_text(words)}</text>')
        parts.append(f'<path class="line c{i % COLOURS}" d="{bar}"><title>{html_text(words)}</title></path>')
        parts.append(f'<circle class="dot c{i % COLOURS}" cx="{at:.1f}" cy="{middle:g}" r="4.4"/>')
    centre = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{centre:g}" y="{below + 37:g}" text-anchor="middle">{html_text(chart.label)}</text></svg>')
    return "".join(parts)
