"""Deterministic participations that fit a small number of steps."""

from collections.abc import Iterator
from itertools import islice

from antiphase import EveryStep, FixedEpochs, MinSeparation, ShuffledEpochs, SingleParticipation
from antiphase._participation import Deterministic


def every_participation(steps: int, most_patterns: int = 400) -> Iterator[Deterministic]:
    """All kinds, with epochs and separations from 1 to beyond the run; those with few enough patterns to enumerate."""
    lengths = sorted({1, 2, 3, 4, 5, steps, steps + 2})
    found: list[Deterministic] = [SingleParticipation(), EveryStep()]
    for b in lengths:
        epochs = -(-steps // b)
        found += [FixedEpochs(epochs, b), ShuffledEpochs(epochs, b)]
        found += [MinSeparation(b, k) for k in (None, 1, 2, 3, 4)]
    for participation in found:
        if len(list(islice(participation.patterns(steps), most_patterns + 1))) <= most_patterns:
            yield participation
