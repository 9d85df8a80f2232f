"""Antiphase: differentially private training with correlated noise."""

from antiphase import schedules, strategies
from antiphase._accounting import (
    Budget,
    Calibration,
    Mechanism,
    MonteCarlo,
    calibrate,
    compose,
    delta,
    epsilon,
    gdp,
    group_epsilon,
    verify,
    zcdp,
)
from antiphase._bound import Bound
from antiphase._error import ErrorProfile, error
from antiphase._errors import AntiphaseError, Corrupted, InvalidArgument, NotEnoughMemory, NotProved, Refused
from antiphase._lattice import Lattice, choose_lattice, rounded_strategy
from antiphase._loss import loss
from antiphase._noise import Leaf, NoiseStream
from antiphase._objective import Curvatures
from antiphase._optimize import Solution, optimize
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
from antiphase._plan import Candidate, Plan
from antiphase._planner import plan
from antiphase._problem import Problem
from antiphase._record import from_json, to_json
from antiphase._run import PrivacyReport, Publication, Run, digest
from antiphase._samplers import Sampler, UserIndex, shard
from antiphase._secret import Secret
from antiphase._sensitivity import sensitivity
from antiphase._version import __version__
from antiphase._workload import Momentum, PrefixSum

__all__ = [
    "AntiphaseError",
    "BallsInBins",
    "Bound",
    "Budget",
    "Calibration",
    "Candidate",
    "Corrupted",
    "Curvatures",
    "CyclicPoisson",
    "ErrorProfile",
    "EveryStep",
    "FixedEpochs",
    "FixedSize",
    "InvalidArgument",
    "Lattice",
    "Leaf",
    "Mechanism",
    "MinSeparation",
    "Momentum",
    "MonteCarlo",
    "NoiseStream",
    "NotEnoughMemory",
    "NotProved",
    "Plan",
    "Poisson",
    "PoissonMinSeparation",
    "PrefixSum",
    "PrivacyReport",
    "Problem",
    "Publication",
    "Refused",
    "Run",
    "Sampler",
    "Secret",
    "ShuffledEpochs",
    "SingleParticipation",
    "Solution",
    "UserIndex",
    "__version__",
    "calibrate",
    "choose_lattice",
    "compose",
    "delta",
    "digest",
    "epsilon",
    "error",
    "from_json",
    "gdp",
    "group_epsilon",
    "loss",
    "optimize",
    "plan",
    "rounded_strategy",
    "schedules",
    "sensitivity",
    "shard",
    "strategies",
    "to_json",
    "verify",
    "zcdp",
]
