"""The error of the binary tree under a workload, in one pass over the steps, which takes O(n log n) time.

A workload A is given by the bands of its inverse, bands[t, r] = A^-1[t, t - r]. Let y be the noise of the tree, and d
the number of bands minus one. The outputs s = A y are computed from the last d outputs:
s_t = (y_t - sum_{r >= 1} bands[t, r] s_{t-r}) / bands[t, 0].

The leaves of the tree are the steps. A step completes a node if it is the last step of the run below the node. A
completed node is called waiting until its parent is completed. Before step t, there is one waiting node at level l for
each bit l that is set in t. `online_moments` and `full_moments`, for the two decoders of `Tree`, return the moments of
s: the variance of every output, and the covariance of the last d outputs, latest first.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled()
def online_moments(bands: Array) -> tuple[Array, Array]:
    """Return the moments for the online decoder, from the joint covariance of the last outputs and the estimates.

    The estimate of a node is the decoder's noise for the sum of the steps below it. Before step t, cov[i, j] is the
    covariance of s_{t-1-i} and s_{t-1-j}, and cross[i, l] is the covariance of s_{t-1-i} and the estimate of the
    waiting node at level l. The estimates of waiting nodes are independent of each other. At level l, their variance is
    w_l, which is also the weight of a node's own noise in its estimate.
    """
    n, d = bands.shape[0], bands.shape[1] - 1
    height = _height(n)
    weights = _own_weights(height)
    variances, cov = np.empty(n), np.zeros((d, d))
    cross, shares = np.zeros((d, height + 1)), np.zeros(height + 1)
    noise_past, node_past = np.zeros(d), np.zeros(d)
    for t in range(n):
        top = _completed_level(t, n, height)
        noise, node = _new_node(t, top, weights, shares)
        noise_past[:] = 0.0
        node_past[:] = 0.0
        for level in range(top):
            if t >> level & 1:
                for i in range(d):
                    noise_past[i] += (shares[level] - 1.0) * cross[i, level]
                    node_past[i] += shares[level] * cross[i, level]
        _advance_cross(t, top, bands[t], node, node_past, cross)
        variances[t] = _advance_cov(bands[t], noise, noise_past, cov)
    return variances, cov


@compiled()
def _new_node(t: int, top: int, weights: Array, shares: Array) -> tuple[float, float]:
    """Fill `shares`. Return the variance of y_t, and its covariance with the estimate of the new node.

    The new node is the highest node that step t completes; `top` is its level. The estimate of the new node is new
    noise plus the sum over l of shares[l] times the estimate of the waiting node at level l. The noise y_t is the
    estimate of the new node minus the estimates of the waiting nodes that are below the new node.
    """
    noise = node = weights[top] ** 2
    share = 1.0
    for level in range(top - 1, -1, -1):
        share *= 1.0 - weights[level + 1]
        shares[level] = share
        noise += (share * weights[level]) ** 2
        node += (share * weights[level]) ** 2
        if t >> level & 1:
            noise += (share - 1.0) ** 2 * weights[level]
            node += (share - 1.0) * share * weights[level]
    return noise, node


@compiled()
def _advance_cross(t: int, top: int, band: Array, node: float, node_past: Array, cross: Array) -> None:
    """Update the covariances of the last outputs with the waiting nodes for step t."""
    d = len(node_past)
    for level in range(top, cross.shape[1]):
        if level > top and not t >> level & 1:
            continue
        value = node if level == top else 0.0
        for i in range(d):
            value -= band[i + 1] * (node_past[i] if level == top else cross[i, level])
        for i in range(d - 1, 0, -1):
            cross[i, level] = node_past[i - 1] if level == top else cross[i - 1, level]
        if d > 0:
            cross[0, level] = value / band[0]


@compiled()
def _advance_cov(band: Array, noise: float, noise_past: Array, cov: Array) -> float:
    """Update the covariances of the last outputs for one step, and return the new variance."""
    d = len(noise_past)
    new = np.empty(d)
    variance = noise
    for i in range(d):
        new[i] = noise_past[i]
        for j in range(d):
            new[i] -= band[j + 1] * cov[j, i]
        new[i] /= band[0]
        variance -= band[i + 1] * noise_past[i]
    variance /= band[0]
    for i in range(d):
        variance -= band[i + 1] * new[i]
    variance /= band[0]
    for i in range(d - 1, 0, -1):
        for j in range(d - 1, 0, -1):
            cov[i, j] = cov[i - 1, j - 1]
    for i in range(1, d):
        cov[i, 0] = cov[0, i] = new[i - 1]
    if d > 0:
        cov[0, 0] = variance
    return variance


@compiled()
def full_moments(bands: Array) -> tuple[Array, Array]:
    """Return the moments for the full decoder, whose variances are diag(A X^-1 A^T) with X = C^T C.

    X is inverted from the leaves up. Let 1 be the vector of ones. The Gram matrix of the subtree of node v is
    X_v = diag(X_left, X_right) + 1 1^T, so quadratic forms of X_v^-1 follow from the quadratic forms of the children.
    Let R hold the last d rows of A when v is completed, in the columns for the steps below v. In these columns, all
    later rows of A are linear combinations of the rows of R. It is therefore enough to store three arrays for v:
    form = R X_v^-1 R^T, mean = R X_v^-1 1, and carry. The matrix carry maps the last d outputs at the time when v was
    completed to the last d outputs now.
    """
    n, d = bands.shape[0], max(bands.shape[1] - 1, 1)
    height = _height(n)
    weights = _own_weights(height)
    cut = _cut_variances(n, height, weights)
    variances = np.empty(n)
    carry, form = np.zeros((height + 1, d, d)), np.zeros((height + 1, d, d))
    mean = np.zeros((height + 1, d))
    new_form, new_mean = np.zeros((d, d)), np.zeros(d)
    for t in range(n):
        top = _completed_level(t, n, height)
        new_form[:] = 0.0
        new_mean[:] = 0.0
        new_mean[0] = 1.0 / bands[t, 0]
        new_form[0, 0] = new_mean[0] ** 2
        for level in range(height):
            used = d if level < top else 1  # a node that this step does not complete needs only the row of this step
            if t >> level & 1:
                _advance_carry(bands[t], carry[level])
                _add_carried(used, carry[level], form[level], mean[level], new_form, new_mean)
            if level == top:
                _store_node(carry[top], form[top], mean[top], new_form, new_mean)
            _add_measurement(used, 1.0 + _pair_variance(t, level, n, weights, cut), new_form, new_mean)
        variances[t] = new_form[0, 0]
    last = np.empty((bands.shape[1] - 1, bands.shape[1] - 1))
    for i in range(bands.shape[1] - 1):
        for j in range(bands.shape[1] - 1):
            last[i, j] = new_form[i, j]
    return variances, last


@compiled()
def _advance_carry(band: Array, carry: Array) -> None:
    d = len(carry)
    for j in range(d):
        value = 0.0
        for i in range(len(band) - 1):
            value -= band[i + 1] * carry[i, j]
        for i in range(d - 1, 0, -1):
            carry[i, j] = carry[i - 1, j]
        carry[0, j] = value / band[0]


@compiled()
def _add_carried(used: int, carry: Array, form: Array, mean: Array, new_form: Array, new_mean: Array) -> None:
    """Add carry form carry^T to new_form and carry mean to new_mean, in the first `used` rows and columns."""
    d = len(mean)
    for i in range(used):
        for p in range(d):
            new_mean[i] += carry[i, p] * mean[p]
        for j in range(used):
            for p in range(d):
                for q in range(d):
                    new_form[i, j] += carry[i, p] * form[p, q] * carry[j, q]


@compiled()
def _add_measurement(used: int, total: float, new_form: Array, new_mean: Array) -> None:
    """Update the quadratic forms from diag(X_left, X_right)^-1 to X_v^-1, by the Sherman-Morrison formula.

    `total` is 1 + 1^T diag(X_left, X_right)^-1 1.
    """
    for i in range(used):
        for j in range(used):
            new_form[i, j] -= new_mean[i] * new_mean[j] / total
    for i in range(used):
        new_mean[i] /= total


@compiled()
def _store_node(carry: Array, form: Array, mean: Array, new_form: Array, new_mean: Array) -> None:
    """Store a completed node until its parent is completed.

    The arrays are copied in loops, because Numba takes seconds to compile an assignment of one array to another.
    """
    for i in range(len(mean)):
        mean[i] = new_mean[i]
        for j in range(len(mean)):
            form[i, j] = new_form[i, j]
            carry[i, j] = 1.0 if i == j else 0.0


@compiled()
def _pair_variance(t: int, level: int, n: int, weights: Array, cut: Array) -> float:
    """Return the sum of 1^T X_v^-1 1 over two nodes v: the node of this level above step t, and its sibling."""
    total = 0.0
    first = t >> (level + 1) << 1
    for node in (first, first + 1):
        if node < n >> level:
            total += weights[level]
        elif node == n >> level:
            total += cut[level]
    return total


@compiled()
def _cut_variances(n: int, height: int, weights: Array) -> Array:
    """Return 1^T X_v^-1 1 for one node v of each level: the node with steps both inside and after the run.

    The entry of a level without such a node is 0.
    """
    cut = np.zeros(height + 1)
    for level in range(height):
        if n & ((2 << level) - 1):
            total = _pair_variance(n - 1, level, n, weights, cut)
            cut[level + 1] = total / (1.0 + total)
    return cut


@compiled()
def _own_weights(height: int) -> Array:
    weights, power = np.empty(height + 1), 1.0
    for level in range(height + 1):
        weights[level] = power / (2.0 * power - 1.0)
        power *= 2.0
    return weights


@compiled()
def _height(n: int) -> int:
    height = 0
    while 1 << height < n:
        height += 1
    return height


@compiled()
def _completed_level(t: int, n: int, height: int) -> int:
    """Return the level of the highest node that step t completes."""
    if t == n - 1:
        return height
    level = 0
    while t >> level & 1:
        level += 1
    return level
