"""Samplers: for each participation the batches that keep its promise.

Format: every random decision reads a fixed number of 128-bit draws of AES-256-CTR and uses integers alone,
so equal arguments give equal batches on every machine. `_stream.FORMAT` is part of every key.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphase import _participation as p
from antiphase._errors import NotProved
from antiphase._samplers.base import Batch, Sampler
from antiphase._samplers.bins import BallsInBinsSampler
from antiphase._samplers.cycle import CycleSampler
from antiphase._samplers.fixed_size import FixedSizeSampler
from antiphase._samplers.min_separation import PoissonMinSeparationSampler
from antiphase._samplers.poisson import CyclicPoissonSampler, PoissonSampler
from antiphase._samplers.sharding import shard
from antiphase._samplers.shuffled import ShuffledEpochsSampler
from antiphase._samplers.users import UserBatch, UserIndex
from antiphase._secret import Secret

__all__ = ["Batch", "Sampler", "UserBatch", "UserIndex", "sampler_for", "shard"]

_MAKERS: dict[type[p.Participation], Callable[..., Sampler]] = {
    p.EveryStep: CycleSampler,
    p.SingleParticipation: CycleSampler,
    p.FixedEpochs: CycleSampler,
    p.MinSeparation: CycleSampler,
    p.ShuffledEpochs: ShuffledEpochsSampler,
    p.Poisson: PoissonSampler,
    p.CyclicPoisson: CyclicPoissonSampler,
    p.FixedSize: FixedSizeSampler,
    p.BallsInBins: BallsInBinsSampler,
    p.PoissonMinSeparation: PoissonMinSeparationSampler,
}


def sampler_for(participation: p.Participation, examples: int, steps: int, secret: Secret) -> Sampler:
    """The sampler of a participation; what `participation.sampler` calls."""
    make = _MAKERS.get(type(participation))
    if make is not None:
        return make(participation, examples, steps, secret)
    raise NotProved(
        f"No sampler keeps the promise of {type(participation).__name__}.",
        hint="use a participation of the library, whose sampler is tested against it",
    )
