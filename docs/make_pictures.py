"""Draws the pictures of the documentation, except those of the architecture and the screenshots.

`python docs/make_pictures.py` writes these files:

- docs/images/participation-*.svg: which examples are in which steps, drawn by the library's own samplers
- docs/images/accuracy.svg: the results in benchmarks/training.jsonl
- docs/images/how-it-works.svg: one step of private training
"""

from __future__ import annotations

import json
from collections import defaultdict
from html import escape
from pathlib import Path

import antiphase as ap
from antiphase._demo.confidence_interval import Interval, mean
from antiphase._participation import Participation
from antiphase._report.style import file_style

EXAMPLES, STEPS, CELL, LEFT, TOP = 12, 12, 20, 66, 34
STYLE = (
    file_style() + "text{font:12px system-ui,sans-serif;fill:var(--ink)}.on{fill:var(--c0)}.one{fill:var(--c1)}"
    ".off{fill:var(--grid)}.epoch{stroke:var(--dim);stroke-width:1.5}"
)
PICTURES: dict[str, tuple[Participation, int]] = {
    "single": (ap.SingleParticipation(), 0),
    "fixed-epochs": (ap.FixedEpochs(3, 4), 4),
    "shuffled-epochs": (ap.ShuffledEpochs(3, 4), 4),
    "min-separation": (ap.MinSeparation(4), 0),
    "poisson": (ap.Poisson(0.25), 0),
    "cyclic-poisson": (ap.CyclicPoisson(3, 0.6), 3),
    "balls-in-bins": (ap.BallsInBins(3, 4), 4),
    "poisson-min-separation": (ap.PoissonMinSeparation(4, 0.5), 0),
}


def drawing(participation: Participation, every: int) -> str:
    """Return an SVG picture of which examples are in which steps: one row per example, one column per step.

    The first example has a different colour.

    Args:
        participation: participation whose sampler draws the batches.
        every: number of steps between two vertical lines, such as the steps of an epoch; 0 for no lines.
    """
    sampler = participation.sampler(EXAMPLES, STEPS, ap.Secret.insecure(1))
    width, height = LEFT + CELL * STEPS + 8, TOP + CELL * EXAMPLES + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        f"<style>{STYLE}</style><title>{escape(repr(participation))}: which of {EXAMPLES} examples are in which of "
        f"{STEPS} steps</title>",
        f'<text x="{LEFT + CELL * STEPS / 2:g}" y="14" text-anchor="middle">step</text>',
        '<text x="2" y="52">example</text>',
    ]
    for step in range(STEPS):
        indices, mask = sampler.batch(step)
        taken = set(indices[mask].tolist())
        parts.append(f'<text x="{LEFT + CELL * step + 9}" y="{TOP - 6}" text-anchor="middle">{step}</text>')
        for example in range(EXAMPLES):
            look = ("one" if example == 0 else "on") if example in taken else "off"
            x, y = LEFT + CELL * step + 1, TOP + CELL * example + 1
            parts.append(f'<rect class="{look}" x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3"/>')
    for step in range(every, STEPS, every) if every else ():
        x = LEFT + CELL * step
        parts.append(f'<line class="epoch" x1="{x}" x2="{x}" y1="{TOP - 18}" y2="{height - 4}"/>')
    return "".join([*parts, "</svg>\n"])


RESULTS = Path(__file__).parents[1] / "benchmarks" / "training.jsonl"
ROWS = {  # benchmark results to draw; each key is a "row" in RESULTS, each value is (title, colour, dashes)
    "planner": ("Antiphase", 0, ""),
    "planner-unamplified": ("Antiphase, without sampling", 2, "7 4"),
    "dp-sgd": ("DP-SGD", 1, "2 4"),
}
PLOT_WIDTH, PLOT_HEIGHT, PLOT_LEFT, PLOT_TOP, LABELS = 470, 300, 60, 44, 200
LOWEST, HIGHEST = 0.58, 0.82
ACCURACY_STYLE = file_style() + (
    ".chart text{font-size:14px}.chart .small{font-size:13px;fill:var(--dim)}"
    ".chart .title{font-size:16px;font-weight:600}.bar{fill:none;stroke-width:1.8}"
    ".dot{fill:var(--back);stroke-width:2.2}"
)


