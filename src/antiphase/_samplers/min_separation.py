"""Random min-separation: every example that is eligible again joins each step with some probability."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import invalid
from antiphase._participation import PoissonMinSeparation
from antiphase._samplers.base import Sampler
from antiphase._samplers.bernoulli import Bernoulli
from antiphase._samplers.stream import DrawStream, Ids
from antiphase._samplers.table import at_least_once, truncated_geometric, waiting_rate
from antiphase._secret import Secret

LONGEST_SEPARATION = 2**20  # the table of waiting times has one row per step of separation


class Window(NamedTuple):
    """`separation` consecutive steps: who joins, at which offset, and the same grouped by offset."""

    ids: Ids
    offsets: NDArray[np.int32]
    order: Ids
    starts: Ids


@final
class PoissonMinSeparationSampler(Sampler):
    """Each example is a renewal process of its own: wait `separation`, then toss until heads.

    Steps are cut into windows of b = separation steps. In one window an example joins at most once. It is
    eligible from the offset at which it joined in the window before (0 if it did not), then waits a
    geometric time; by lack of memory that time can be drawn afresh in each window. So a window draws
    the examples whose time is below b (independent coins of probability 1 - (1 - rate)^b), their times,
    and keeps those that still fall inside: time in proportion to the participations.

    A cold start has every example eligible in step 0. A warm start draws the stationary state instead:
    eligible with probability 1 / (1 + (b - 1) rate), else a wait uniform in 1, ..., b - 1; every step then
    takes an example with the same probability rate / (1 + (b - 1) rate).

    **Guarantee**: participations at least `separation` apart; an eligible example joins with probability
    `rate`, independent of all else, as exactly as in `Bernoulli`. Zero-out; add-or-remove too without
    `max_batch`. With `max_batch` a dropped example waits as if it had taken part, so examples stay
    independent of each other before the dropping.

    A window is computed from the one before it, and the last two are cached: consecutive steps cost time
    proportional to their batch, and a resumed run recomputes the earlier windows once.
    """

    def __init__(self, participation: PoissonMinSeparation, examples: int, steps: int, secret: Secret) -> None:
        b, rate = participation.separation, Decimal(float(participation.rate))
        super().__init__(participation, examples, steps, secret, b, float(rate).hex())
        if b > LONGEST_SEPARATION:
            must = f"at most {LONGEST_SEPARATION} for a sampler"
            raise invalid("PoissonMinSeparation", "separation", must, b, "BallsInBins has no such limit")
        self._separation = b
        self._joins = Bernoulli(secret, (*self._labels, "joins"), at_least_once(b, rate))
        self._gaps = DrawStream(secret, (*self._labels, "gaps"))
        self._table = truncated_geometric(b, rate)
        warm = waiting_rate(b, rate) if participation.warm_start else Decimal(0)
        self._waiting = Bernoulli(secret, (*self._labels, "waiting"), warm)
        self._waits = DrawStream(secret, (*self._labels, "waits"))
        self._kept: tuple[tuple[int, Window], ...] = ()

    def _draw(self, step: int) -> Ids:
        number, offset = divmod(step, self._separation)
        window = self._window(number)
        chosen: Ids = window.ids[window.order[window.starts[offset] : window.starts[offset + 1]]]
        return chosen

    def _window(self, number: int) -> Window:
        # `_kept` is replaced as a whole, so threads that race only do the same work twice.
        kept = self._kept
        before = [item for item in kept if item[0] <= number]
        at, window = max(before, key=_number) if before else (-1, self._start())
        while at < number:
            at += 1
            window = self._next(at, window)
            kept = (*kept[-1:], (at, window))
        self._kept = kept
        return window

    def _start(self) -> Window:
        from antiphase._kernels import uniform_integers

        ids = self._waiting.heads(0, self.examples)
        waits = 1 + self._waits.decide(uniform_integers, max(1, self._separation - 1), 0, ids.size)
        return Window(ids, waits.astype(np.int32), ids, ids)  # never asked for a step

    def _next(self, number: int, before: Window) -> Window:
        from antiphase._kernels import group_by_key, invert_cdf, join_window

        pieces, drawn, waiting = [], 0, 0
        for ids in self._joins.pieces(number, self.examples):
            gaps = invert_cdf(self._gaps.draws(number, ids.size, drawn), self._table)
            *joined, waiting = join_window(ids, gaps, before.ids, before.offsets, waiting, self._separation)
            pieces.append(joined)
            drawn += ids.size
        ids, offsets = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return Window(ids, offsets, *group_by_key(offsets, self._separation))


def _number(item: tuple[int, Window]) -> int:
    return item[0]
