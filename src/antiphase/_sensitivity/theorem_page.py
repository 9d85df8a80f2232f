"""The page of the manual that prints the table of methods."""

from __future__ import annotations

from antiphase._sensitivity.table import METHODS, TABLE

_INTRODUCTION = """# Which method gives the sensitivity

`antiphase.sensitivity(strategy, participation)` tries the methods of the pair in the order below. The first that is
exact gives the answer; if none is, the smallest upper bound does. `method="..."` asks for one by name; if its condition
does not hold, `NotProved` is raised and names one that works. Exact means exact for vector contributions (gradients),
not only for numbers with a sign. Every answer is a `Bound` with its kind, method and theorem, and it is never below
the true value.

X is the Gram matrix C^T C; X has as many bands as C. A random participation is taken at its `worst_case`.

This page is generated from the table in the code; a test keeps the two equal.
"""


def page() -> str:
    """The text of docs/sensitivity.md."""
    return "\n".join([_INTRODUCTION, *_pairs(), *_methods()])


def _pairs() -> list[str]:
    lines = ["## Strategies and participations", ""]
    participations = list(METHODS)
    lines.append("| strategy | " + " | ".join(p.__name__ for p in participations) + " |")
    lines.append("|" + "---|" * (len(participations) + 1))
    for strategy, row in TABLE.items():
        cells = [", ".join(row[p]) for p in participations]
        lines.append(f"| {strategy.__name__} | " + " | ".join(cells) + " |")
    return [*lines, "", "A strategy that is not in the table is treated as Dense.", ""]


def _methods() -> list[str]:
    lines = ["## Methods", ""]
    for participation, known in METHODS.items():
        lines += [f"### {participation.__name__}", "", "| method | applies | reference |", "|---|---|---|"]
        lines += [f"| {name} | {method.condition} | {method.reference} |" for name, method in known.items()]
        lines.append("")
    return lines