def accuracies(path: Path = RESULTS) -> dict[str, dict[float, Interval]]:
    """Return the mean test accuracy over the seeds, with its 95 % interval, for each key of `ROWS` and each epsilon."""
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for line in map(json.loads, path.read_text().splitlines()):
        if line["stage"] == "final":
            found[line["row"], line["epsilon"]].append(line["accuracy"])
    return {
        row: {epsilon: mean(values) for (name, epsilon), values in sorted(found.items()) if name == row} for row in ROWS
    }


def accuracy_picture(measured: dict[str, dict[float, Interval]]) -> str:
    """Return an SVG chart of accuracy against epsilon, with intervals, and with a title at the end of each line."""
    epsilons = sorted({epsilon for values in measured.values() for epsilon in values})
    width, height = PLOT_LEFT + PLOT_WIDTH + LABELS, PLOT_TOP + PLOT_HEIGHT + 52

    def x(epsilon: float) -> float:
        return PLOT_LEFT + PLOT_WIDTH * (epsilons.index(epsilon) + 0.35) / (len(epsilons) - 0.3)

    def y(accuracy: float) -> float:
        return PLOT_TOP + PLOT_HEIGHT * (HIGHEST - accuracy) / (HIGHEST - LOWEST)

    told = "; ".join(
        f"{ROWS[row][0]}: " + ", ".join(f"{value} at epsilon {epsilon:g}" for epsilon, value in values.items())
        for row, values in measured.items()
    )
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'role="img" aria-labelledby="title desc">',
        f"<style>{ACCURACY_STYLE}</style>",
        '<title id="title">Accuracy of private training against epsilon</title>',
        f'<desc id="desc">{escape(told)}.</desc>',
        f'<rect width="{width}" height="{height}" style="fill:var(--back)"/>',
        f'<text class="title" x="{PLOT_LEFT}" y="24">Test accuracy at the same privacy, mean and 95 % interval</text>',
    ]
    for tick in range(60, 81, 5):
        at = y(tick / 100)
        parts.append(f'<line class="grid" x1="{PLOT_LEFT}" x2="{PLOT_LEFT + PLOT_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="small" x="{PLOT_LEFT - 8}" y="{at + 5:.1f}" text-anchor="end">{tick} %</text>')
    for epsilon in epsilons:
        at, below = x(epsilon), PLOT_TOP + PLOT_HEIGHT + 20
        parts.append(f'<text class="small" x="{at:.1f}" y="{below}" text-anchor="middle">{epsilon:g}</text>')
    middle, bottom = PLOT_LEFT + PLOT_WIDTH / 2, height - 10
    parts.append(f'<text class="small" x="{middle:g}" y="{bottom}" text-anchor="middle">epsilon (delta 1e-5)</text>')
    for row, values in measured.items():
        title, colour, dashes = ROWS[row]
        line = " ".join(f"{x(epsilon):.1f},{y(value.value):.1f}" for epsilon, value in values.items())
        parts.append(f'<polyline class="line c{colour}" stroke-dasharray="{dashes}" points="{line}"/>')
        for epsilon, value in values.items():
            at, top, low = x(epsilon), y(value.value + value.margin), y(value.value - value.margin)
            bar = f"M{at:.1f} {top:.1f}V{low:.1f}M{at - 5:.1f} {top:.1f}h10M{at - 5:.1f} {low:.1f}h10"
            parts.append(f'<path class="bar c{colour}" d="{bar}"/>')
            parts.append(f'<circle class="dot c{colour}" cx="{at:.1f}" cy="{y(value.value):.1f}" r="3.4"/>')
        last = values[epsilons[-1]]
        end = x(epsilons[-1]) + 14
        parts.append(f'<text x="{end:.1f}" y="{y(last.value) + 5:.1f}" style="fill:var(--c{colour})">{title}</text>')
    return "".join([*parts, "</svg>\n"])


