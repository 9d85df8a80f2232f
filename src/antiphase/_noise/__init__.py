"""Noise streams, which generate one correlated noise vector per step from a secret and a mechanism."""

from antiphase._noise.host_check import check_host_noise
from antiphase._noise.lattice import check_lattice
from antiphase._noise.leaves import Leaf, named
from antiphase._noise.origin import check_last_step
from antiphase._noise.scale import Canonical, canonical
from antiphase._noise.self_check import check_noise, check_sizes
from antiphase._noise.stream import NoiseStream
from antiphase._noise.tail import end_of_tail, log_missing_mass

__all__ = [
    "Canonical",
    "Leaf",
    "NoiseStream",
    "canonical",
    "check_host_noise",
    "check_last_step",
    "check_lattice",
    "check_noise",
    "check_sizes",
    "end_of_tail",
    "log_missing_mass",
    "named",
]
