"""Rescale C to a moderate size before any noise is computed.

A stream stores numbers that are about as large as the entries of C^-1 z. If the entries of C are near 1e50, these
numbers are too small for float32, even if the noise itself, noise_std C^-1 z, has a moderate size. So C and noise_std
are multiplied by the same power of two before any noise is computed. This changes no bit of the noise. C is not changed
if its size is already moderate, so that saved states of older versions remain valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from antiphase._errors import Refused
from antiphase.strategies import Strategy, scaled_exactly, times_power_of_two

# Entries of C need no rescaling if the absolute value of their binary exponents is at most this number. The state is
# then far from the limits of its dtype. In float64, even the squares of its entries are far from these limits.
ORDINARY = {"float32": 96, "float64": 400}


@final
@dataclass(frozen=True)
class Canonical:
    """A mechanism, multiplied by a power of two for computing its noise.

    Attributes:
        strategy: strategy with the matrix 2^exponent C. If the columns of C are normalised, C stays the same, and the
            coefficients before normalisation are multiplied instead.
        noise_std: 2^exponent times the noise_std of the mechanism; unchanged if the columns of C are normalised.
        exponent: exponent of the power of two; 0 if C needs no rescaling.
    """

    strategy: Strategy
    noise_std: float
    exponent: int


def canonical(strategy: Strategy, noise_std: float, dtype: np.dtype[Any]) -> Canonical:
    """Return the same mechanism, rescaled unless C already has a moderate size.

    The rescaled `Strategy.scale_exponents`, low and high, have their middle at about 0. Raises `Refused` if float64
    cannot represent the rescaled numbers exactly.

    >>> from antiphase.strategies import Toeplitz
    >>> made = canonical(Toeplitz([2.0**120, 2.0**119], 2), 2.0**121, np.dtype("float32"))
    >>> made.strategy.coefficients.tolist(), made.noise_std, made.exponent
    ([0.5, 0.25], 1.0, -121)
    """
    low, high = strategy.scale_exponents()
    limit = ORDINARY[dtype.name]
    if -limit <= low and high <= limit:
        return Canonical(strategy, float(noise_std), 0)
    exponent = -((low + high) // 2)
    scaled = times_power_of_two(strategy, exponent)
    std = scaled_exactly(noise_std, 0 if strategy.has_unit_columns else exponent)
    if std is None:
        raise Refused(
            f"The noise of this plan is outside the floating-point range: noise_std is {noise_std:.3g}, and the "
            f"entries of C that it is divided by are near 2^{(low + high) // 2}.",
            hint="scale the strategy so that its columns have norms near 1, and calibrate noise_std again",
        )
    return Canonical(scaled, float(std), exponent)
