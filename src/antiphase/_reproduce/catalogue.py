"""Functions to list and compute all reproductions by name."""

from __future__ import annotations

from time import perf_counter

from antiphase._check import invalid
from antiphase._reproduce import (
    amplified_bands,
    amplified_figures,
    amplified_tables,
    blt_figures,
    blt_tables,
    multi_epoch,
    near_exact,
    scaling,
)
from antiphase._reproduce.reproduction import PAPERS, Reproduction, Result, Row

_MODULES = (
    multi_epoch,
    amplified_tables,
    amplified_bands,
    amplified_figures,
    scaling,
    blt_tables,
    blt_figures,
    near_exact,
)


def known() -> dict[str, Reproduction]:
    """Return all reproductions by name, ordered by paper."""
    found = [item for module in _MODULES for item in vars(module).values() if isinstance(item, Reproduction)]
    papers = list(PAPERS)
    return {item.name: item for item in sorted(found, key=lambda item: papers.index(item.paper_key))}


def find(name: str) -> Reproduction:
    """Return the reproduction with this name. Raises `InvalidArgument` with a list of names if there is none."""
    found = known().get(name)
    if found is None:
        raise invalid("reproduce", "name", "a known table or figure", name, "the known names are " + ", ".join(known()))
    return found


def reproduce(name: str, full: bool = False) -> Result:
    """Compute one table or figure and compare it with the published values.

    Args:
        name: one of the names that `known` returns.
        full: if true, compute everything, which can take minutes. If false, some reproductions omit their slowest rows
            or use fewer steps.
    """
    found = find(name)
    start = perf_counter()
    items = list(found.run(full))
    rows = tuple(item for item in items if isinstance(item, Row))
    pictures = tuple(item for item in items if not isinstance(item, Row))
    return Result(found, rows, pictures, full or not found.sizes, perf_counter() - start)
