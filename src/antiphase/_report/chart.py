"""Line charts as SVG, with a text summary for screen readers.

Lines differ in colour, dash pattern and name, so that they can be told apart without colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from antiphase._check import Array
from antiphase._escape import html_text

WIDTH, PLOT_HEIGHT = 420.0, 230.0
LEFT, RIGHT, TOP = 58.0, 14.0, 14.0
ROW, LETTER = 18.0, 7.0
FILE_WIDTH = 560
COLOURS = 6
FAINT = 'class="line faint"'
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "12 4")
MAX_TICKS = 5
MAX_DECADE_TICKS = 6


@dataclass(frozen=True)
class Series:
    """One named line.

    Args:
        name: name in the legend.
        x, y: coordinates of the points.
        faint: if true, draw the line in grey behind the others, without an entry in the legend.
        dots: if true, mark every point.
        joined: if true, connect the points by a line.
    """

    name: str
    x: Array
    y: Array
    faint: bool = False
    dots: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Chart:
    """A line chart.

    Args:
        title: title of the chart.
        x_label, y_label: labels of the axes, with units.
        series: lines to draw.
        log_x, log_y: if true, the axis is logarithmic.
        marks: labelled vertical lines, as (x, label), such as the number of steps that ran.
        x_ticks: labelled ticks of the x axis, as (x, label); empty to choose round numbers.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    x_ticks: tuple[tuple[float, str], ...] = ()

    @property
    def summary(self) -> str:
        """A description of the chart for screen readers."""
        clear = [s for s in self.series if not s.faint]
        lines = [f"{s.name}: from {s.y[0]:.4g} at {s.x[0]:g} to {s.y[-1]:.4g} at {s.x[-1]:g}" for s in clear]
        more = (
            f" More lines in the background: {len(self.series) - len(clear)}." if len(clear) < len(self.series) else ""
        )
        return f"{self.y_label} against {self.x_label}. " + "; ".join(lines) + "." + more


def series(
    name: str, x: ArrayLike, y: ArrayLike, *, faint: bool = False, dots: bool = False, joined: bool = True
) -> Series:
    """Return a line through the points (x, y), without points that are NaN or infinite."""
    across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    kept = np.isfinite(across) & np.isfinite(up)
    return Series(name, across[kept], up[kept], faint, dots, joined)


