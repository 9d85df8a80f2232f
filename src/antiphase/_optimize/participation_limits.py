"""Participation limits: how close together, and how often, one example can take part in the steps of a run."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase import _check
from antiphase._errors import NotProved
from antiphase._participation import (
    Deterministic,
    EveryStep,
    FixedEpochs,
    MinSeparation,
    Participation,
    ShuffledEpochs,
    SingleParticipation,
)


@dataclass(frozen=True)
class ParticipationLimits:
    """The properties of a `Participation` that the optimisers use.

    Args:
        separation: smallest difference j - i between two steps i < j in which one example takes part, b.
        count: largest number of steps in which one example takes part, k.
        shuffled: True if each example takes part once per epoch, at an arbitrary step of the epoch. In this case,
            `separation` is the number of steps per epoch, and two participations can be closer than that.
    """

    separation: int
    count: int
    shuffled: bool = False


def worst_case_limits(
    owner: str, participation: Participation, steps: int, allow_shuffled: bool = False
) -> ParticipationLimits:
    """Return the participation limits for `steps` steps. A random participation is replaced by its worst case.

    Args:
        owner: the name of the caller, for error messages.
        participation: the steps in which an example can take part.
        steps: number of steps, n.
        allow_shuffled: True to accept `ShuffledEpochs`.

    Raises `NotProved` for `ShuffledEpochs` if `allow_shuffled` is False.
    """
    worst = participation.worst_case
    assert isinstance(worst, Deterministic)
    count = worst.largest_count(steps)
    match worst:
        case SingleParticipation():
            return ParticipationLimits(steps, 1)
        case EveryStep():
            return ParticipationLimits(1, count)
        case FixedEpochs():
            return ParticipationLimits(min(worst.steps_per_epoch, steps), count)
        case MinSeparation():
            return ParticipationLimits(min(worst.separation, steps), count)
        case ShuffledEpochs() if allow_shuffled:
            return ParticipationLimits(min(worst.steps_per_epoch, steps), count, shuffled=True)
    raise NotProved(
        f"{owner} has no sensitivity formula for {type(worst).__name__}.",
        hint="use family='toeplitz'; or use FixedEpochs or MinSeparation, with a sampler that guarantees them",
    )


def check_bands(owner: str, bands: int | None, steps: int, separation: int) -> int:
    """Return `bands` if it is valid. If it is None, return the smallest of 32, `steps` and `separation`.

    Raises `InvalidArgument` if there are more bands than steps.
    """
    if bands is None:
        return min(32, steps, separation)
    count = _check.positive_integer(owner, "bands", bands, "use at least 1 band, which gives a diagonal matrix")
    if count > steps:
        raise _check.invalid(owner, "bands", f"at most {steps}, the number of steps", bands, f"use bands={steps}")
    return count
