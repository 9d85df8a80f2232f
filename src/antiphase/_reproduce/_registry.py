"""The reproductions by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter

from antiphase._check import refuse
from antiphase._report._chart import Chart
from antiphase._report._heat import HeatMap
from antiphase._reproduce._row import Row

Picture = Chart | HeatMap
Function = Callable[[bool], Iterable[Row | Picture]]

PAPERS = {
    "multi-epoch-mf": "Choquette-Choo et al. 2023, Multi-epoch matrix factorization mechanisms",
    "bandmf-amplified": "Choquette-Choo et al. 2023, (Amplified) banded matrix factorization",
    "scaling-bandmf": "McKenna 2024, Scaling up the banded matrix factorization mechanism",
    "blt-dp-ftrl": "McMahan, Xu and Zhang 2024, A hassle-free algorithm for strong differential privacy",
    "near-exact-amplification": "Choquette-Choo et al. 2025, Near-exact privacy amplification for matrix mechanisms",
}
MODULES = (
    "_multi_epoch_tables",
    "_multi_epoch_figures",
    "_amplified_tables",
    "_bands_table",
    "_amplified_figures",
    "_scaling",
    "_scaling_bands",
    "_blt_tables",
    "_blt_figures",
    "_blt_production",
    "_near_exact",
    "_near_exact_search",
)


@dataclass(frozen=True)
class Reproduction:
    """One table or figure.

    Args:
        name: paper and number, such as "bandmf-amplified-table-3".
        title: what it shows.
        run: called with full=True or False; yields rows and pictures.
        sizes: whether the quick size leaves something out.
    """

    name: str
    title: str
    run: Function
    sizes: bool

    @property
    def paper(self) -> str:
        """The paper it is from."""
        return next(title for key, title in PAPERS.items() if self.name.startswith(key))


@dataclass(frozen=True)
class Result:
    """What a reproduction gave."""

    reproduction: Reproduction
    rows: tuple[Row, ...]
    pictures: tuple[Picture, ...]
    full: bool
    seconds: float

    @property
    def agreeing(self) -> int:
        """How many printed numbers and claims agree."""
        return sum(row.agrees is True for row in self.rows)

    @property
    def compared(self) -> int:
        """How many there are to compare with."""
        return sum(row.agrees is not None for row in self.rows)


_known: dict[str, Reproduction] = {}


def reproduction(name: str, title: str, sizes: bool = False) -> Callable[[Function], Function]:
    """Register a function under a name."""

    def register(function: Function) -> Function:
        _known[name] = Reproduction(name, title, function, sizes)
        return function

    return register


def known() -> dict[str, Reproduction]:
    """All reproductions, paper by paper."""
    for module in MODULES:
        import_module(f"antiphase._reproduce.{module}")
    order = list(PAPERS)
    return dict(sorted(_known.items(), key=lambda item: order.index(_paper(item[0]))))


def find(name: str) -> Reproduction:
    """The reproduction of that name; an unknown one is refused with the list of those there are."""
    found = known().get(name)
    if found is None:
        raise refuse("reproduce", "name", "a known table or figure", name, "known are " + ", ".join(known()))
    return found


def reproduce(name: str, full: bool = False) -> Result:
    """Compute one table or figure of the papers and set it beside what is printed.

    Args:
        name: as `known` lists them.
        full: everything, where the quick size leaves something out; some take minutes.
    """
    found = find(name)
    start = perf_counter()
    items = list(found.run(full))
    rows = tuple(item for item in items if isinstance(item, Row))
    pictures = tuple(item for item in items if not isinstance(item, Row))
    return Result(found, rows, pictures, full or not found.sizes, perf_counter() - start)


def _paper(name: str) -> str:
    return next(key for key in PAPERS if name.startswith(key))
