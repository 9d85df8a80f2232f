"""Draws docs/images/architecture.svg from the imports between the packages.

`python docs/make_architecture.py` writes the picture. With `--check`, it fails if the stored picture is out of date.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

import grimp

from antiphase._report.style import file_style

PICTURE = Path(__file__).parent / "images" / "architecture.svg"
PACKAGE = "antiphase"
FOUNDATIONS = "foundations"
WIDTH, HEIGHT, BOX_WIDTH, BOX_HEIGHT, ROW_HEIGHT, TOP = 900, 1000, 170, 48, 82, 110


class Room(NamedTuple):
    """A box in the picture. It stands for one or more first-level modules or packages of antiphase.

    Args:
        row: row of the box, from 0 at the top.
        centre: horizontal position of the centre, in pixels.
        title: text in the box.
        modules: names of these modules and packages.
    """

    row: int
    centre: int
    title: str
    modules: tuple[str, ...]


ROOMS = {
    "command line": Room(0, 450, "command line", ("_cli", "__main__")),
    "audit": Room(1, 120, "audits", ("audit",)),
    "demo": Room(1, 340, "demonstration", ("_demo",)),
    "explorer": Room(1, 560, "explorer", ("_explore",)),
    "reproduction": Room(1, 780, "papers' tables", ("_reproduce",)),
    "torch": Room(2, 94, "PyTorch", ("torch",)),
    "jax": Room(2, 284, "JAX", ("jax",)),
    "flower": Room(2, 618, "Flower", ("flower",)),
    "report": Room(2, 808, "report", ("_report",)),
    "run": Room(3, 450, "run, federated run", ("_run", "_federated")),
    "planner": Room(4, 713, "planner", ("_planner",)),
    "ledger": Room(4, 300, "ledger", ("_ledger",)),
    "noise": Room(4, 94, "noise", ("_noise",)),
    "plan": Room(5, 545, "problem and plan", ("_plan", "_problem")),
    "optimisers": Room(6, 780, "optimisers", ("_optimize",)),
    "accounting": Room(6, 390, "privacy accounting", ("_accounting", "_montecarlo")),
    "error": Room(7, 640, "error and loss", ("_error", "_loss")),
    "sensitivity": Room(7, 340, "sensitivity", ("_sensitivity",)),
    "lattice": Room(7, 94, "lattice", ("_lattice",)),
    "strategies": Room(8, 230, "strategies", ("strategies",)),
    "workload": Room(9, 230, "workload", ("_workload", "_objective", "_spectrum", "schedules")),
    "participation": Room(9, 560, "participation", ("_participation", "_samplers")),
    FOUNDATIONS: Room(
        10,
        450,
        "foundations, used by every package",
        (
            "_kernels",
            "_sealed",
            "_secret",
            "_durable",
            "_escape",
            "_bound",
            "_measured",
            "_errors",
            "_check",
            "_record",
            "_traceback",
            "_version",
        ),
    ),
}
FLOW = ("Problem", "Plan", "Run", "Noise, Ledger", "Report")
STYLE = file_style() + (
    "text{font:14px system-ui,sans-serif;fill:var(--ink);text-anchor:middle}.back{fill:var(--back)}"
    ".room{fill:var(--card);stroke:var(--dim)}.title{font-weight:600}.modules{font-size:12px;fill:var(--dim)}"
    ".edge{fill:none;stroke:var(--c0);stroke-width:1.4}.head{fill:var(--c0)}"
    ".flow{fill:none;stroke:var(--c1);stroke-width:2}.flowhead{fill:var(--c1)}"
)
Edge = tuple[str, str]


def imports() -> set[Edge]:
    """Return all pairs (a, b) of first-level modules of the package where a imports b."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    pairs = {
        (_first_level(m), _first_level(t)) for m in graph.modules for t in graph.find_modules_directly_imported_by(m)
    }
    return {(a, b) for a, b in pairs if a != b and "" not in (a, b)}


def _first_level(module: str) -> str:
    return [*module.split("."), ""][1]


def room_edges(edges: set[Edge]) -> set[Edge]:
    """Return the imports between boxes. Exit with an error if a first-level module is in no box."""
    room_of = {module: name for name, room in ROOMS.items() for module in room.modules}
    if missing := sorted({module for edge in edges for module in edge} - set(room_of)):
        raise SystemExit(f"No box contains {', '.join(missing)}: add it to ROOMS in docs/make_architecture.py")
    return {(room_of[a], room_of[b]) for a, b in edges if room_of[a] != room_of[b]}


