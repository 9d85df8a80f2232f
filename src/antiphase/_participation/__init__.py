"""Participations: promises about the steps of a run in which one example takes part.

A pattern is the set of steps, numbered from 0, in which an example takes part. A deterministic participation is a set
of allowed patterns. A random participation draws the pattern of each example at random. Its `worst_case` is a
deterministic participation that allows every pattern that can be drawn.

Each class defines its batch size, its sampler, its description in reports, and how it extends to a longer run.
"""

from antiphase._participation.base import Deterministic, Participation, Pattern
from antiphase._participation.deterministic import (
    EveryStep,
    FixedEpochs,
    MinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase._participation.sampled import (
    BallsInBins,
    CyclicPoisson,
    FixedSize,
    Poisson,
    PoissonMinSeparation,
)

__all__ = [
    "BallsInBins",
    "CyclicPoisson",
    "Deterministic",
    "EveryStep",
    "FixedEpochs",
    "FixedSize",
    "MinSeparation",
    "Participation",
    "Pattern",
    "Poisson",
    "PoissonMinSeparation",
    "ShuffledEpochs",
    "SingleParticipation",
]
