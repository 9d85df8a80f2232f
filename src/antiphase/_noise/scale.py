"""One scale for C before any noise is made, whatever makes it.

Streams keep numbers of the size of C^-1 z. For C of size 1e50 these are beyond float32, although the noise itself,
noise_std C^-1 z, is of ordinary size. So C and noise_std are multiplied by one power of two before any source sees
them. That changes no bit of the noise. C of ordinary size is left alone, so that stored states stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from antiphase._errors import Refused
from antiphase.strategies import Strategy, scaled_exactly, times_power_of_two

# Powers of two. Within them, the state of a stream is far from the limits of its dtype; a square of it is, in float64.
ORDINARY = {"float32": 96, "float64": 400}


@final
@dataclass(frozen=True)
class Canonical:
    """A mechanism as the sources of noise see it.

    Attributes:
        strategy: 2^exponent C.
        noise_std: 2^exponent times that of the mechanism.
        exponent: 0 for C of ordinary size.
    """

    strategy: Strategy
    noise_std: float
    exponent: int


def canonical(strategy: Strategy, noise_std: float, dtype: np.dtype[Any]) -> Canonical:
    """The same mechanism with C of ordinary size; refused where no power of two gives that.

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
            f"The noise of this plan is beyond floating point: noise_std is {noise_std:.3g}, and the entries of C that "
            f"it is divided by are near 2^{(low + high) // 2}.",
            hint="scale the strategy so that its columns have norms near 1, and calibrate noise_std to it",
        )
    return Canonical(scaled, float(std), exponent)
