"""Noise streams: from a secret and a mechanism to one noise vector a step."""

from antiphase._noise._host_check import check_host_noise
from antiphase._noise._leaves import Leaf, named
from antiphase._noise._origin import check_last_step
from antiphase._noise._scale import Canonical, canonical
from antiphase._noise._self_check import check_noise, check_sizes
from antiphase._noise._stream import NoiseStream
from antiphase._noise._tail import end_of_tail, missing_mass

__all__ = [
    "Canonical",
    "Leaf",
    "NoiseStream",
    "canonical",
    "check_host_noise",
    "check_last_step",
    "check_noise",
    "check_sizes",
    "end_of_tail",
    "missing_mass",
    "named",
]
