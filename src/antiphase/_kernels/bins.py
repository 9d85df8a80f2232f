"""Monte Carlo kernels for balls-in-bins: sequential draws of indices, and logs of means of exponentials.

The caller passes all random numbers, which are normal or uniform in [0, 1). The same numbers always give the same
samples. Below, s is the index of a sample, b is the number of bins, and indices i and j run over the bins.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._kernels.compiled import compiled

Indices = NDArray[np.int32]


@compiled(nogil=True)
def bins_log_means(noise: Array, gram: Array, indices: Indices, half: Array, out: Array) -> None:
    """Compute out[s] = log mean_j exp(noise[s, j] + sum_k gram[indices[s, k], j] - half[j]).

    Negative numbers in `indices` are skipped. The array `noise` is overwritten.
    """
    samples, b = noise.shape
    for s in range(samples):
        row = noise[s]
        for j in range(b):
            row[j] -= half[j]
        for k in range(indices.shape[1]):
            i = indices[s, k]
            if i >= 0:
                add = gram[i]
                for j in range(b):
                    row[j] += add[j]
        top = -np.inf
        for j in range(b):
            top = max(top, row[j])
        total = 0.0
        for j in range(b):
            total += math.exp(row[j] - top)
        out[s] = top + math.log(total / b)


@compiled(nogil=True)
def draw_powers(factors: Array, uniforms: Array, indices: Indices, log_ratios: Array) -> None:
    """For each sample s, draw the indices i_1, ..., i_alpha one after another, and write them to indices[s].

    The probability of i_k = j is proportional to prod_{l < k} factors[i_l, j]. Let m_k be the mean of this product over
    all bins j. Also writes the sum over k of log m_k to log_ratios[s].
    """
    samples, alpha = uniforms.shape
    b = factors.shape[0]
    tree = np.zeros(2 * _power_of_two(b))
    first = len(tree) // 2
    for s in range(samples):
        tree[first : first + b] = 1.0
        _add_up(tree)
        log_ratio = 0.0
        for k in range(alpha):
            log_ratio += math.log(tree[1] / b)
            i = _pick(tree, uniforms[s, k])
            indices[s, k] = i
            _multiply(tree, factors[i])
        log_ratios[s] = log_ratio


@compiled(nogil=True)
def draw_cores(
    factors: Array, cores: Indices, sizes: Indices, uniforms: Array, indices: Indices, log_ratios: Array
) -> None:
    """Draw indices so that no index is drawn more often than a given index, called the core.

    Sample s starts with `sizes[s]` copies of its core, `cores[s]`. The other indices are drawn one after another from
    the allowed indices. An index is allowed if it is not the core and was drawn fewer than `sizes[s]` times. It is
    drawn with probability proportional to its weight. The weight of index j is the product of factors[i, j] over all i
    drawn so far, including the copies of the core.

    Writes sum_l log(Z_l / b) - log #ties to log_ratios[s]. Here Z_l is the sum of the weights of the indices that are
    allowed at the l-th draw, and #ties is the number of indices that occur as often as the core, including the core
    itself. If Z_l is zero at some draw, log_ratios[s] is -inf and the missing indices are -1.
    """
    samples, alpha = indices.shape
    b = factors.shape[0]
    tree, counts = np.zeros(2 * _power_of_two(b)), np.zeros(b, dtype=np.int64)
    first = len(tree) // 2
    for s in range(samples):
        core, size = cores[s], sizes[s]
        counts[:] = 0
        tree[first : first + b] = 1.0
        for _ in range(size):
            for j in range(b):
                tree[first + j] *= factors[core, j]
        _add_up(tree)
        _forbid(tree, core)
        log_ratio, ties = 0.0, 1
        indices[s, :size] = core
        indices[s, size:] = -1
        for k in range(size, alpha):
            if not tree[1] > 0.0:
                log_ratio = -np.inf
                break
            log_ratio += math.log(tree[1] / b)
            i = _pick(tree, uniforms[s, k])
            indices[s, k] = i
            counts[i] += 1
            _multiply(tree, factors[i])
            if counts[i] == size:
                ties += 1
                _forbid(tree, i)
        log_ratios[s] = log_ratio - math.log(ties)


# The functions below use an array as a tree of sums: tree[m + j] = tree[2m + j] + tree[3m + j] for every power of two m
# and j < m. The second half of the array holds the weights, and tree[1] is their sum. With this layout, each level is
# computed by one vector sum, and `_pick` finds an index from the top in log2(b) steps.


@compiled(nogil=True)
def _add_up(tree: Array) -> None:
    m = len(tree) // 4
    while m >= 1:
        for j in range(m):
            tree[m + j] = tree[2 * m + j] + tree[3 * m + j]
        m //= 2


@compiled(nogil=True)
def _multiply(tree: Array, factors: Array) -> None:
    first = len(tree) // 2
    for j in range(factors.shape[0]):
        tree[first + j] *= factors[j]
    _add_up(tree)


@compiled(nogil=True)
def _forbid(tree: Array, index: int) -> None:
    """Set the weight of an index to zero and update the sums."""
    m = len(tree) // 2
    tree[m + index] = 0.0
    while m > 1:
        m //= 2
        index %= m
        tree[m + index] = tree[2 * m + index] + tree[3 * m + index]


@compiled(nogil=True)
def _pick(tree: Array, uniform: float) -> int:
    """Return an index with probability proportional to its weight. The weight of the returned index is not zero."""
    target, m, j = uniform * tree[1], 1, 0
    while 2 * m < len(tree):
        left, right = tree[2 * m + j], tree[3 * m + j]
        if target >= left and right > 0.0:
            target -= left
            j += m
        m *= 2
    return j


@compiled(nogil=True)
def _power_of_two(count: int) -> int:
    size = 1
    while size < count:
        size *= 2
    return size
