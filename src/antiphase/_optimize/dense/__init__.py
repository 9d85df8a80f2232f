"""The dense family: the best of all strategies, with a certificate of optimality."""

from antiphase._optimize.dense.optimizer import MAX_DENSE_STEPS, optimize_dense

__all__ = ["MAX_DENSE_STEPS", "optimize_dense"]
