"""Participation: which steps of a run one example may take part in.

A deterministic participation is a set of allowed patterns, each a set of steps (numbered from 0). A random
participation draws the pattern; its `worst_case` is a deterministic participation that always holds.

Each class knows its batch size, its sampler, its wording for reports, and how it extends to a longer run.
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
