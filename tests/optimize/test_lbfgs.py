"""The approximate inverse Hessian of L-BFGS against its definition with dense matrices."""

import numpy as np
import pytest

from antiphase._optimize.lbfgs import MAX_PAIRS, _CurvaturePairs

SIZE = 12


def dense_direction(pairs, g):
    """Minus the inverse Hessian times g, by the BFGS update of Nocedal and Wright 2006, equation 7.18."""
    s, y = pairs[-1]
    inverse = np.eye(SIZE) * (s @ y) / (y @ y)
    for s, y in pairs:
        left = np.eye(SIZE) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    return -inverse @ g


@pytest.mark.parametrize("refused", [{}, {0, 3}, {MAX_PAIRS + 1}, {MAX_PAIRS, MAX_PAIRS + 1, MAX_PAIRS + 5}])
def test_directions_use_the_last_pairs_with_positive_curvature(refused):
    rng = np.random.default_rng(0)
    root = rng.standard_normal((SIZE, SIZE))
    hessian, store, accepted = root @ root.T + np.eye(SIZE), _CurvaturePairs(SIZE), []
    for i in range(MAX_PAIRS + 8):
        s, g = rng.standard_normal((2, SIZE))
        y = -(hessian @ s) if i in refused else hessian @ s
        store.add(np.zeros(SIZE), s, np.zeros(SIZE), y)
        if i not in refused:
            accepted = [*accepted, (s, y)][-MAX_PAIRS:]
        elif len(accepted) == MAX_PAIRS:
            accepted = accepted[1:]  # the refused pair took its place
        if accepted:
            np.testing.assert_allclose(store.direction(g), dense_direction(accepted, g), rtol=1e-6, atol=1e-8)
