"""Samplers, which draw the batches of a run so that they keep the promise of its participation.

A sampler with the same arguments draws the same batches on every machine. Random numbers come from AES-256 in counter
mode. Each random decision uses a fixed number of 128-bit draws, and only integer arithmetic. Every AES key depends on
the format number, `stream.FORMAT`.
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
