"""Published BLTs (strategies with a few memory buffers) that were used in production. They need no optimization.

Reference: McMahan, Xu and Zhang 2024, App. F. The BLTs have four buffers and were optimized for 4,000 steps. There is
one BLT for each of three separations (the smallest number of steps between two participations of one example). The
authors found the BLT for separation 400 competitive over a wide range of separations.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase.strategies import BLT

PARAMETERS = {
    100: (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    400: (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    1000: (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
    ),
}


def nearest(separation: int) -> int:
    """Return the published separation that is nearest to `separation` on a logarithmic scale.

    >>> nearest(1), nearest(250), nearest(5000)
    (100, 400, 1000)
    """
    return min(PARAMETERS, key=lambda published: abs(math.log(published / separation)))


def published(separation: int, steps: int) -> BLT:
    """Return the BLT published for a separation. It can also be used with other separations."""
    decay, scale = PARAMETERS[separation]
    return BLT(np.array(decay), np.array(scale), steps)
