"""Dynamic programs for the largest sum over participation patterns.

A pattern is a set of steps in which one example takes part. The sum of a matrix over a pattern is the sum of the
matrix entries [i, j] over all pairs of steps i and j of the pattern. C is the strategy matrix. The rows of its Gram
matrix X = C^T C from row `offset` on are passed as diagonals[i - offset, r] = X[i, i + r], which is zero past the last
step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._kernels.compiled import compiled

ANCHOR = 4096  # `buffered_square` recomputes powers after this many steps
ROUNDS = 200  # maximum number of prices that `separated_sum` tries
ROUNDING = 1e-10  # relative tolerance for rounding errors in `separated_sum`
Gaps = NDArray[np.int32]


@compiled()
def _priced_sum(values: Array, separation: int, price: float, best: Array, count: NDArray[np.int64]) -> None:
    """Fill best[j] and count[j] for the first j values.

    Here best[j] is the largest sum of (value - price) over entries that are at least `separation` apart, and count[j]
    is the number of entries in that sum.
    """
    best[0] = 0.0
    count[0] = 0
    for j in range(1, len(values) + 1):
        past = max(j - separation, 0)
        taken = values[j - 1] - price + best[past]
        if taken > best[j - 1]:
            best[j] = taken
            count[j] = count[past] + 1
        else:
            best[j] = best[j - 1]
            count[j] = count[j - 1]


@compiled()
def separated_sum(values: Array, separation: int, limit: int) -> tuple[float, bool]:
    """Return an upper bound on the sum of at most `limit` non-negative values that are at least `separation` apart.

    The second result is True if the bound is proved to equal the largest such sum. The limit is replaced by a price per
    entry (a Lagrange multiplier). Let best(price) be the largest sum of (value - price) over entries that are at least
    `separation` apart. Then bound(price) = best(price) + price * limit is an upper bound for every price >= 0. Its
    minimum over all prices equals the largest sum, because the constraints form an interval matrix, which is totally
    unimodular. bound(price) is convex and piecewise linear. Its minimum is where a falling and a rising line meet.
    """
    n = len(values)
    if limit <= 0:
        return 0.0, True
    best = np.empty(n + 1)
    count = np.empty(n + 1, dtype=np.int64)
    _priced_sum(values, separation, 0.0, best, count)
    if count[n] <= limit:
        return best[n], True
    many_sum, many = best[n], count[n]
    few_sum, few = 0.0, 0
    low, high = 0.0, values.max()
    bound = best[n]
    for round_ in range(ROUNDS):
        price = (many_sum - few_sum) / (many - few)
        crossing = round_ % 3 < 2 or not low < 0.5 * (low + high) < high
        if not crossing:  # bisect every third round, so that neither end can stall
            price = 0.5 * (low + high)
        _priced_sum(values, separation, price, best, count)
        bound = min(bound, best[n] + price * limit)
        if crossing and best[n] <= few_sum - price * few + ROUNDING * bound:
            return bound, True
        if count[n] <= limit:
            few_sum, few, high = best[n] + price * count[n], count[n], min(high, price)
        else:
            many_sum, many, low = best[n] + price * count[n], count[n], max(low, price)
    return bound, False


@compiled()
def separated_rows(
    diagonals: Array, offset: int, start: int, stop: int, steps: int, separation: int, limit: int
) -> Array:
    """Return, for start <= i < stop, an upper bound on the sum of |X[i, j]| over the steps j of a pattern with step i.

    A pattern has at most `limit` steps, which are at least `separation` apart.
    """
    bands = diagonals.shape[1]
    out = np.empty(stop - start)
    row = np.empty(2 * bands - 1)
    for i in range(start, stop):
        first = max(i - bands + 1, 0)
        last = min(i + bands - 1, steps - 1)
        for j in range(first, last + 1):
            if abs(i - j) < separation:
                row[j - first] = 0.0
            elif j < i:
                row[j - first] = abs(diagonals[j - offset, i - j])
            else:
                row[j - first] = abs(diagonals[i - offset, j - i])
        others = separated_sum(row[: last - first + 1], separation, limit - 1)[0]
        out[i - start] = diagonals[i - offset, 0] + others
    return out


@compiled()
def separated_chain(
    diagonals: Array, offset: int, start: int, stop: int, separation: int, value: Array, largest: Array, limited: bool
) -> None:
    """Fill value[q, j], the largest sum of |X| over patterns of q + 1 steps that end in j, for start <= j < stop.

    The caller must ensure that X, restricted to the steps of any pattern, is tridiagonal. Apart from the diagonal, only
    consecutive steps i and j of a pattern then contribute, with 2 |X[i, j]|. The array `largest` holds running maxima:
    largest[q, j] is the largest value[q, i] for i <= j. Both arrays hold only the last steps: step j is in column j
    modulo the width. If the number of steps in a pattern is not limited, there is a single row q = 0, for patterns with
    any number of steps.
    """
    layers, width = value.shape
    for j in range(start, stop):
        own, before_own = j % width, (j - 1) % width
        for q in range(layers):
            before = q - 1 if limited else 0
            best = 0.0
            if before >= 0 and j >= separation:
                best = largest[before, (j - separation) % width]
                for r in range(separation, min(diagonals.shape[1], j + 1)):
                    best = max(best, value[before, (j - r) % width] + 2.0 * abs(diagonals[j - r - offset, r]))
            value[q, own] = diagonals[j - offset, 0] + best
            largest[q, own] = value[q, own] if j == 0 else max(largest[q, before_own], value[q, own])


@compiled()
def _far_sum(diagonals: Array, offset: int, i: int, steps: int, epoch: int) -> float:
    """Return the sum of max_j |X[i, j]| over all epochs except the epoch of i and the two adjacent ones.

    Here j runs over the steps of an epoch. `epoch` is the number of steps per epoch.
    """
    bands = diagonals.shape[1]
    own = i // epoch
    total = 0.0
    largest = 0.0
    for j in range((own + 2) * epoch, min(i + bands, steps)):
        largest = max(largest, abs(diagonals[i - offset, j - i]))
        if (j + 1) % epoch == 0 or j + 1 == min(i + bands, steps):
            total += largest
            largest = 0.0
    first = max(i - bands + 1, 0)
    for j in range(first, (own - 1) * epoch):
        largest = max(largest, abs(diagonals[j - offset, i - j]))
        if (j + 1) % epoch == 0:
            total += largest
            largest = 0.0
    return total


@compiled()
def shuffled_chain(
    diagonals: Array, offset: int, start: int, stop: int, steps: int, epoch: int, value: Array, largest: Array
) -> float:
    """Fill value[j] for start <= j < stop: a bound on the sum of |X| over patterns that end in j, one step per epoch.

    A pair of steps i and j in adjacent epochs contributes 2 |X[i, j]|. `_far_sum` bounds the contributions of pairs of
    steps in epochs that are not adjacent. Also fills largest[e], the largest value in epoch e. Returns the largest
    result of `_far_sum`. If it is zero, only adjacent epochs contribute, and the values are the largest sums
    themselves.
    """
    bands = diagonals.shape[1]
    farthest = 0.0
    for j in range(start, stop):
        own = j // epoch
        best = 0.0
        if own > 0:
            best = largest[own - 1]
            for i in range(max((own - 1) * epoch, j - bands + 1), own * epoch):
                best = max(best, value[i] + 2.0 * abs(diagonals[i - offset, j - i]))
        far = _far_sum(diagonals, offset, j, steps, epoch)
        farthest = max(farthest, far)
        value[j] = diagonals[j - offset, 0] + far + best
        largest[own] = max(largest[own], value[j])
    return farthest


@compiled()
def buffered_square(decay: Array, scale: Array, first: float, steps: int, separation: int, limit: int) -> float:
    """Return the squared norm of a sum of at most `limit` columns of a BLT matrix: columns 0, separation, ...

    The first column of the matrix is c_0 = first and c_i = sum_j scale_j decay_j^(i - 1). The function makes one pass
    over the steps and stores two numbers per buffer. Powers are recomputed directly every ANCHOR steps, so that
    rounding errors do not grow with the number of steps.
    """
    buffers = len(decay)
    anchor = np.zeros(buffers)
    state = np.empty(buffers)
    total = 0.0
    used = 0
    t = 0
    while t < steps:
        joins = used < limit and t == used * separation
        stop = min(t + ANCHOR, steps)
        if joins:
            used += 1
        if used < limit:
            stop = min(stop, used * separation)
        part = 0.0
        for i in range(len(state)):  # not state[:] = anchor, which takes seconds to compile
            state[i] = anchor[i]
        for s in range(t, stop):
            entry = 0.0
            for j in range(buffers):
                entry += scale[j] * state[j]
                state[j] *= decay[j]
            if joins and s == t:
                entry += first
                for j in range(buffers):
                    state[j] += 1.0
            part += entry * entry
        total += part
        for j in range(buffers):
            anchor[j] *= decay[j] ** float(stop - t)  # an integer power uses repeated squaring, which loses precision
            if joins:
                anchor[j] += decay[j] ** float(stop - t - 1)
        t = stop
    return total


@compiled()
def join_gaps(left: Gaps, right: Gaps, out: Gaps) -> None:
    """Combine the tables of two adjacent subtrees, and raise each entry of `out` to the combined one if it is larger.

    The patterns of the tables have at least one step in each subtree. A gap is the number of free steps at one end of a
    subtree, at most b - 1, where b is the separation. Entry [v, l] of a table is the largest gap at the right end,
    among all patterns that have value v and a gap of at least l at the left end. It is -1 if there is no such pattern.
    (`antiphase._sensitivity.tree` defines the value of a pattern. In a table, v = 0 stands for the lowest value.) The
    values of the two subtrees add up. The gap at the right end of the left subtree plus the gap at the left end of the
    right subtree must be at least b - 1.
    """
    b = left.shape[1]
    for u in range(left.shape[0]):
        for v in range(right.shape[0]):
            for gap in range(b):
                between = left[u, gap]
                if between < 0:
                    break  # a larger gap at the left end is not possible either
                found = right[v, b - 1 - between]
                if found > out[u + v, gap]:
                    out[u + v, gap] = found
