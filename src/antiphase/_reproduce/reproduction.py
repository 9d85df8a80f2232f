"""Classes for reproductions of tables and figures. Each row compares a published number or claim with our result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal

from antiphase._report import Chart, HeatMap

Picture = Chart | HeatMap

PAPERS = {
    "multi-epoch-mf": "Choquette-Choo et al. 2023, Multi-epoch matrix factorization mechanisms",
    "bandmf-amplified": "Choquette-Choo et al. 2023, (Amplified) banded matrix factorization",
    "scaling-bandmf": "McKenna 2024, Scaling up the banded matrix factorization mechanism",
    "blt-dp-ftrl": "McMahan, Xu and Zhang 2024, A hassle-free algorithm for strong differential privacy",
    "near-exact-amplification": "Choquette-Choo et al. 2025, Near-exact privacy amplification for matrix mechanisms",
}

_NUMBER = re.compile(r"^[<>~]?(-?[\d.]+(?:e[+-]?\d+)?)$")


@dataclass(frozen=True)
class Row:
    """One number or claim of a paper, compared with our result.

    Args:
        what: description of the cell, point or claim.
        paper: the number as printed, or the claim in words; empty if the paper only draws a curve.
        ours: our result, as text.
        agrees: True if paper and result agree, False if they do not. None if the paper prints nothing to compare with,
            and for times, which depend on the machine.
        difference: relative difference, ours / paper - 1, if both are numbers.
        note: why paper and result differ, or other remarks.
    """

    what: str
    paper: str
    ours: str
    agrees: bool | None
    difference: float | None = None
    note: str = ""


def printed(what: str, paper: str, ours: float, otherwise: str = "", *, slack: float = 0.0) -> Row:
    """Return a row that compares our number with a printed one. They agree if our number rounds to the printed digits.

    Args:
        what: description of the number.
        paper: the number as printed.
        ours: our number.
        otherwise: the note for the row if the numbers do not agree.
        slack: additional difference to accept, in units of the last printed digit.

    >>> printed("x", "0.52", 0.5249).agrees, printed("x", "5.8e6", 5.9e6).agrees
    (True, False)
    """
    match = _NUMBER.match(paper)
    assert match, paper
    value = Decimal(match[1])
    unit = 10.0 ** int(value.as_tuple().exponent)
    agrees = abs(ours - float(value)) <= (0.5 + slack) * unit * (1 + 1e-9)
    difference = ours / float(value) - 1.0 if value else None
    return Row(what, paper, _format_like(ours, paper), agrees, difference, "" if agrees else otherwise)


def claimed(what: str, paper: str, ours: str, holds: bool, otherwise: str = "") -> Row:
    """Return a row that compares a claim of the paper with our result.

    Args:
        what: description of the claim.
        paper: the claim in words.
        ours: our result, as text.
        holds: True if our result supports the claim.
        otherwise: the note for the row if the claim does not hold.
    """
    return Row(what, paper, ours, bool(holds), None, "" if holds else otherwise)


def timed(what: str, paper: str, ours: str) -> Row:
    """Return a row with the paper's statement about times and the times on this machine, without comparing them.

    >>> timed("closed form", "far faster", "140 times").agrees is None
    True
    """
    return Row(what, paper, ours, None)


def drawn(what: str, ours: str, note: str = "") -> Row:
    """Return a row for a point of a curve that the paper draws without printing numbers."""
    return Row(what, "", ours, None, None, note)


def _format_like(value: float, like: str) -> str:
    """Return `value` with one more digit than the printed number."""
    mantissa = _NUMBER.match(like)[1].partition("e")[0]  # type: ignore[index]  # `printed` has checked the match
    decimals = len(mantissa.partition(".")[2]) + 1
    if "e" in like:
        return f"{value:.{decimals}e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # adding 0 turns -0 into 0


Compute = Callable[[bool], Iterable[Row | Picture]]


@dataclass(frozen=True)
class Reproduction:
    """One table or figure of a paper.

    Args:
        name: paper and number, such as "bandmf-amplified-table-3".
        title: description of the table or figure.
        run: function that yields rows and pictures. Its argument is True to compute everything, and False to save time.
        sizes: True if `run` saves time by omitting slow rows or using fewer steps.
    """

    name: str
    title: str
    run: Compute
    sizes: bool

    @property
    def paper_key(self) -> str:
        """The key of the paper in `PAPERS`."""
        return next(key for key in PAPERS if self.name.startswith(key))

    @property
    def paper(self) -> str:
        """Authors, year and title of the paper."""
        return PAPERS[self.paper_key]


def reproduction(name: str, title: str, sizes: bool = False) -> Callable[[Compute], Reproduction]:
    """Return a decorator that turns a function that yields rows and pictures into a `Reproduction`."""

    def decorate(run: Compute) -> Reproduction:
        return Reproduction(name, title, run, sizes)

    return decorate


@dataclass(frozen=True)
class Result:
    """The result of a reproduction.

    Args:
        reproduction: the table or figure.
        rows: rows that compare paper and result.
        pictures: charts and heat maps.
        full: False if slow rows were omitted or fewer steps were used.
        seconds: wall-clock time.
    """

    reproduction: Reproduction
    rows: tuple[Row, ...]
    pictures: tuple[Picture, ...]
    full: bool
    seconds: float

    @property
    def agreeing(self) -> int:
        """Number of printed numbers and claims that agree."""
        return sum(row.agrees is True for row in self.rows)

    @property
    def compared(self) -> int:
        """Number of printed numbers and claims that were compared."""
        return sum(row.agrees is not None for row in self.rows)
