"""The two numbers of a participation that the optimisers need: separation and largest count."""

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

DEFAULT_BANDS = 32


@dataclass(frozen=True)
class Schema:
    """Two participations of an example are at least `separation` steps apart, and there are at most `count`.

    With `shuffled`, one in every `separation` steps instead, anywhere among them.
    """

    separation: int
    count: int
    shuffled: bool = False


def schema(owner: str, participation: Participation, steps: int, allow_shuffled: bool = False) -> Schema:
    """Separation and count within `steps` steps; a random participation counts as its worst case."""
    worst = participation.worst_case
    assert isinstance(worst, Deterministic)
    count = worst.largest_count(steps)
    match worst:
        case SingleParticipation():
            return Schema(steps, 1)
        case EveryStep():
            return Schema(1, count)
        case FixedEpochs():
            return Schema(min(worst.steps_per_epoch, steps), count)
        case MinSeparation():
            return Schema(min(worst.separation, steps), count)
        case ShuffledEpochs() if allow_shuffled:
            return Schema(min(worst.steps_per_epoch, steps), count, shuffled=True)
    raise NotProved(
        f"{owner} has no sensitivity formula to optimise for {type(worst).__name__}.",
        hint="use family='toeplitz', or FixedEpochs or MinSeparation with a sampler that keeps to it",
    )


def check_bands(owner: str, bands: int | None, steps: int, separation: int) -> int:
    """The number of bands: by default at most 32, and not more than steps or separation."""
    if bands is None:
        return min(DEFAULT_BANDS, steps, separation)
    count = _check.positive_integer(owner, "bands", bands, "1 band is a diagonal matrix")
    if count > steps:
        raise _check.refuse(owner, "bands", f"at most {steps}, the number of steps", bands, f"use bands={steps}")
    return count
