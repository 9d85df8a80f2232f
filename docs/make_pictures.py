"""Draws docs/images/participation-*.svg from the library's own samplers; `python docs/make_pictures.py` renews them."""

from __future__ import annotations

from html import escape
from pathlib import Path

import antiphase as ap
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
    """Examples down, steps across; the first example in another colour, and a line after every few steps."""
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


def main(images: Path) -> None:
    """Write every picture."""
    images.mkdir(exist_ok=True)
    for name, (participation, every) in PICTURES.items():
        (images / f"participation-{name}.svg").write_text(drawing(participation, every))


if __name__ == "__main__":
    main(Path(__file__).parent / "images")
