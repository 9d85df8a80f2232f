"""Noise streams: from a secret and a mechanism to one noise vector a step."""

from antiphase._noise._leaves import Leaf, named
from antiphase._noise._origin import check_last_step
from antiphase._noise._stream import NoiseStream
from antiphase._noise._tail import end_of_tail, log_missing_mass

__all__ = ["Leaf", "NoiseStream", "check_last_step", "end_of_tail", "log_missing_mass", "named"]
