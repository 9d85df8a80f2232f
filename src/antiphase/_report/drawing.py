"""Charts as SVG: lines told apart by colour, by dashes and by name, with their description inside."""

from __future__ import annotations

from antiphase._escape import html_text
from antiphase._report.axis import Axis, axis, tick_text
from antiphase._report.chart import Chart, Series

WIDTH, PLOT_HEIGHT = 420.0, 230.0
LEFT, RIGHT, TOP = 58.0, 14.0, 14.0
ROW, LETTER = 18.0, 7.0
FILE_WIDTH = 560
COLOURS = 6
FAINT = 'class="line faint"'
DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "12 4")


def draw(chart: Chart, name: str, style: str = "") -> str:
    """The chart as an SVG element; `style` goes inside, for a file that stands alone."""
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
        *_grid(x, y, below),
        *_marks(chart, x, below),
        *(_line(s, FAINT, x, y) for s in chart.series if s.faint),
        *(_line(s, _look(i), x, y) for i, s in enumerate(clear)),
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, below + 36, chart.x_label, "middle"),
        f'<text transform="translate(13 {TOP + PLOT_HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{html_text(chart.y_label)}</text>",
        *_legend(rows, below + 46.0),
        "</svg>",
    ]
    return "".join(parts)


def _grid(x: Axis, y: Axis, below: float) -> list[str]:
    found = []
    for value in y.ticks():
        at = y.place(value)
        found.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
        found.append(_text(LEFT - 6, at + 4, tick_text(value), "end"))
    for value in x.ticks():
        at = x.place(value)
        found.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP:g}" y2="{below:g}"/>')
        found.append(_text(at, below + 17, tick_text(value), "middle"))
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
    points = [f"{x.place(a):.1f} {y.place(b):.1f}" for a, b in zip(line.x, line.y, strict=True)]
    return f'<path {look} d="M{" L".join(points)}"><title>{html_text(line.name)}</title></path>'


def _look(index: int) -> str:
    """Colour and dashes, different for the first 36 lines; the first six differ in both."""
    dash = DASHES[(index + index // COLOURS) % len(DASHES)]
    return f'class="line c{index % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend_rows(lines: list[Series]) -> list[list[tuple[int, str, float]]]:
    """Entries (index, name, left edge) in rows that fit the width."""
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
            found.append(f'<path {_look(i)} d="M{left:.1f} {y:g} h26"/>')
            found.append(_text(left + 31, y + 4, name, "start"))
    return found


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html_text(text)}</text>'
