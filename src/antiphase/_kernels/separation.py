"""Kernels for `PoissonMinSeparation`: random patterns, and means over all patterns by a recursion over the steps.

A pattern is the set of steps in which one example takes part. `rate` is the probability that an eligible example joins
(takes part in) a step. b is `separation`, the number of steps after which an example that joined is eligible again. C
is the strategy matrix.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled

# `backward_log_means` defines the mean f_t.
LINEAR_EXPONENTS = 50.0  # exponents up to 50 keep f_t within a factor e^50 / (1 - rate)^b of f_{t+1}, ..., f_{t+b}
SMALLEST_SHARED_SCALE = 1e-80  # if (1 - rate)^b is above this, f_t, ..., f_{t+b} can share one floating-point scale
RESCALE_ABOVE = 1e200  # `_linear_mean` rescales f_t if it is above this number or below its inverse


@compiled(nogil=True)
def add_patterns(columns: Array, separation: int, reach: Array, starts: Array, uniforms: Array, noise: Array) -> None:
    """Add the columns of a random pattern to each row of `noise`, where columns[t, r] = C[t + r, t].

    The example of row s is first eligible in step starts[s]. If it is eligible in step t, it joins none of the steps
    t, ..., u - 1 with probability exp(reach[t] - reach[u]). After it joins, it is eligible again `separation` steps
    later. Its pattern is the set of steps that it joins.
    """
    samples, n = noise.shape
    for s in range(samples):
        t, k = int(starts[s]), 0
        while t < n:
            t = np.searchsorted(reach, reach[t] - math.log1p(-uniforms[s, k]), side="right") - 1
            if t >= n:
                break
            for r in range(min(columns.shape[1], n - t)):
                noise[s, t + r] += columns[t, r]
            t += separation
            k += 1


@compiled(nogil=True)
def backward_log_means(exponents: Array, separation: int, rate: float, logs: Array) -> None:
    """Fill logs[t] = log f_t.

    Here f_t is the mean of exp(sum_s exponents[s]) over the patterns of an example that is first eligible in step t,
    where s runs over the steps of the pattern. It satisfies f_t = (1 - rate) f_{t+1} + rate exp(exponents[t]) f_{t+b},
    with f_t = 1 after the last step.
    """
    n, b = len(exponents), separation
    log_join, log_miss = math.log(rate), math.log1p(-rate) if rate < 1.0 else -np.inf
    logs[n:] = 0.0
    for t in range(n - 1, -1, -1):
        logs[t] = _add_logs(log_miss + logs[t + 1], log_join + exponents[t] + logs[t + b])


@compiled(nogil=True)
def participation_probabilities(starting: Array, joining: Array, separation: int, out: Array) -> None:
    """Fill out[t], the probability that a pattern contains step t.

    starting[t] is the probability of being first eligible in step t. joining[t] is the probability of joining step t if
    eligible.
    """
    n = len(joining)
    eligible = np.zeros(max(n, len(starting)) + separation + 1)
    eligible[: len(starting)] = starting
    for t in range(n):
        out[t] = eligible[t] * joining[t]
        eligible[t + 1] += eligible[t] - out[t]
        eligible[t + separation] += out[t]


@compiled(nogil=True)
def start_log_mean(logs: Array, separation: int, rate: float, warm: bool) -> float:
    """Return log f_0 for a cold start, or the log of a weighted mean of f_0, ..., f_{b-1} for a warm start.

    With a cold start, every example is eligible in step 0. With a warm start, it begins in the stationary state (see
    `PoissonMinSeparation`). The weights are then 1 for f_0 and `rate` for each of f_1, ..., f_{b-1}. `logs` holds log
    f_t.
    """
    total = logs[0]
    if warm:
        log_join = math.log(rate)
        for t in range(1, separation):
            total = _add_logs(total, log_join + logs[t])
        total -= math.log1p((separation - 1) * rate)
    return total


@compiled(nogil=True)
def separated_log_means(
    bands: Array,
    separation: int,
    rate: float,
    warm: bool,
    scales: Array,
    exponents: Array,
    samples: Array,
    out: Array,
) -> None:
    """Fill out[i, s] with the log of the mean of exp(sum_t l_t) over all patterns, where t runs over a pattern's steps.

    Here l_t = scales[i] <c_t, y_s> + exponents[i, t], where y_s = samples[s] and c_t is column t of C. C is given by
    bands[r, t] = C[t + r, t].
    """
    count, n = samples.shape
    products, sums, logs = np.empty(n), np.empty(n), np.empty(n + separation)
    connected = separation == 1 or (1.0 - rate) ** separation > SMALLEST_SHARED_SCALE
    for s in range(count):
        products[:] = 0.0
        for r in range(len(bands)):
            band, y = bands[r], samples[s, r:]
            for t in range(n - r):
                products[t] += band[t] * y[t]
        for i in range(len(scales)):
            for t in range(n):
                sums[t] = scales[i] * products[t] + exponents[i, t]
            if connected and np.abs(sums).max() <= LINEAR_EXPONENTS:
                out[i, s] = _linear_mean(sums, separation, rate, warm, logs)
            else:
                backward_log_means(sums, separation, rate, logs)
                out[i, s] = start_log_mean(logs, separation, rate, warm)


@compiled(nogil=True)
def _linear_mean(exponents: Array, separation: int, rate: float, warm: bool, values: Array) -> float:
    """Return `start_log_mean` of `backward_log_means`, computed from f_t itself and rescaled to avoid overflow."""
    n, b, log_scale = len(exponents), separation, 0.0
    values[n:] = 1.0
    for t in range(n - 1, -1, -1):
        f = (1.0 - rate) * values[t + 1] + rate * math.exp(exponents[t]) * values[t + b]
        values[t] = f
        if f > RESCALE_ABOVE or f < 1.0 / RESCALE_ABOVE:
            values[t : t + b] /= f
            log_scale += math.log(f)
    total = values[0]
    if warm:
        total = (total + rate * values[1:b].sum()) / (1.0 + (b - 1) * rate)
    return log_scale + math.log(total)


@compiled(nogil=True)
def _add_logs(x: float, y: float) -> float:
    high, low = max(x, y), min(x, y)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))
