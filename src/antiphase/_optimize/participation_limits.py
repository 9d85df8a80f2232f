"""Participation limits: the separation and the largest number of participations of one example."""

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
    """The properties of a participation that the optimisers use.

    Args:
        separation: smallest number of steps between two participations of one example, b.
        count: largest number of participations of one example, k.
        shuffled: if true, each example takes part once per epoch, at an arbitrary step, and `separation` is the number
            of steps per epoch instead of a smallest distance.
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
        allow_shuffled: whether to accept `ShuffledEpochs`. If false, `ShuffledEpochs` raises `NotProved`.
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
    """Return the number of bands; if None, the smallest of 32, `steps` and `separation`.

    Raises `InvalidArgument` if there are more bands than steps.
    """
    if bands is None:
        return min(32, steps, separation)
    count = _check.positive_integer(owner, "bands", bands, "use at least 1 band, which gives a diagonal matrix")
    if count > steps:
        raise _check.invalid(owner, "bands", f"at most {steps}, the number of steps", bands, f"use bands={steps}")
    return count
