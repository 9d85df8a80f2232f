"""The best BLT."""

from __future__ import annotations

import math

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import NotEnoughMemory, NotProved
from antiphase._loss import Objective, loss
from antiphase._optimize._blt_loss import ClosedLoss, StepwiseLoss
from antiphase._optimize._closed_bound import prefix_sum_bound
from antiphase._optimize._decays import LARGEST_LOGIT, clipped, decays, to_logits, to_points
from antiphase._optimize._descent import descend
from antiphase._optimize._newton import minimise
from antiphase._optimize._objective import POWERS
from antiphase._optimize._schema import Schema, schema
from antiphase._optimize._solution import Limits, Solution
from antiphase._participation import Participation
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import BLT

OWNER = "optimize('blt')"
LARGEST_BUFFERS = 10
LARGEST_COUNT = 10**7
GAIN = 0.005  # one more buffer must lower the loss by this share
TRIED = 2  # local optima of the prefix sum from which a stepwise search starts


def optimize_blt(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    *,
    buffers: int | None = None,
) -> Solution:
    """Minimise sensitivity x error over the decays and scales of a BLT.

    The 2 d decays of C and C^-1 are kept interlaced, so that the coefficients of C are positive and do not increase
    and the earliest pattern is the worst. Under a Toeplitz workload loss and gradient are closed and the search, from
    several starts and from the best with one buffer less, costs the same at any number of steps; under another
    workload the error follows from the covariance recursion, O(n d^2).

    **Guarantee**: `lower_bound`, given for the prefix sum, holds for every strategy, not only for BLTs.

    Args:
        steps: n.
        participation: how one example meets the steps.
        workload: A.
        objective: "rms" or "max".
        limits: when to stop early.
        buffers: d, from 1 to 10; by default as many as each lower the loss by half a percent. A limit may leave fewer.

    Reference: Dvijotham et al. 2024; McMahan, Xu and Zhang 2024, sections 3.1 to 3.3.

    >>> from antiphase import PrefixSum, SingleParticipation
    >>> found = optimize_blt(100_000, SingleParticipation(), PrefixSum(), "max", Limits(), buffers=2)
    >>> round(found.loss, 4)
    5.2967
    """
    promise = schema(OWNER, participation, steps)
    if promise.count > LARGEST_COUNT:
        raise NotEnoughMemory(
            f"{OWNER} takes up to {LARGEST_COUNT} participations. Got {promise.count}.",
            hint="use a larger separation, or max_participations",
        )
    if buffers is not None and not 1 <= _check.positive_integer(OWNER, "buffers", buffers) <= LARGEST_BUFFERS:
        raise _check.refuse(OWNER, "buffers", f"at most {LARGEST_BUFFERS}", buffers, "a few buffers are nearly optimal")
    search = _Search(steps, promise, workload, objective, limits)
    point, log_loss = search.best(buffers)
    strategy = _strategy(point, steps)
    closed = workload.toeplitz_inverse is not None  # the closed loss is the loss, to rounding
    value = math.exp(log_loss) if closed else loss(strategy, workload, participation, objective)
    bound = prefix_sum_bound(steps, promise) if isinstance(workload, PrefixSum) else None
    return Solution(strategy, value, bound, limits.count, limits.elapsed, not limits.reached)


class _Search:
    """From one buffer to as many as asked for, or as pay."""

    def __init__(self, steps: int, promise: Schema, workload: Workload, objective: Objective, limits: Limits) -> None:
        self._steps, self._promise, self._workload = steps, promise, workload
        self._objective, self._limits = objective, limits
        inverse = workload.toeplitz_inverse
        self._closed = ClosedLoss(steps, promise, np.array([1.0, -1.0]) if inverse is None else inverse, objective)
        self._is_closed = inverse is not None

    def best(self, buffers: int | None) -> tuple[Array, float]:
        """The point of the best BLT, and log(loss) there."""
        found, value, previous = np.empty(0), math.inf, np.empty(0)
        for d in range(1, (buffers or LARGEST_BUFFERS) + 1):
            candidates = self._candidates(d, previous)
            previous = to_logits(candidates[:1])[0]
            if self._is_closed or (buffers is not None and d < buffers):
                new, new_value = candidates[0], float(self._closed(candidates[:1])[0][0])
            else:
                new, new_value = self._stepwise(candidates)
            if buffers is None and math.exp(value - new_value) < 1.0 + GAIN:
                break
            if not self._limits.reached or new_value < value:
                found, value = new, new_value
            if self._limits.reached:
                break
        return found, value

    def _candidates(self, buffers: int, previous: Array) -> Array:
        """Local optima of the closed loss, best first, no two with the same loss."""
        limits = self._limits
        quiet = Limits(seconds=limits.seconds, started=limits.started)
        starts = to_points(_starts(self._steps, self._promise.separation, buffers, previous))
        points, values = minimise(self._closed, starts, clipped, limits if self._is_closed else quiet)
        order = np.argsort(values, kind="stable")
        chosen = [order[0]]
        for i in order[1:]:
            if values[i] > values[chosen[-1]] + 1e-4:
                chosen.append(i)
        return points[chosen]

    def _stepwise(self, candidates: Array) -> tuple[Array, float]:
        """Descend on the true loss from the best candidates."""
        ends = []
        for start in candidates[:TRIED]:
            point, value = start, math.inf
            for power in POWERS[self._objective]:
                function = StepwiseLoss(self._steps, self._promise, self._workload, power)
                end = descend(function, point, self._limits, tolerance=1e-8)
                point, value = clipped(end.point[None])[0], end.value
            ends.append((value, point))
        value, point = min(ends, key=lambda end: end[0])
        return point, value


def _starts(steps: int, separation: int, buffers: int, previous: Array) -> Array:
    """Evenly spaced logits over several ranges, and the best with one buffer less with a pair put in anywhere.

    A first decay of 1 is often best, and the way there is flat, so that some starts begin with it.
    """
    tops, lows = (math.log(steps) + 1.0, math.log(separation)), (-1.5, 0.5)
    ranges = [(max(top, low + 1.0), low) for top in tops for low in lows]
    out = [np.linspace(top, low, 2 * buffers) for top, low in ranges]
    out += [np.concatenate([[LARGEST_LOGIT], np.linspace(top, low, 2 * buffers - 1)]) for top, low in ranges]
    if len(previous):
        first = min(LARGEST_LOGIT, previous[0] + 6.0)
        edges = np.concatenate([[max(first, previous[0] + 0.1)], previous, [previous[-1] - 3.0]])
        for i in range(0, len(edges), 2):
            high, low = edges[i], edges[i + 1]
            pair = (high + low) / 2.0 + 0.15 * (high - low) * np.array([1.0, -1.0])
            out.append(np.concatenate([previous[:i], pair, previous[i:]]))
    return np.array(out)


def _strategy(point: Array, steps: int) -> BLT:
    """The BLT, once it is sure that its coefficients are non-negative and do not increase."""
    found = decays(point[None])
    decay, scale = found.value[0, 0::2], np.exp(found.log_scale[0, 0::2])
    scale = scale / max(1.0, float(scale.sum()))  # rounding; c_1 is at most c_0 = 1
    if not ((decay <= 1.0).all() and (scale >= 0.0).all() and scale.sum() <= 1.0 + 1e-15):
        raise NotProved(
            "The search ended at coefficients that increase, where the earliest pattern need not be the worst.",
            hint="use fewer buffers",
        )
    return BLT(decay, scale, steps)
