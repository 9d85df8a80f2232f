"""Noise streams: from a secret and a mechanism to one noise vector a step."""

from antiphase._noise._leaves import Leaf, named
from antiphase._noise._origin import check_last_step
from antiphase._noise._stream import NoiseStream

__all__ = ["Leaf", "NoiseStream", "check_last_step", "named"]
