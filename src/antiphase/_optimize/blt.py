"""Optimise a buffered linear Toeplitz (BLT) strategy."""

from __future__ import annotations

import math

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import NotEnoughMemory, NotProved
from antiphase._loss import loss
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import objective_powers
from antiphase._optimize.blt_decays import MAX_LOGIT, clipped, decays, to_logits, to_points
from antiphase._optimize.blt_error import curvatures_formula
from antiphase._optimize.blt_loss import BLTSquaredSensitivity, ClosedLoss, StepwiseLoss
from antiphase._optimize.lbfgs import lbfgs_minimize
from antiphase._optimize.lower_bound import prefix_sum_bound
from antiphase._optimize.newton import newton_minimize
from antiphase._optimize.participation_limits import ParticipationLimits, worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._participation import Participation
from antiphase._sensitivity import check_one_pass
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import BLT

OWNER = "optimize('blt')"
MAX_BUFFERS = 10
MAX_PARTICIPATIONS = 10**7
FIRST_ITERATIONS, KEPT_STARTS = 5, 3  # for `Curvatures`: after 5 iterations, only the best 3 searches continue
MIN_BUFFER_GAIN = 0.005  # another buffer is added only if it lowers the loss by at least this fraction


def optimize_blt(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    *,
    buffers: int | None = None,
) -> Solution:
    """Minimise sensitivity x error over the decays and scales of a BLT strategy C with d buffers.

    In decreasing order, decays of C alternate with decays of C^-1 (see `blt_decays.py`). Then the coefficients of C are
    positive and non-increasing. So the worst participation pattern is the earliest one, in which an example takes part
    as early and as often as allowed. The search starts from several spacings of the decays and from the best BLT with
    one buffer fewer. Under a Toeplitz workload, loss and gradient have closed forms, which take O(k + log n) time for k
    participations. Under other workloads, a covariance recursion computes the error in O(n d^2) time.

    **Guarantee**: `lower_bound` is computed only for the prefix sum with the objective "rms" or "max". It holds for
    every strategy, not only for BLTs.

    Args:
        steps: number of steps, n.
        participation: the steps in which an example can take part.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
        limits: when to stop early.
        buffers: number of buffers, d, from 1 to 10. By default, buffers are added as long as each one lowers the loss
            by at least half a percent. If a limit stops the search, the result may have fewer buffers.

    Reference: Dvijotham et al. 2024; McMahan, Xu and Zhang 2024, sections 3.1 to 3.3.

    >>> from antiphase import PrefixSum, SingleParticipation
    >>> found = optimize_blt(100_000, SingleParticipation(), PrefixSum(), "max", SearchLimits(), buffers=2)
    >>> round(found.loss, 4)
    5.2967
    """
    allowed = worst_case_limits(OWNER, participation, steps)
    if allowed.count > MAX_PARTICIPATIONS:
        raise NotEnoughMemory(
            f"{OWNER} supports at most {MAX_PARTICIPATIONS} participations. Got {allowed.count}.",
            hint="use a larger separation, or limit the participations with max_participations",
        )
    if buffers is not None and not 1 <= _check.positive_integer(OWNER, "buffers", buffers) <= MAX_BUFFERS:
        raise _check.invalid(
            OWNER, "buffers", f"at most {MAX_BUFFERS}", buffers, "use a few buffers, which are nearly optimal"
        )
    check_one_pass(steps)  # raise before the search if the accountant cannot handle a BLT with so many steps
    search = _Search(steps, allowed, workload, objective, limits)
    point, log_loss = search.best(buffers)
    strategy = blt_at(point, steps)
    # With "rms" or "max" under a Toeplitz workload, the search minimised the exact loss, up to rounding.
    closed = workload.toeplitz_inverse is not None and not isinstance(objective, Curvatures)
    value = math.exp(log_loss) if closed else loss(strategy, workload, participation, objective)
    is_bounded = isinstance(workload, PrefixSum) and not isinstance(objective, Curvatures)
    bound = prefix_sum_bound(steps, allowed) if is_bounded else None
    return Solution(strategy, value, bound, limits.count, limits.elapsed, not limits.reached)


