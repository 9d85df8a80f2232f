"""The sampler for Poisson sampling with a minimum separation (`PoissonMinSeparation`)."""

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

LONGEST_SEPARATION = 2**20  # the table of waiting times has as many rows as the separation


class Window(NamedTuple):
    """The examples that take part in a window of `separation` consecutive steps, and their steps.

    Example `ids[i]` takes part in step `offsets[i]` of the window, counted from 0. `order[starts[j] : starts[j + 1]]`
    lists every i with `offsets[i] == j`.
    """

    ids: Ids
    offsets: NDArray[np.int32]
    order: Ids
    starts: Ids


@final
class PoissonMinSeparationSampler(Sampler):
    """Draws each eligible example with probability `rate`; a drawn example is eligible again `separation` steps later.

    The steps in which an example takes part are a renewal process, independent of all other examples. The sampler draws
    this process in windows of b = separation steps. An example takes part at most once per window, at an offset that is
    counted from the first step of the window:

    1. An example that took part at offset j of the previous window becomes eligible at offset j. All other examples are
       eligible from offset 0 on. An eligible example waits for a geometrically distributed number of steps before it
       takes part. This distribution is memoryless, so each window can draw a new waiting time.
    2. The sampler draws the set of examples whose waiting time is below b, by independent coins with probability
       1 - (1 - rate)^b. Then it draws the waiting times of these examples.
    3. It keeps the examples for which the offset of becoming eligible plus the waiting time is below b.

    The cost is proportional to the number of participations.

    With a cold start, every example is eligible in step 0. With a warm start, the state of each example is drawn from
    the stationary distribution: with probability 1 / (1 + (b - 1) * rate), the example is eligible in step 0. Otherwise
    it becomes eligible after a number of steps that is uniform in 1, ..., b - 1. Each step then draws a given example
    with the same probability, rate / (1 + (b - 1) * rate).

    **Guarantee**: two participations of an example are at least `separation` steps apart. An eligible example joins
    with probability `rate`, independently of everything else, to the accuracy of `Bernoulli`. Supports zero-out
    adjacency and, without `max_batch`, add-or-remove. An example that `max_batch` drops waits as if it had taken part.
    Before truncation, the draws of different examples are therefore independent.

    Each window is computed from the previous one, and the last two are cached. If batches are requested in the order of
    the steps, each takes time proportional to its size. A resumed run recomputes all earlier windows once.
    """

    def __init__(self, participation: PoissonMinSeparation, examples: int, steps: int, secret: Secret) -> None:
        b, rate = participation.separation, Decimal(float(participation.rate))
        super().__init__(participation, examples, steps, secret, b, float(rate).hex())
        if b > LONGEST_SEPARATION:
            must = f"at most {LONGEST_SEPARATION} for a sampler"
            raise invalid(
                "PoissonMinSeparation",
                "separation",
                must,
                b,
                "use a smaller separation, or BallsInBins, which has no such limit",
            )
        self._separation = b
        self._joins = Bernoulli(secret, (*self._labels, "joins"), at_least_once(b, rate))
        self._gaps = DrawStream(secret, (*self._labels, "gaps"))
        self._table = truncated_geometric(b, rate)
        warm = waiting_rate(b, rate) if participation.warm_start else Decimal(0)
        self._waiting = Bernoulli(secret, (*self._labels, "waiting"), warm)
        self._waits = DrawStream(secret, (*self._labels, "waits"))
        self._cached: tuple[tuple[int, Window], ...] = ()

    def _draw(self, step: int) -> Ids:
        number, offset = divmod(step, self._separation)
        window = self._window(number)
        chosen: Ids = window.ids[window.order[window.starts[offset] : window.starts[offset + 1]]]
        return chosen

    def _window(self, number: int) -> Window:
        # `_cached` is replaced in one assignment. If two threads call this at once, they only do the same work twice.
        cached = self._cached
        before = [item for item in cached if item[0] <= number]
        at, window = max(before, key=_number) if before else (-1, self._start())
        while at < number:
            at += 1
            window = self._next(at, window)
            cached = (*cached[-1:], (at, window))
        self._cached = cached
        return window

    def _start(self) -> Window:
        from antiphase._kernels import uniform_integers

        ids = self._waiting.heads(0, self.examples)
        waits = 1 + self._waits.decide(uniform_integers, max(1, self._separation - 1), 0, ids.size)
        return Window(ids, waits.astype(np.int32), ids, ids)  # this window lies before step 0, so `_draw` never uses it

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
