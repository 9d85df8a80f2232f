"""The command line of the training benchmarks: measures the selected cells, then prints tables of all results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks._measure import TINY, sized
from benchmarks._training_cells import CACHE, Kept, Row, Task, measure
from benchmarks._training_picture import picture
from benchmarks._training_statistics import by_seed, interval, print_differences, print_tables

NOWHERE = Path(os.devnull)
PICTURED = 8  # number of rows in the chart; they are the best rows at the largest epsilon


def results_file(name: str) -> Path:
    """Return the path of a results file next to the benchmarks, or the path in the environment variable RESULTS.

    With --tiny, results are discarded.
    """
    return sized(Path(os.environ.get("RESULTS", Path(__file__).with_name(name))), NOWHERE)


def run_command(tasks: Sequence[Task], rows: dict[str, Row], drawing: Path | None = None) -> None:
    """Parse the command line, measure the selected cells that are missing, and print the tables."""
    known = [task.name for task in tasks]
    parser = argparse.ArgumentParser(description=f"Measure mechanisms in training: {', '.join(known)}.")
    parser.add_argument("--task", choices=known, help="one of the tasks; all by default")
    parser.add_argument("--rows", default="", help="short names of the rows, separated by commas; all by default")
    parser.add_argument("--epsilons", default="", help="values of epsilon, separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=sized(30, 2), help="number of seeds per cell; 0 to print tables")
    parser.add_argument("--forget", default="", help="rows whose results to remove first, separated by commas")
    parser.add_argument("--against", default="", help="also print the difference of every row to this row")
    parser.add_argument("--list", action="store_true", help="print the short names of the rows and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for name, row in rows.items():
            print(f"{name:32} {row.group:12} {row.title}")
        return
    names = _split(arguments.rows) or list(rows)
    unknown = sorted({*names, *_split(arguments.against)} - rows.keys())
    if unknown:
        parser.error(f"no such rows: {', '.join(unknown)}; --list shows them")
    for task in tasks:
        if arguments.task in (None, task.name):
            epsilons = [float(value) for value in _split(arguments.epsilons)] or list(task.first_rates)
            kept = Kept(task.results)
            for name in _split(arguments.forget):
                _forget(task, name, kept)
            measure(task, {name: rows[name] for name in names}, epsilons, arguments.seeds, kept)
            print_tables(task, rows, kept)
            if arguments.against:
                print_differences(task, rows, arguments.against, kept)
            if drawing is not None and not TINY:
                _draw(task, rows, kept, drawing)


def _forget(task: Task, name: str, kept: Kept) -> None:
    """Remove the results and the cached mechanisms of a row."""
    kept.forget(row=name)
    for path in (CACHE / task.name).glob(f"{name}-[0-9]*.json"):
        if path.stem.rpartition("-")[0] == name:
            path.unlink()


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _draw(task: Task, rows: dict[str, Row], kept: Kept, path: Path) -> None:
    """Write the chart of the best rows. Only rows with at least two results for every epsilon are considered."""
    epsilons = list(task.first_rates)
    complete = [name for name in rows if all(len(by_seed(kept, name, epsilon)) > 1 for epsilon in epsilons)]
    best = sorted(complete, key=lambda name: -interval(list(by_seed(kept, name, epsilons[-1]).values()))[0])
    points = [
        (rows[name].title, epsilon, *interval(list(by_seed(kept, name, epsilon).values())))
        for name in best[:PICTURED]
        for epsilon in epsilons
    ]
    if points:
        path.write_text(picture(points))
