"""Gram matrices of all shapes: orthogonal, correlated, of unequal norms, singular, with a mode that is zero."""

import numpy as np


def grams() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    tall = rng.random((12, 6)) * (rng.random((12, 6)) < 0.4)
    short = rng.random((2, 4))
    uneven = np.diag([1.0, 0.8, 0.5, 0.3, 0.1])
    zero = np.zeros((4, 4))
    zero[:3, :3] = np.eye(3) + 0.3
    return {
        "one": np.array([[0.7]]),
        "orthogonal": np.eye(6),
        "correlated": 0.5 * np.eye(5) + 0.5,
        "sparse": tall.T @ tall,
        "uneven": uneven,
        "equal modes": np.ones((4, 4)),
        "pairs of equal modes": np.kron(np.eye(3), np.ones((2, 2))),
        "singular": short.T @ short,
        "a mode that is zero": zero,
    }
