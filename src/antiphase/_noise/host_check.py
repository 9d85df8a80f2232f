"""Check that the host computes the noise of a mechanism correctly before it is used."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._noise.choose import choose
from antiphase._noise.correlator import Noise, Part, Scratch
from antiphase._noise.origin import MechanismLike
from antiphase._noise.scale import Canonical, canonical
from antiphase._noise.self_check import check_noise


def check_host_noise(mechanism: MechanismLike, dtype: str) -> None:
    """Raise `Refused` if the host cannot compute the noise of this mechanism in this dtype."""
    checked(mechanism, np.dtype(dtype), None, False)


def checked(mechanism: MechanismLike, dtype: np.dtype[Any], lookahead: int | None, regenerate: bool) -> Canonical:
    """Return the mechanism at its canonical scale, after checking that the correlator computes its noise."""
    made = canonical(mechanism.strategy, mechanism.noise_std, dtype)

    def respond(z: Array, steps: int) -> NDArray[Any]:
        return _respond(made, dtype, lookahead, regenerate, z, steps)

    check_noise(mechanism.strategy, mechanism.noise_std, dtype, respond)
    return made


def _respond(
    made: Canonical, dtype: np.dtype[Any], lookahead: int | None, regenerate: bool, z: Array, steps: int
) -> Noise:
    lanes = z.shape[1]
    correlator = choose(
        made.strategy.recursion(), made.noise_std, lanes, dtype, lookahead=lookahead, regenerate=regenerate
    )
    part, scratch = Part(0, lanes), Scratch()
    out = np.empty((steps, lanes), dtype=dtype)

    def white(row: int, into: Noise) -> None:
        into[:] = z[row] if row < len(z) else 0.0  # only lookahead asks for later rows

    for step in range(steps):
        correlator.begin(step)
        correlator.make(part, white, scratch, out[step])
        correlator.end()
    return out
