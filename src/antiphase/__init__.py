"""Antiphase: differentially private training with correlated noise."""

from antiphase import schedules, strategies
from antiphase._bound import Bound
from antiphase._errors import AntiphaseError, InvalidArgument, NotEnoughMemory, NotProved
from antiphase._participation import (
    BallsInBins,
    CyclicPoisson,
    EveryStep,
    FixedEpochs,
    FixedSize,
    MinSeparation,
    Poisson,
    PoissonMinSeparation,
    ShuffledEpochs,
    SingleParticipation,
)
from antiphase._record import from_json, to_json
from antiphase._version import __version__
from antiphase._workload import Momentum, PrefixSum

__all__ = [
    "AntiphaseError",
    "BallsInBins",
    "Bound",
    "CyclicPoisson",
    "EveryStep",
    "FixedEpochs",
    "FixedSize",
    "InvalidArgument",
    "MinSeparation",
    "Momentum",
    "NotEnoughMemory",
    "NotProved",
    "Poisson",
    "PoissonMinSeparation",
    "PrefixSum",
    "ShuffledEpochs",
    "SingleParticipation",
    "__version__",
    "from_json",
    "schedules",
    "strategies",
    "to_json",
]
