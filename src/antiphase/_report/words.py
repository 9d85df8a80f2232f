"""Participations, adjacencies and kinds of bound in plain English."""

from __future__ import annotations

from typing import Any

from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    FixedSize,
    MinSeparation,
    Participation,
    Poisson,
    PoissonMinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)

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
    """What the guarantee assumes about the steps in which one unit takes part."""
    match given:
        case SingleParticipation():
            return f"Each {unit} takes part in at most one step."
        case EveryStep():
            return f"Each {unit} may take part in every step."
        case FixedEpochs(epochs=k, steps_per_epoch=b):
            return f"The same order in each of {k} epochs: each {unit} comes back after exactly {b} steps."
        case ShuffledEpochs(epochs=k, steps_per_epoch=b):
            return f"Each {unit} takes part at most once in each of {k} epochs of {b} steps, anywhere in them."
        case MinSeparation(separation=b):
            count = given.largest_count(steps)
            return (
                f"Two participations of one {unit} are at least {b} steps apart, and there are at most {count} of them."
            )
    return _sampled_words(given, unit) + " Batches are drawn by the run itself; what is in them stays secret."


def _sampled_words(given: Any, unit: str) -> str:
    match given:
        case Poisson(rate=q):
            return f"In every step each {unit} is drawn with probability {q:.6g}, independently."
        case CyclicPoisson(groups=g, rate=q):
            return f"{g} groups take turns; in its turn each {unit} of a group is drawn with probability {q:.6g}."
        case FixedSize(groups=g, batch_size=size):
            return f"{g} group(s) take turns; each step draws {size} {unit}s of one group without replacement."
        case BallsInBins(epochs=k, steps_per_epoch=b):
            return f"Each {unit} draws one of {b} places once and keeps it for all {k} epochs."
        case PoissonMinSeparation(separation=b, rate=q):
            return f"Each {unit} that has waited {b} steps is drawn with probability {q:.6g} in each."
    return f"{given}."
