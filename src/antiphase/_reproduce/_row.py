"""A row of a reproduction: what a paper prints or says, what comes out here, and whether the two agree."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

NUMBER = re.compile(r"^[<>~]?(-?[\d.]+(?:e[+-]?\d+)?)$")


@dataclass(frozen=True)
class Row:
    """One number or claim of a paper beside ours.

    Args:
        what: which cell, point or sentence.
        paper: as printed, or the claim in words; empty where the paper only draws a curve.
        ours: computed here, as text.
        agrees: None where there is nothing printed to compare with, and for times, which depend on the machine.
        difference: ours relative to the paper's, where both are numbers.
        note: why they differ, or what to know.
    """

    what: str
    paper: str
    ours: str
    agrees: bool | None
    difference: float | None = None
    note: str = ""


def printed(what: str, paper: str, ours: float, otherwise: str = "", *, slack: float = 0.0) -> Row:
    """A printed number; it agrees where ours rounds to it, or is off by no more than `slack` units of its last digit.

    >>> printed("x", "0.52", 0.5249).agrees, printed("x", "5.8e6", 5.9e6).agrees
    (True, False)
    """
    match = NUMBER.match(paper)
    assert match, paper
    value = Decimal(match[1])
    unit = 10.0 ** int(value.as_tuple().exponent)
    agrees = abs(ours - float(value)) <= (0.5 + slack) * unit * (1 + 1e-9)
    difference = ours / float(value) - 1.0 if value else None
    return Row(what, paper, _digits(ours, paper), agrees, difference, "" if agrees else otherwise)


def claimed(what: str, paper: str, ours: str, holds: bool, otherwise: str = "") -> Row:
    """A sentence of the paper and what we find."""
    return Row(what, paper, ours, bool(holds), None, "" if holds else otherwise)


def timed(what: str, paper: str, ours: str) -> Row:
    """What the paper says of times and what this machine needed: shown and not compared.

    >>> timed("closed form", "far faster", "140 times").agrees is None
    True
    """
    return Row(what, paper, ours, None)


def drawn(what: str, ours: str, note: str = "") -> Row:
    """A point of a curve that the paper draws without numbers."""
    return Row(what, "", ours, None, None, note)


def _digits(value: float, like: str) -> str:
    """`value` with one digit more than the printed number has."""
    mantissa = NUMBER.match(like)[1].partition("e")[0]  # type: ignore[index]  # matched before
    decimals = len(mantissa.partition(".")[2]) + 1
    if "e" in like:
        return f"{value:.{decimals}e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{round(value, decimals) + 0.0:.{decimals}f}"  # adding 0 turns -0 into 0
