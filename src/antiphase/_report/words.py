"""Participations, adjacencies and kinds of bound in plain English."""

from __future__ import annotations

from antiphase._participation import Participation

ADJACENCY = {
    "zero-out": "Two data sets are neighbours if one comes from the other by setting all contributions of one {unit} "
    "to zero; the number of {unit}s stays the same.",
    "add-or-remove": "Two data sets are neighbours if one has one {unit} more than the other.",
    "replace": "Two data sets are neighbours if they differ in the contents of one {unit}.",
}
KIND = {
    "exact": "the true value, up to floating-point rounding",
    "upper": "an upper bound, never below the true value",
    "confident": "an upper bound from samples; the probability that it fails is already part of delta",
}


def participation_words(given: Participation, unit: str, steps: int) -> str:
    """Return what the guarantee assumes about the steps in which one unit takes part."""
    return given.describe(unit, steps)
