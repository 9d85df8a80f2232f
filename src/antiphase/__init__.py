"""Antiphase: differentially private training with correlated noise."""

from antiphase import schedules, strategies
from antiphase._bound import Bound
from antiphase._error import Error, error
from antiphase._errors import AntiphaseError, Corrupted, InvalidArgument, NotEnoughMemory, NotProved, Refused
from antiphase._loss import loss
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
from antiphase._samplers import Sampler, UserIndex, shard
from antiphase._secret import Secret
from antiphase._sensitivity import sensitivity
from antiphase._version import __version__
from antiphase._workload import Momentum, PrefixSum

__all__ = [
    "AntiphaseError",
    "BallsInBins",
    "Bound",
    "Corrupted",
    "CyclicPoisson",
    "Error",
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
    "Refused",
    "Sampler",
    "Secret",
    "ShuffledEpochs",
    "SingleParticipation",
    "UserIndex",
    "__version__",
    "error",
    "from_json",
    "loss",
    "schedules",
    "sensitivity",
    "shard",
    "strategies",
    "to_json",
]
