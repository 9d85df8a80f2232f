"""The chart of the training benchmark: accuracy against epsilon, with 95 % confidence intervals."""

from __future__ import annotations

from html import escape

from antiphase._report.style import file_style

WIDTH, PLOT, LEFT, RIGHT, TOP, LINE = 640, 284, 62, 14, 16, 22
COLOURS = 6
Point = tuple[str, float, float, float]  # mechanism, epsilon, mean accuracy, half the width of its confidence interval


def picture(points: list[Point]) -> str:
    """Return the chart as an SVG file. Epsilons are evenly spaced, and mechanisms are slightly offset horizontally."""
    names = list(dict.fromkeys(name for name, *_ in points))
    epsilons = sorted({epsilon for _, epsilon, _, _ in points})
    low = min(mean - half for *_, mean, half in points)
    high = max(mean + half for *_, mean, half in points)
    low, high = int(low * 20) / 20, (int(high * 20) + 1) / 20
    height = TOP + PLOT + 56 + LINE * -(-len(names) // 2)

    def x(epsilon: float, name: str | None = None) -> float:
        beside = 0.0 if name is None else 4.0 * (names.index(name) - (len(names) - 1) / 2)
        return LEFT + (WIDTH - LEFT - RIGHT) * (epsilons.index(epsilon) + 0.5) / len(epsilons) + beside

    def y(accuracy: float) -> float:
        return TOP + PLOT * (high - accuracy) / (high - low)

    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{file_style()}</style>",
        "<title>Accuracy of private training against epsilon, by mechanism, with 95 % intervals</title>",
    ]
    for tick in range(round(low * 100), round(high * 100) + 1, 5):
        at = y(tick / 100)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{tick} %", "end"))
    parts += [_text(x(epsilon), TOP + PLOT + 20, f"{epsilon:g}", "middle") for epsilon in epsilons]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, TOP + PLOT + 40, "epsilon (delta 1e-5)", "middle"))
    for index, name in enumerate(names):
        mine = [(x(epsilon, name), mean, half) for other, epsilon, mean, half in points if other == name]
        line = " ".join(f"{at:.1f},{y(mean):.1f}" for at, mean, _ in mine)
        dashes, colour = ("", "7 4", "2 4", "9 3 2 3")[index % 4], index % COLOURS
        parts.append(f'<polyline class="line c{colour}" stroke-dasharray="{dashes}" points="{line}"/>')
        for at, mean, half in mine:
            top, bottom = y(mean + half), y(mean - half)
            bar = f"M{at:.1f} {top:.1f}V{bottom:.1f}M{at - 4:.1f} {top:.1f}h8M{at - 4:.1f} {bottom:.1f}h8"
            parts.append(f'<path class="c{colour}" stroke-width="1.6" fill="none" d="{bar}"/>')
        left, top = LEFT + 290 * (index % 2), TOP + PLOT + 66 + LINE * (index // 2)
        stroke = f'class="line c{colour}" stroke-dasharray="{dashes}"'
        parts.append(f'<line {stroke} x1="{left}" x2="{left + 34}" y1="{top}" y2="{top}"/>')
        parts.append(_text(left + 42, top + 4, name, "start"))
    return "".join([*parts, "</svg>\n"])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