# The boxes in the picture of a step: (left, top, width, title, second line, class). Boxes of class "ours" (blue) are
# the library, boxes of class "yours" (grey) are the user's program.
BOXES = (
    (10, 60, 120, "batch", "drawn by the run", "ours"),
    (165, 60, 150, "clip and sum", "your gradients", "yours"),
    (350, 60, 120, "add noise", "row t of N z", "ours"),
    (505, 60, 120, "optimizer", "your update", "yours"),
    (660, 60, 120, "model", "released", "yours"),
    (350, 172, 120, "earlier noise", "few buffers", "ours"),
    (660, 172, 120, "ledger", "every step", "ours"),
    (505, 172, 120, "epsilon", "of steps that ran", "ours"),
)
# The arrows between the boxes: (x1, y1, x2, y2, label), from (x1, y1) to (x2, y2).
ARROWS = (
    (130, 86, 165, 86, ""),
    (315, 86, 350, 86, ""),
    (470, 86, 505, 86, ""),
    (625, 86, 660, 86, ""),
    (396, 172, 396, 112, "cancels"),
    (426, 112, 426, 172, ""),
    (720, 112, 720, 172, "records"),
    (660, 198, 625, 198, ""),
)
FLOW_STYLE = file_style() + (
    "text{font:14px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}.dim{font-size:12px;fill:var(--dim)}"
    ".title{font-weight:600}.ours{fill:none;stroke:var(--c0);stroke-width:2}.yours{fill:var(--card);stroke:var(--dim)}"
    ".arrow{stroke:var(--ink);stroke-width:1.5}.head{fill:var(--ink)}"
)


def flow_picture() -> str:
    """Return an SVG picture of one step of private training."""
    width, height = 790, 240
    told = (
        "In every step, the run draws a batch, your program clips and sums the gradients, the run adds a row of N z, "
        "which cancels part of the earlier noise, and your optimizer updates the model. The ledger records the step, "
        "and epsilon is computed from the ledger."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'aria-labelledby="title desc">',
        f"<style>{FLOW_STYLE}</style>",
        '<title id="title">One step of private training with correlated noise</title>',
        f'<desc id="desc">{told}</desc>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect width="{width}" height="{height}" style="fill:var(--back)"/>',
        '<text x="395" y="28">Step t: <tspan style="fill:var(--c0)">blue boxes</tspan> are Antiphase, grey ones are '
        "your program</text>",
    ]
    for left, top, wide, title, below, look in BOXES:
        middle = left + wide / 2
        parts.append(f'<rect class="{look}" x="{left}" y="{top}" width="{wide}" height="52" rx="9"/>')
        parts.append(f'<text class="title" x="{middle:g}" y="{top + 22}">{title}</text>')
        parts.append(f'<text class="dim" x="{middle:g}" y="{top + 41}">{below}</text>')
    for x1, y1, x2, y2, label in ARROWS:
        line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        parts.append(f'<line class="arrow" {line} marker-end="url(#head)"/>')
        if label:
            parts.append(f'<text class="dim" x="{x1 - 30}" y="{(y1 + y2) // 2 + 4}">{label}</text>')
    return "".join([*parts, "</svg>\n"])


def main(images: Path) -> None:
    """Write all pictures to the directory `images`."""
    images.mkdir(exist_ok=True)
    (images / "accuracy.svg").write_text(accuracy_picture(accuracies()))
    (images / "how-it-works.svg").write_text(flow_picture())
    for name, (participation, every) in PICTURES.items():
        (images / f"participation-{name}.svg").write_text(drawing(participation, every))


if __name__ == "__main__":
    main(Path(__file__).parent / "images")