class _Search:
    """Searches for BLTs with 1, 2, ... buffers, up to the requested number or while another buffer lowers the loss."""

    def __init__(
        self,
        steps: int,
        allowed: ParticipationLimits,
        workload: Workload,
        objective: Objective,
        limits: SearchLimits,
    ) -> None:
        self._steps, self._allowed, self._workload = steps, allowed, workload
        self._objective, self._limits = objective, limits
        self._closed, self._is_closed = closed_loss(steps, allowed, workload, objective)

    def best(self, buffers: int | None) -> tuple[Array, float]:
        """Return the coordinates (see `blt_decays.py`) of the best BLT, and its log(loss)."""
        found, value, previous = np.empty(0), math.inf, np.empty(0)
        for d in range(1, (buffers or MAX_BUFFERS) + 1):
            candidates = self._candidates(d, previous)
            previous = to_logits(candidates[:1])[0]
            if self._is_closed or (buffers is not None and d < buffers):
                new, new_value = candidates[0], float(self._closed(candidates[:1])[0][0])
            else:
                new, new_value = self._stepwise(candidates)
            if buffers is None and math.exp(value - new_value) < 1.0 + MIN_BUFFER_GAIN:
                break
            if not self._limits.reached or new_value < value:
                found, value = new, new_value
            if self._limits.reached:
                break
        return found, value

    def _candidates(self, buffers: int, previous: Array) -> Array:
        """Return local optima of the closed-form loss, best first. Optima with nearly the same loss appear once."""
        limits = self._limits
        quiet = SearchLimits(seconds=limits.seconds, started=limits.started)
        starts = to_points(_starts(self._steps, self._allowed.separation, buffers, previous))
        if isinstance(self._objective, Curvatures):  # evaluations are slow: continue only from the best starting points
            short = SearchLimits(limits.seconds, FIRST_ITERATIONS, started=limits.started)
            points, values = newton_minimize(self._closed, starts, clipped, short)
            starts = points[np.argsort(values, kind="stable")[:KEPT_STARTS]]
        points, values = newton_minimize(self._closed, starts, clipped, limits if self._is_closed else quiet)
        order = np.argsort(values, kind="stable")
        chosen = [order[0]]
        for i in order[1:]:
            if values[i] > values[chosen[-1]] + 1e-4:
                chosen.append(i)
        return points[chosen]

    def _stepwise(self, candidates: Array) -> tuple[Array, float]:
        """Minimise `StepwiseLoss` from the two best candidates. Returns the better end point and its log(loss)."""
        square = BLTSquaredSensitivity(self._steps, self._allowed.separation, self._allowed.count)
        ends = []
        for start in candidates[:2]:
            point, value = start, math.inf
            for power in objective_powers(self._objective):
                mixture = self._objective if isinstance(self._objective, Curvatures) else None
                function = StepwiseLoss(self._steps, square, self._workload, power, mixture)
                end = lbfgs_minimize(function, point, self._limits, tolerance=1e-8)
                point, value = clipped(end.point[None])[0], end.value
            ends.append((value, point))
        value, point = min(ends, key=lambda end: end[0])
        return point, value


def closed_loss(
    steps: int, allowed: ParticipationLimits, workload: Workload, objective: Objective, run: int | None = None
) -> tuple[ClosedLoss, bool]:
    """Return a formula for log(loss) of a batch of BLTs, and whether the search may rely on this formula alone.

    The second result is False if the learning rate changes over the steps and the errors of all steps count. There is
    no formula for this case, so the function returns the formula for prefix sums, which gives good starting points. The
    trajectory term of a `Curvatures` object (the noise over all steps) is an exception. If the learning rate changes,
    the formula evaluates this term at a few steps only, and the second result can be True.

    Args:
        steps: number of steps, n.
        allowed: the separation and the number of participations.
        workload: the workload matrix, A.
        objective: the error to minimise.
        run: number of steps of the whole run, if only its last `steps` steps use C; by default `steps`.
    """
    inverse, flat = workload.toeplitz_inverse, np.array([1.0, -1.0])
    if not isinstance(objective, Curvatures):
        return ClosedLoss(steps, allowed, flat if inverse is None else inverse, objective), inverse is not None
    error = curvatures_formula(workload, objective, steps if run is None else run, steps)
    if error is not None:
        return ClosedLoss(steps, allowed, flat, objective, error), True
    error = curvatures_formula(PrefixSum(), objective, steps)
    return ClosedLoss(steps, allowed, flat, objective, error), False


def _starts(steps: int, separation: int, buffers: int, previous: Array) -> Array:
    """Return starting points, each given by the logits of its 2 d decays (see `blt_decays.py`).

    In some points, the logits are evenly spaced over a range. In others, two logits are inserted into `previous`. A
    largest decay of 1 is often optimal. The loss is nearly flat close to 1, so a search would approach 1 slowly.
    Therefore some of the evenly spaced points have a largest decay of 1.

    Args:
        steps: number of steps, n.
        separation: smallest number of steps between two participations, b.
        buffers: number of buffers, d.
        previous: the logits of the best BLT with one buffer fewer, or an empty array.
    """
    tops, lows = (math.log(steps) + 1.0, math.log(separation)), (-1.5, 0.5)
    ranges = [(max(top, low + 1.0), low) for top in tops for low in lows]
    out = [np.linspace(top, low, 2 * buffers) for top, low in ranges]
    out += [np.concatenate([[MAX_LOGIT], np.linspace(top, low, 2 * buffers - 1)]) for top, low in ranges]
    if len(previous):
        first = min(MAX_LOGIT, previous[0] + 6.0)
        edges = np.concatenate([[max(first, previous[0] + 0.1)], previous, [previous[-1] - 3.0]])
        for i in range(0, len(edges), 2):
            high, low = edges[i], edges[i + 1]
            pair = (high + low) / 2.0 + 0.15 * (high - low) * np.array([1.0, -1.0])
            out.append(np.concatenate([previous[:i], pair, previous[i:]]))
    return np.array(out)


def blt_at(point: Array, steps: int) -> BLT:
    """Return the BLT with the coordinates `point` (see `blt_decays.py`).

    Raises `NotProved` if its coefficients are not all non-negative and non-increasing.
    """
    found = decays(point[None])
    decay, scale = found.value[0, 0::2], np.exp(found.log_scale[0, 0::2])
    scale = scale / max(1.0, float(scale.sum()))  # correct rounding errors, so that c_1 <= c_0 = 1
    if not ((decay <= 1.0).all() and (scale >= 0.0).all() and scale.sum() <= 1.0 + 1e-15):
        raise NotProved(
            "The search ended at a BLT with increasing coefficients, whose sensitivity is not known.",
            hint="use fewer buffers",
        )
    return BLT(decay, scale, steps)