def thinned(count: int, most: int = 256) -> Array:
    """Return at most `most` of the indices of `count` points, evenly spaced, including the first and the last.

    >>> thinned(10, 4).tolist()
    [0, 3, 6, 9]
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def draw(chart: Chart, name: str, style: str = "") -> str:
    """Return the chart as an SVG element.

    Args:
        chart: chart to draw.
        name: prefix of the ids of the SVG elements; must be unique on the page.
        style: CSS to include, for a standalone file; empty inside an HTML page.
    """
    below = TOP + PLOT_HEIGHT
    clear = [s for s in chart.series if not s.faint]
    rows = _legend_rows(clear)
    size = f' width="{FILE_WIDTH}"' if style else ""
    height = below + 46.0 + ROW * len(rows)
    x = axis([s.x for s in chart.series], LEFT, WIDTH - RIGHT, chart.log_x)
    y = axis([s.y for s in chart.series], below, TOP, chart.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH:g} {height:g}" role="img"{size} '
        f'aria-labelledby="{name}-title {name}-text">',
        f"<style>{style}</style>" if style else "",
        f'<title id="{name}-title">{html_text(chart.title)}</title>',
        f'<desc id="{name}-text">{html_text(chart.summary)}</desc>',
        *_grid(x, y, below, chart.x_ticks),
        *_marks(chart, x, below),
        *(_line(s, FAINT, x, y) for s in chart.series if s.faint),
        *(_line(s, _stroke(i), x, y) for i, s in enumerate(clear)),
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, below + 36, chart.x_label, "middle"),
        f'<text transform="translate(13 {TOP + PLOT_HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{html_text(chart.y_label)}</text>",
        *_legend(rows, below + 46.0),
        "</svg>",
    ]
    return "".join(parts)


def _grid(x: Axis, y: Axis, below: float, x_ticks: tuple[tuple[float, str], ...]) -> list[str]:
    found = []
    for value in y.ticks():
        at = y.place(value)
        found.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        found.append(_text(LEFT - 6, at + 4, tick_text(value), "end"))
    for value, label in x_ticks or [(value, tick_text(value)) for value in x.ticks()]:
        at = x.place(value)
        found.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:g}" y2="{below:g}"/>')
        found.append(_text(at, below + 17, label, "middle"))
    return found


def _marks(chart: Chart, x: Axis, below: float) -> list[str]:
    found = []
    for value, label in chart.marks:
        at = x.place(value)
        anchor = "start" if at < WIDTH / 2 else "end"
        found.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:g}" y2="{below:g}"/>')
        found.append(_text(at + (4 if anchor == "start" else -4), TOP + 11, label, anchor))
    return found


def _line(line: Series, look: str, x: Axis, y: Axis) -> str:
    places = [(x.place(a), y.place(b)) for a, b in zip(line.x, line.y, strict=True)]
    title = f"<title>{html_text(line.name)}</title>"
    points = " L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    path = f'<path {look} d="M{points}">{title}</path>' if line.joined else ""
    if not line.dots:
        return path
    shape = look.replace("line", "dot", 1).partition(" stroke-dasharray")[0]
    return path + "".join(f'<circle {shape} cx="{a:.1f}" cy="{b:.1f}" r="3.6">{title}</circle>' for a, b in places)


def _stroke(index: int) -> str:
    """Return the SVG attributes for colour and dashes of a line.

    The first 36 lines all differ in colour or dashes. The first six lines differ in both.
    """
    dash = DASHES[(index + index // COLOURS) % len(DASHES)]
    return f'class="line c{index % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend_rows(lines: list[Series]) -> list[list[tuple[int, str, float]]]:
    """Return legend entries (index, name, left edge), in rows that fit the width."""
    rows: list[list[tuple[int, str, float]]] = []
    at = WIDTH
    for i, line in enumerate(lines):
        width = 40.0 + LETTER * len(line.name)
        if at + width > WIDTH - RIGHT:
            rows.append([])
            at = LEFT - 40.0
        rows[-1].append((i, line.name, at))
        at += width
    return rows


def _legend(rows: list[list[tuple[int, str, float]]], top: float) -> list[str]:
    found = []
    for row, entries in enumerate(rows):
        y = top + ROW * row + 8.0
        for i, name, left in entries:
            found.append(f'<path {_stroke(i)} d="M{left:.1f} {y:g} h26"/>')
            found.append(_text(left + 31, y + 4, name, "start"))
    return found


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(text)}</text>'


@dataclass(frozen=True)
class Axis:
    """Maps numbers from low to high, linearly or logarithmically, to positions from start to end."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, value: float) -> float:
        """Return the position of a number."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers within the range, one per tick."""
        return _decades(self.low, self.high) if self.log else _round_steps(self.low, self.high)


def axis(values: list[Array], start: float, end: float, log: bool) -> Axis:
    """Return an axis that shows all values. A linear axis starts at 0 if 0 <= smallest value < largest value / 2."""
    low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if log:
        return Axis(low / 1.1, high * 1.1, start, end, True) if high > low else Axis(low / 2, low * 2, start, end, True)
    if 0.0 <= low < 0.5 * high:
        low = 0.0
    if high == low:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    return Axis(low, high + 0.03 * (high - low), start, end, False)


def tick_text(value: float) -> str:
    """Format a number in a few characters.

    >>> tick_text(0.0), tick_text(2000.0), tick_text(1e-5), tick_text(0.25)
    ('0', '2,000', '1e-5', '0.25')
    """
    size = abs(value)
    if size == 0.0:
        return "0"
    if size < 1e-3 or size >= 1e6:
        digits, _, power = f"{value:.3g}".partition("e")
        return f"{digits}e{int(power)}" if power else digits
    return f"{value:,.6g}" if size < 1000 else f"{value:,.0f}"


def _round_steps(low: float, high: float) -> list[float]:
    raw = (high - low) / MAX_TICKS
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * unit >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, -(-(last - first) // MAX_DECADE_TICKS))
    parts = (1.0,) if last - first > 2 else (1.0, 2.0, 5.0)
    candidates = [m * 10.0**e for e in range(first, last + 1, every) for m in parts]
    return [v for v in candidates if low <= v <= high]
