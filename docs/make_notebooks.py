"""Runs the tutorials, and writes each tutorial with its output as a page and as a notebook.

`python docs/make_notebooks.py [NAME ...]` turns docs/tutorial-NAME.py into docs/tutorial-NAME.md and
docs/tutorial-NAME.ipynb. In the source, `# %%` starts a cell of code and `# %% [markdown]` a cell of text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")


class Cell(NamedTuple):
    """A cell of a tutorial: "code" or "markdown", its source, and what it printed."""

    kind: str
    source: str
    output: str = ""


def names() -> list[str]:
    """Return the names of all tutorials."""
    return sorted(path.stem.removeprefix("tutorial-") for path in DOCS.glob("tutorial-*.py"))


def cells(text: str) -> list[Cell]:
    """Return the cells of a source file, without output."""
    found = []
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", body.strip()))
    return found


def executed(source: list[Cell]) -> list[Cell]:
    """Run the cells one after another, as a notebook does, and return them with their output."""
    space: dict[str, Any] = {"__name__": "__main__"}
    done = []
    for cell in source:
        printed = io.StringIO()
        if cell.kind == "code":
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.parse(cell.source), "<tutorial>", "exec"), space)
        done.append(cell._replace(output=printed.getvalue()))
    return done


def page(name: str, done: list[Cell]) -> str:
    """Return the tutorial as a Markdown page."""
    parts = []
    for i, cell in enumerate(done):
        if cell.kind == "markdown":
            parts.append(cell.source)
        else:
            parts.append(f"```python\n{cell.source}\n```")
        if i == 0:
            parts.append(f"[Download this page as a notebook](tutorial-{name}.ipynb).")
        if cell.output:
            parts.append(f"```text\n{cell.output.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def notebook(done: list[Cell]) -> str:
    """Return the tutorial as a Jupyter notebook, format 4.5."""
    made = [_notebook_cell(i, cell) for i, cell in enumerate(done)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    data = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(data, indent=1) + "\n"


def _notebook_cell(number: int, cell: Cell) -> dict[str, Any]:
    made: dict[str, Any] = {
        "cell_type": cell.kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": _lines(cell.source),
    }
    if cell.kind == "code":
        out = {"name": "stdout", "output_type": "stream", "text": _lines(cell.output)}
        made |= {"execution_count": None, "outputs": [out] if cell.output else []}
    return made


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def masked(text: str) -> str:
    """Return the text with # for every number, and with one space for several. Both may differ from run to run.

    >>> masked("epsilon  3.99 after 1,200 steps")
    'epsilon # after # steps'
    """
    return re.sub(r"[ ]+", " ", NUMBER.sub("#", text))


def main(wanted: list[str]) -> None:
    """Run the tutorials and write their pages and notebooks."""
    for name in wanted or names():
        done = executed(cells((DOCS / f"tutorial-{name}.py").read_text()))
        (DOCS / f"tutorial-{name}.md").write_text(page(name, done))
        (DOCS / f"tutorial-{name}.ipynb").write_text(notebook(done))


if __name__ == "__main__":
    main(sys.argv[1:])