def drawn_edges(edges: set[Edge]) -> list[Edge]:
    """Return the imports between boxes that are drawn as arrows.

    Imports of the foundations are left out. An import is also left out if a longer path of arrows implies it.
    """
    shown = {(a, b) for a, b in room_edges(edges) if b != FOUNDATIONS}
    return sorted((a, b) for a, b in shown if not any(_reaches(c, b, shown) for s, c in shown if s == a and c != b))


def _reaches(start: str, end: str, edges: set[Edge]) -> bool:
    return start == end or any(_reaches(b, end, edges) for a, b in edges if a == start)


def drawing(edges: set[Edge]) -> str:
    """Return the picture as SVG. It contains a text alternative, and all imports between boxes as metadata."""
    shown = drawn_edges(edges)
    told = "; ".join(f"{ROOMS[a].title} uses {ROOMS[b].title}" for a, b in shown)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
            'aria-labelledby="title desc">',
            f"<style>{STYLE}</style>",
            '<title id="title">The packages of Antiphase and the imports between them</title>',
            f'<desc id="desc">Data flow: {", then ".join(FLOW)}. Below are the packages, each above those it imports. '
            f"{escape(told)}.</desc>",
            f"<metadata>{_stored_text(edges)}</metadata>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker>'
            '<marker id="flowhead" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto"><path class="flowhead" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>',
            *_flow(),
            *(_edge(a, b) for a, b in shown),
            *(_box(name) for name in ROOMS),
            "</svg>\n",
        ]
    )


def _flow() -> list[str]:
    width, gap = 148, 33
    parts = ['<text x="450" y="22">data flow</text>']
    for index, name in enumerate(FLOW):
        x = 14 + index * (width + gap)
        parts.append(f'<rect class="flow" x="{x}" y="34" width="{width}" height="34" rx="17"/>')
        parts.append(f'<text class="title" x="{x + width / 2:g}" y="56">{name}</text>')
        if index:
            parts.append(f'<path class="flow" marker-end="url(#flowhead)" d="M{x - gap + 3} 51H{x - 3}"/>')
    return [
        *parts,
        '<text x="450" y="98">packages: an arrow means "imports"; arrows implied by a longer path are left out</text>',
    ]


def _top(room: Room) -> int:
    return TOP + room.row * ROW_HEIGHT


def _edge(source: str, target: str) -> str:
    a, b = ROOMS[source], ROOMS[target]
    if a.row == b.row:
        side = 1 if b.centre > a.centre else -1
        x1, x2, y = a.centre + side * BOX_WIDTH // 2, b.centre - side * BOX_WIDTH // 2, _top(a) + BOX_HEIGHT // 2
        return f'<path class="edge" marker-end="url(#head)" d="M{x1} {y}H{x2}"/>'
    x1, y1, x2, y2 = a.centre, _top(a) + BOX_HEIGHT, b.centre, _top(b)
    bend = (y2 - y1) * (5 if b.row == a.row + 1 else 7) // 10  # long arrows stay vertical longer, to pass between boxes
    return f'<path class="edge" marker-end="url(#head)" d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}"/>'


def _box(name: str) -> str:
    room, y = ROOMS[name], _top(ROOMS[name])
    width = WIDTH - 20 if name == FOUNDATIONS else BOX_WIDTH
    return (
        f'<rect class="room" x="{room.centre - width // 2}" y="{y}" width="{width}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="title" x="{room.centre}" y="{y + 20}">{escape(room.title)}</text>'
        f'<text class="modules" x="{room.centre}" y="{y + 38}">{", ".join(room.modules)}</text>'
    )


def _stored_text(edges: set[Edge]) -> str:
    return escape("; ".join(f"{a} to {b}" for a, b in sorted(room_edges(edges))))


def is_current(picture: str, edges: set[Edge]) -> bool:
    """Return whether a stored picture is current. Its metadata also has the imports that are not drawn."""
    return picture == drawing(edges)


def main(arguments: list[str]) -> None:
    """Write the picture, or with `--check`, exit with an error if the stored picture is out of date."""
    edges = imports()
    if "--check" not in arguments:
        PICTURE.write_text(drawing(edges))
    elif not PICTURE.exists() or not is_current(PICTURE.read_text(), edges):
        raise SystemExit(f"{PICTURE.name} is out of date: run python docs/make_architecture.py")


if __name__ == "__main__":
    main(sys.argv[1:])
