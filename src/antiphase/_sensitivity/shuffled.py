"""Shuffled epochs: one step from each epoch, any of them."""

from __future__ import annotations

import numpy as np

from antiphase._participation import ShuffledEpochs
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.windows import windows


def dynamic_program(case: Case) -> Bracket:
    """The largest sum of |X| along a chain of epochs; epochs that are not adjacent enter by row sums.

    Where only adjacent epochs interact (bands <= steps_per_epoch + 1, or two epochs), X on a pattern is tridiagonal.
    Turning the sign of contributions one after the other makes it non-negative, so that the sum of |X| is attained,
    whatever the signs of X. Otherwise X[i, j] is bounded by its largest value over the epoch of j.
    """
    from antiphase._kernels import shuffled_chain

    epoch = _epoch(case)
    value, largest = np.zeros(case.steps), np.zeros(case.count)
    far = 0.0
    for diagonals, offset, start, stop in windows(case.gram):
        far = max(far, shuffled_chain(diagonals, offset, start, stop, case.steps, epoch, value, largest))
    upper = float(largest[-1])
    return Bracket(upper if far == 0.0 else 0.0, upper)


def row_sum(case: Case) -> Bracket:
    """Each diagonal bounded by its largest entry, made non-increasing in the lag; O(n) beyond those.

    A step at place o of epoch e is at least m b - o steps from the epoch m later and (m - 1) b + o + 1 from the epoch
    m earlier.
    """
    b, k = _epoch(case), case.count
    envelope = np.zeros(k * b)
    envelope[: case.gram.bands] = case.gram.envelope()
    envelope = np.maximum.accumulate(envelope[::-1])[::-1]
    place, distance = np.arange(b), np.arange(1, k)[:, None]
    later = np.vstack([np.zeros(b), envelope[distance * b - place].cumsum(axis=0)])
    earlier = np.vstack([np.zeros(b), envelope[(distance - 1) * b + place + 1].cumsum(axis=0)])
    rows = envelope[0] + later[::-1] + earlier  # row e of the sum has k - 1 - e epochs after it and e before
    return Bracket(0.0, float(rows.max(axis=1).sum()))


def _epoch(case: Case) -> int:
    assert isinstance(case.participation, ShuffledEpochs)
    return min(case.participation.steps_per_epoch, case.steps)
