"""Random subsets in which each position is included independently with the same probability.

Drawing a subset takes time proportional to its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import final

import numpy as np

from antiphase._samplers.stream import CHUNK, DrawStream, Ids, Labels
from antiphase._samplers.table import MEAN_COUNT, binomial, block_size
from antiphase._secret import Secret

BLOCKS_AT_ONCE = CHUNK // MEAN_COUNT


@final
class Bernoulli:
    """Independent coin flips for positions 0, 1, 2, ...; `heads` returns the positions where the coin shows heads.

    Positions are split into blocks of about 8 / rate positions. For each block, the number of heads is drawn from a
    binomial distribution. Then a uniformly random subset of that size is drawn. The result has the same distribution as
    independent coin flips, at a cost proportional to the number of heads.

    **Guarantee**: whenever a number of heads or a position is drawn, the probability of each outcome is accurate to
    2^-128. The total variation distance from independent coins with probability `rate` is less than 2^-80 for each head
    drawn. The coin of position i depends only on (secret, address, i), where `address` is an argument of `heads`. The
    coin does not depend on the number of positions.

    Args:
        secret: secret from which all random numbers are derived.
        labels: labels of the random numbers, as for `DrawStream`. Different labels give independent coins.
        rate: probability of heads, in [0, 1].
    """

    def __init__(self, secret: Secret, labels: Labels, rate: Decimal) -> None:
        self._counts = DrawStream(secret, (*labels, "counts"))
        self._positions = DrawStream(secret, (*labels, "positions"))
        self._block = block_size(rate) if rate else 0
        self._table = binomial(self._block, rate)

    def heads(self, address: int, population: int) -> Ids:
        """Return the sorted positions below `population` that show heads.

        Args:
            address: number that selects a sequence of coins, such as the step. Coins with different addresses are
                independent.
            population: number of positions.
        """
        return np.concatenate([np.empty(0, np.int64), *self.pieces(address, population)])

    def pieces(self, address: int, population: int) -> Iterator[Ids]:
        """Yield the result of `heads` in consecutive chunks that fit in the CPU cache."""
        from antiphase._kernels import invert_cdf, scatter_in_blocks

        if self._block == 0 or population == 0:
            return
        blocks = -(-population // self._block)
        counts = self._counts.decide(invert_cdf, self._table, address, blocks)
        drawn = 0
        for first in range(0, blocks, BLOCKS_AT_ONCE):
            some = counts[first : first + BLOCKS_AT_ONCE]
            draws = self._positions.draws(address, int(some.sum()), drawn)
            found = scatter_in_blocks(some, draws, self._block, first)
            # The last block is drawn in full, so that its heads do not depend on the size of the population.
            yield found[: np.searchsorted(found, population)]
            drawn += len(draws)
