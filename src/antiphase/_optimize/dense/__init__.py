"""The family "dense": the best strategy among all matrices, with a proved lower bound on the optimal loss."""

from antiphase._optimize.dense.optimizer import MAX_DENSE_STEPS, optimize_dense

__all__ = ["MAX_DENSE_STEPS", "optimize_dense"]
