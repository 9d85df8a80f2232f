"""Random min-separation: patterns, and the likelihood ratio by a recursion over the steps."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from antiphase._check import Array


@njit(cache=True, nogil=True)
def add_patterns(columns: Array, separation: int, rate: float, starts: Array, uniforms: Array, noise: Array) -> None:
    """Add to each row of `noise` the columns of a random pattern, columns[t, r] = C[t + r, t].

    Sample s is eligible from step starts[s]; then it waits a geometric time, joins, and waits `separation` steps.
    """
    samples, n = noise.shape
    log_miss = math.log1p(-rate) if rate < 1.0 else -math.inf
    for s in range(samples):
        t, k = int(starts[s]), 0
        while t < n:
            wait = math.floor(math.log1p(-uniforms[s, k]) / log_miss) if rate < 1.0 else 0.0
            if wait >= n - t:
                break
            t += int(wait)
            for r in range(min(columns.shape[1], n - t)):
                noise[s, t + r] += columns[t, r]
            t += separation
            k += 1


@njit(cache=True, nogil=True)
def log_ratios(columns: Array, separation: int, rate: float, warm: bool, samples: Array, out: Array) -> None:
    """out[s] = log f, f the mean over patterns of exp(sum_t l_t), l_t = <c_t, y> - |c_t|^2 / 2, for columns that do not
    overlap within a pattern.

    f_t, the mean over patterns that are eligible from step t, obeys f_t = (1 - rate) f_{t+1} + rate exp(l_t) f_{t+b},
    f_t = 1 from the end on. A cold start is f_0; a warm one the mean of f_0, with weight 1, and of f_1, ..., f_{b-1},
    each with weight rate.
    """
    count, n = samples.shape
    w, b = columns.shape[1], separation
    log_join, log_miss = math.log(rate), math.log1p(-rate) if rate < 1.0 else -np.inf
    logs = np.zeros(n + b)
    for s in range(count):
        for t in range(n - 1, -1, -1):
            product, square = 0.0, 0.0
            for r in range(min(w, n - t)):
                product += columns[t, r] * samples[s, t + r]
                square += columns[t, r] * columns[t, r]
            logs[t] = _add_logs(log_miss + logs[t + 1], log_join + product - square / 2.0 + logs[t + b])
        total = logs[0]
        if warm:
            for t in range(1, b):
                total = _add_logs(total, log_join + logs[t])
            total -= math.log1p((b - 1) * rate)
        out[s] = total


@njit(cache=True, nogil=True)
def _add_logs(x: float, y: float) -> float:
    high, low = max(x, y), min(x, y)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))
