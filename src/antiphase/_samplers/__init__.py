"""Samplers, which draw batches that keep the promise of a participation.

Every random decision uses a fixed number of 128-bit draws from AES-256-CTR and integer arithmetic only, so the same
arguments give the same batches on every machine. `stream.FORMAT` is part of every key.
"""

from antiphase._samplers.base import Batch, Sampler, shard
from antiphase._samplers.epochs import BallsInBinsSampler, CycleSampler, ShuffledEpochsSampler
from antiphase._samplers.min_separation import PoissonMinSeparationSampler
from antiphase._samplers.subsampling import CyclicPoissonSampler, FixedSizeSampler, PoissonSampler
from antiphase._samplers.users import UserBatch, UserIndex

__all__ = [
    "BallsInBinsSampler",
    "Batch",
    "CycleSampler",
    "CyclicPoissonSampler",
    "FixedSizeSampler",
    "PoissonMinSeparationSampler",
    "PoissonSampler",
    "Sampler",
    "ShuffledEpochsSampler",
    "UserBatch",
    "UserIndex",
    "shard",
]
