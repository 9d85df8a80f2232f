"""Check, before the first step, that the host (the CPU) computes the noise of a mechanism correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import Refused
from antiphase._noise.choose import choose
from antiphase._noise.correlator import Noise, Part, Scratch
from antiphase._noise.origin import MechanismLike
from antiphase._noise.scale import Canonical, canonical
from antiphase._noise.self_check import check_noise, check_sizes


def check_host_noise(mechanism: MechanismLike, dtype: str, *, clip_norm: float = 1.0) -> None:
    """Raise `Refused` if the host cannot compute the noise of this mechanism accurately in this dtype.

    The noise must also be accurate after it is multiplied by `clip_norm`.
    """
    checked(mechanism, np.dtype(dtype), None, False)
    check_sizes(mechanism.strategy, mechanism.noise_std, np.dtype(dtype), clip_norm=clip_norm)


def checked(mechanism: MechanismLike, dtype: np.dtype[Any], lookahead: int | None, regenerate: bool) -> Canonical:
    """Return the mechanism rescaled by `canonical`. Raises `Refused` if its noise is not computed correctly."""
    check_compiler()
    made = canonical(mechanism.strategy, mechanism.noise_std, dtype)

    def respond(z: Array, steps: int) -> NDArray[Any]:
        return _respond(made, dtype, lookahead, regenerate, z, steps)

    check_noise(mechanism.strategy, mechanism.noise_std, dtype, respond)
    return made


def check_compiler() -> None:
    """Raise `Refused` if Numba does not compile the kernels."""
    from numba import config

    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise Refused(
            "Noise cannot be generated while the environment variable NUMBA_DISABLE_JIT is set, because the kernels "
            "that generate it must be compiled.",
            hint="unset NUMBA_DISABLE_JIT",
        )


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
        into[:] = z[row] if row < len(z) else 0.0  # with lookahead, rows after the last tested step are also requested

    for step in range(steps):
        correlator.begin(step)
        correlator.make(part, white, scratch, out[step])
        correlator.end()
    return out
